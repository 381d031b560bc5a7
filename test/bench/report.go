package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Report is the result of a run.
type Report struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	Machine Machine   `json:"machine"`
	Link    string    `json:"link"`
	Args    []string  `json:"mount_args,omitempty"`
	Scale   int       `json:"scale"` // sizes were divided by it
	Works   []Row     `json:"works"`
	// Memory is the most RssAnon + RssShmem that the processes of one mount had, in bytes.
	Memory      int64    `json:"memory_peak"`
	MappedFiles int64    `json:"mapped_files_peak"`
	Complaints  []string `json:"complaints,omitempty"` // warnings in the daemons' logs
}

// Machine is where it was measured.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Memory     int64  `json:"memory"`
	Kernel     string `json:"kernel"`
	Filesystem string `json:"filesystem"` // under the cache
}

// memoryGoal is the default budget: what a daemon may use in all of the works.
const memoryGoal = 512 << 20

// Row is a work's result.
type Row struct {
	Name  string  `json:"name"`
	Title string  `json:"title"`
	Unit  unit    `json:"unit"`
	Ours  Side    `json:"ours"`
	Limit Side    `json:"limit"`
	Ratio float64 `json:"ratio,omitempty"` // 0 where there is no limit
	Goal  goal    `json:"goal"`
	OK    bool    `json:"ok"`
	Error string  `json:"error,omitempty"`
}

// Side is all measurements of one side; Best is the best value (or the median) and belongs to BestSample.
type Side struct {
	Best       float64  `json:"best"`
	BestSample sample   `json:"best_sample"`
	Samples    []sample `json:"samples"`
}

func (s *Side) add(m sample, u unit) {
	v := m.value(u)
	better := v > s.Best
	if u == seconds {
		better = v < s.Best
	}
	if len(s.Samples) == 0 || better {
		s.Best, s.BestSample = v, m
	}
	s.Samples = append(s.Samples, m)
}

// median makes the middle measurement the one that counts.
func (s *Side) median(u unit) {
	if len(s.Samples) == 0 {
		return
	}
	all := slices.SortedFunc(slices.Values(s.Samples), func(a, b sample) int { return cmp.Compare(a.value(u), b.value(u)) })
	s.BestSample = all[len(all)/2]
	s.Best = s.BestSample.value(u)
}

func (r *Row) judge() {
	v := r.Ours.Best
	if len(r.Limit.Samples) > 0 {
		r.Ratio = r.Ours.Best / r.Limit.Best
		v = r.Ratio
	}
	r.OK = (r.Goal.AtLeast == 0 || v >= r.Goal.AtLeast) && (r.Goal.AtMost == 0 || v <= r.Goal.AtMost)
}

func newReport(ctx context.Context, c *config) *Report {
	rep := &Report{
		Time: time.Now().UTC().Truncate(time.Second), Scale: c.scale, Args: c.mountArgs,
		Link:    fmt.Sprintf("%v to the first byte, %d MB/s per connection", c.firstByte, c.perConn/1e6),
		Machine: machine(c.dir),
	}
	if out, err := exec.CommandContext(ctx, c.leatfs, "version").Output(); err == nil {
		rep.Version = strings.TrimSpace(string(out))
	}
	return rep
}

func machine(dir string) Machine {
	m := Machine{Cores: runtime.NumCPU()}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.Memory = int64(si.Totalram) * int64(si.Unit)
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer func() { _ = f.Close() }()
		for s := bufio.NewScanner(f); s.Scan() && m.CPU == ""; {
			if k, v, _ := strings.Cut(s.Text(), ":"); strings.TrimSpace(k) == "model name" {
				m.CPU = strings.TrimSpace(v)
			}
		}
	}
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil {
		names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
			unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs"}
		if m.Filesystem = names[st.Type]; m.Filesystem == "" {
			m.Filesystem = fmt.Sprintf("type %#x", st.Type)
		}
	}
	return m
}

func (rep *Report) writeJSON(path string) error {
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// table prints the report as Markdown.
func (rep *Report) table(out io.Writer) error {
	var b strings.Builder
	m := rep.Machine
	fmt.Fprintf(&b, "%s, %s: %s, %d cores, %.0f GiB of memory, Linux %s, the cache on %s; link: %s.\n", rep.Version,
		rep.Time.Format("2006-01-02"), m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.Filesystem, rep.Link)
	if rep.Scale != 1 {
		fmt.Fprintf(&b, "Sizes divided by %d: these figures mean little.\n", rep.Scale)
	}
	b.WriteString("\n| work | leatfs | limit | ratio | goal | | CPU s/GB: leatfs (daemon) | limit |\n|---|--:|--:|--:|--:|---|--:|--:|\n")
	for _, r := range rep.Works {
		if r.Error != "" {
			fmt.Fprintf(&b, "| %s | failed: %s | | | %s | no | | |\n", r.Title, strings.ReplaceAll(r.Error, "\n", " "), r.Goal)
			continue
		}
		limit, ratio := "", ""
		if r.Ratio != 0 {
			limit, ratio = format(r.Limit.Best, r.Unit), fmt.Sprintf("%.2f", r.Ratio)
		}
		ours, theirs := "", ""
		if gb := float64(r.Ours.BestSample.Bytes) / 1e9; gb > 0 {
			ours = fmt.Sprintf("%.2f (%.2f)", r.Ours.BestSample.CPU/gb, r.Ours.BestSample.Daemon/gb)
		}
		if gb := float64(r.Limit.BestSample.Bytes) / 1e9; gb > 0 {
			theirs = fmt.Sprintf("%.2f", r.Limit.BestSample.CPU/gb)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Title, format(r.Ours.Best, r.Unit), limit, ratio, r.Goal, yes(r.OK), ours, theirs)
	}
	fmt.Fprintf(&b, "| memory, RssAnon + RssShmem, at most | %.0f MiB | | | ≤ %d MiB | %s | | |\n",
		float64(rep.Memory)/(1<<20), memoryGoal>>20, yes(rep.Memory <= memoryGoal))
	rep.requests(&b)
	for i, c := range rep.Complaints {
		if i == 0 {
			fmt.Fprintf(&b, "\nThe daemons' logs held %d warnings:\n", len(rep.Complaints))
		}
		if i < 10 {
			fmt.Fprintf(&b, "    %s\n", c)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// requests tells what works that write asked of the daemon and of the bucket, and what of that should
// not have been.
func (rep *Report) requests(b *strings.Builder) {
	for i, r := range rep.Works {
		if len(r.Ours.Samples) == 0 || r.Ours.BestSample.Files == 0 {
			continue
		}
		if i == 0 || rep.Works[i-1].Ours.BestSample.Files == 0 {
			b.WriteString("\nRequests for each file written:\n\n")
		}
		s := r.Ours.BestSample
		fmt.Fprintf(b, "* %s: %s; all in the bucket %.2f s after the last was closed\n", r.Name, s.requests(), s.Lag)
		for _, s := range r.Ours.Samples {
			for _, line := range s.Broken {
				fmt.Fprintf(b, "  **broken**: %s\n", line)
			}
		}
	}
}

// failed is an error when a work could not be done. A goal that was missed is no error.
func (rep *Report) failed() error {
	var names []string
	for _, r := range rep.Works {
		if r.Error != "" {
			names = append(names, r.Name)
		}
	}
	if len(names) > 0 {
		return errors.New("not measured: " + strings.Join(names, ", "))
	}
	return nil
}

func (g goal) String() string {
	switch {
	case g.AtLeast != 0:
		return fmt.Sprintf("≥ %.2f", g.AtLeast)
	case g.AtMost != 0:
		return fmt.Sprintf("≤ %.2f", g.AtMost)
	}
	return ""
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

func format(v float64, u unit) string {
	switch {
	case u == seconds:
		return fmt.Sprintf("%.3f s", v)
	case u == mbPerSec:
		return fmt.Sprintf("%.0f MB/s", v)
	}
	return fmt.Sprintf("%.0f /s", v)
}
