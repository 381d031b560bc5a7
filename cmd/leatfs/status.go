package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/leatfs/leatfs/fs"
	"github.com/leatfs/leatfs/fs/fuse"
)

// Status is what a daemon tells of itself. Its JSON is for programs: fields are added, and
// not taken away or given another meaning.
type Status struct {
	Mountpoint  string    `json:"mountpoint"`
	Source      string    `json:"source"`
	Version     string    `json:"version"`
	WorkerPID   int       `json:"worker_pid"`
	Started     time.Time `json:"started"`
	State       string    `json:"state"`           // serving; refusing: every request is answered EIO; silent: nobody answers
	Error       string    `json:"error,omitempty"` // why it is silent
	ReadOnly    bool      `json:"read_only"`
	Passthrough bool      `json:"passthrough"`

	Keeper   KeeperStatus   `json:"keeper"`
	Origin   OriginStatus   `json:"origin"`
	Cache    CacheStatus    `json:"cache"`
	Memory   MemoryStatus   `json:"memory"`
	Files    FilesStatus    `json:"files"`
	Prefetch PrefetchStatus `json:"prefetch"`
	Writes   WritesStatus   `json:"writes"`
}

// WritesStatus is what was written here and is not in the bucket yet, with some of it, and where it is
// kept meanwhile.
type WritesStatus struct {
	fs.Ledger
	LedgerError string `json:"error,omitempty"` // why the above is not known
	// Conditional: the bucket puts an object only in place of the one that was meant. Where it does not, what
	// somebody else writes at the same moment may be overwritten.
	Conditional bool `json:"conditional_writes"`
	// Replaced and Removed count objects that were published here and that somebody else replaced or removed
	// since, as far as noticed; LastForeign is the path of the last one.
	Replaced    int64  `json:"replaced_by_others"`
	Removed     int64  `json:"removed_by_others"`
	LastForeign string `json:"last_by_others,omitempty"`
	// Reuse is what was not sent because the bucket had it (--reuse-parts).
	Reuse        fs.ReuseStats `json:"reuse"`
	StagedFiles  int64         `json:"staged_files"` // files on the cache disks that hold it, the unlinked ones among them
	StagedBytes  int64         `json:"staged_bytes"`
	BallastBytes int64         `json:"ballast_bytes"` // disk space kept for more of it
	Full         bool          `json:"full"`          // there is no room for more
}

// KeeperStatus is what became of the processes of the mount.
type KeeperStatus struct {
	PID         int        `json:"pid"`
	Gone        bool       `json:"gone"`     // it has died: nobody goes on when the worker dies
	Since       time.Time  `json:"since"`    // of the keeper
	Restarts    int        `json:"restarts"` // workers started because one had died
	LastDeath   string     `json:"last_death,omitempty"`
	LastDeathAt *time.Time `json:"last_death_time,omitempty"`
	Upgrades    int        `json:"upgrades"`
	// UpgradesAsked is how many upgrades were asked for, UpgradeTries how many of those have ended.
	UpgradesAsked int    `json:"upgrades_asked"`
	UpgradeTries  int    `json:"upgrade_tries"`
	UpgradeError  string `json:"upgrade_error,omitempty"` // of the last try
	// GivenUp is how many requests were answered EIO because workers died of them.
	GivenUp     int    `json:"given_up"`
	LastGivenUp string `json:"last_given_up,omitempty"`
}

// OriginStatus is how the bucket answers.
type OriginStatus struct {
	State               string           `json:"state"` // ok, degraded, down
	LastError           string           `json:"last_error,omitempty"`
	LastErrorTime       *time.Time       `json:"last_error_time,omitempty"`
	LastSuccess         *time.Time       `json:"last_success,omitempty"`
	ConsecutiveFailures int64            `json:"consecutive_failures"`
	Requests            map[string]int64 `json:"requests"` // by class
	BytesIn             int64            `json:"bytes_in"`
	Retries             int64            `json:"retries"`
	Hedges              int64            `json:"hedges"`
}

// CacheStatus is what lies on the disks and where reads were answered from. Bytes.
type CacheStatus struct {
	Dirs          []DirStatus `json:"dirs"`
	UsedBytes     int64       `json:"used_bytes"`
	CapacityBytes int64       `json:"capacity_bytes"`
	BytesMemory   int64       `json:"bytes_memory"` // served by the daemon from memory
	BytesDisk     int64       `json:"bytes_disk"`   // served by the daemon from disk
	BytesOrigin   int64       `json:"bytes_origin"` // fetched from the bucket
	BytesUncached int64       `json:"bytes_uncached"`
	Proven        int64       `json:"proven"`
	Unverifiable  int64       `json:"unverifiable"`
	Mismatches    int64       `json:"mismatches"`
	Evicted       int64       `json:"evicted"`
	WriteErrors   int64       `json:"write_errors"`
}

// DirStatus is one cache directory.
type DirStatus struct {
	Path          string `json:"path"`
	UsedBytes     int64  `json:"used_bytes"`
	CapacityBytes int64  `json:"capacity_bytes"`
	Uncached      bool   `json:"uncached"` // the disk is full or failing: nothing new is kept
}

// MemoryStatus is the budget and its use, in bytes.
type MemoryStatus struct {
	Budget   int64 `json:"budget"`
	Counted  int64 `json:"counted"` // RssAnon + RssShmem
	Files    int64 `json:"files"`   // mapped files, not counted
	PoolSize int64 `json:"pool_size"`
	PoolUsed int64 `json:"pool_used"`
	PoolHeld int64 `json:"pool_held"` // used, and not to be had back at once
}

// FilesStatus is what applications have open and did.
type FilesStatus struct {
	Open            int   `json:"open"`
	Handles         int   `json:"handles"`
	KeptBackings    int   `json:"kept_backings"`
	Lookups         int64 `json:"lookups"`
	Opens           int64 `json:"opens"`
	OpensPass       int64 `json:"opens_passthrough"`
	OpensDaemon     int64 `json:"opens_daemon"`
	Reads           int64 `json:"reads"`
	Lists           int64 `json:"lists"`
	FailedRequests  int64 `json:"failed_requests"`
	NotificationsNo int64 `json:"notifications_dropped"`
	// Stale counts names that were shown as they were last confirmed, since the bucket did not answer.
	Stale int64 `json:"stale_names"`
	// Requests of the kernel since this process began, by name ("lookup", "write").
	Requests map[string]int64 `json:"requests"`
}

// PrefetchStatus is in bytes.
type PrefetchStatus struct {
	Asked  int64 `json:"asked"`
	Used   int64 `json:"used"`
	Wasted int64 `json:"wasted"`
}

func statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [MOUNTPOINT]",
		Short: "Show what a mount, or every mount, is doing",
		Args:  usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				s, err := statusOf(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return show(cmd.OutOrStdout(), s, asJSON)
			}
			return statusAll(cmd.Context(), cmd.OutOrStdout(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func statusOf(ctx context.Context, mountpoint string) (*Status, error) {
	mp, err := mountedName(mountpoint)
	if err != nil {
		return nil, err
	}
	s, err := askStatus(ctx, socketPath(mp))
	if !errors.Is(err, errNoDaemon) {
		return s, err
	}
	mounts, merr := fuse.Mounts()
	if merr != nil {
		return nil, merr
	}
	for _, m := range mounts {
		if m.Mountpoint == mp && m.Type == "fuse.leatfs" {
			return nil, fmt.Errorf("%s is mounted, but its daemon does not answer; if it has died, remove the mount with \"leatfs umount %s\"", mp, mp)
		}
	}
	return nil, fmt.Errorf("%s: no leatfs is mounted there", mp)
}

func statusAll(ctx context.Context, w io.Writer, asJSON bool) error {
	socks, err := sockets()
	if err != nil {
		return err
	}
	// At the same time, since one that hangs is waited for; and one that does is not the others' fault.
	answers := make([]*Status, len(socks))
	var wg sync.WaitGroup
	for i, sock := range socks {
		wg.Go(func() {
			s, err := askStatus(ctx, sock)
			if err != nil && !errors.Is(err, errNoDaemon) {
				s = &Status{Mountpoint: mountpointOf(sock), State: stateSilent, Error: err.Error()}
			}
			answers[i] = s
		})
	}
	wg.Wait()
	all := slices.DeleteFunc(answers, func(s *Status) bool { return s == nil })
	if asJSON {
		return json.NewEncoder(w).Encode(all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no leatfs is mounted")
		return err
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := show(w, s, false); err != nil {
			return err
		}
	}
	return nil
}

// mountpointOf is the mount that a control socket belongs to; the socket itself when it is gone.
func mountpointOf(socket string) string {
	mounts, err := fuse.Mounts()
	if err != nil {
		return socket
	}
	for _, m := range mounts {
		if socketPath(m.Mountpoint) == socket {
			return m.Mountpoint
		}
	}
	return socket
}

// show prints a status for people, or as JSON.
func show(w io.Writer, s *Status, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(s)
	}
	keeper := fmt.Sprintf("process %d, %d restarts, %d upgrades", s.Keeper.PID, s.Keeper.Restarts, s.Keeper.Upgrades)
	switch {
	case s.Keeper.Gone:
		keeper = "HAS DIED: nobody goes on with the mount when the daemon dies; mount it anew when you can"
	case s.Keeper.LastDeath != "" && s.Keeper.LastDeathAt != nil:
		keeper += fmt.Sprintf("; last death %s ago: %s", time.Since(*s.Keeper.LastDeathAt).Round(time.Second), s.Keeper.LastDeath)
	}
	if s.Keeper.UpgradeError != "" {
		keeper += "; the last upgrade did not work: " + s.Keeper.UpgradeError
	}
	if s.State == stateSilent {
		_, err := fmt.Fprintf(w, "mount   %s\ndaemon  DOES NOT ANSWER: %s\n", s.Mountpoint, s.Error)
		return err
	}
	if s.State == stateRefusing {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "mount\t%s on %s\n", s.Source, s.Mountpoint)
		fmt.Fprintf(t, "daemon\tKEEPS DYING: requests are answered EIO; another try is made from time to time. See the log\n")
		fmt.Fprintf(t, "keeper\t%s\n", keeper)
		return t.Flush()
	}
	how := "through the daemon"
	if s.Passthrough {
		how = "by the kernel, once whole in the cache"
	}
	health := s.Origin.State
	if s.Origin.LastError != "" && s.Origin.LastErrorTime != nil {
		health += fmt.Sprintf("; last error %s ago: %s", time.Since(*s.Origin.LastErrorTime).Round(time.Second), s.Origin.LastError)
	}
	read := s.Cache.BytesMemory + s.Cache.BytesDisk
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, a ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, a...)) }
	readOnly := ""
	if s.ReadOnly {
		readOnly = " (read-only)"
	}
	row("mount", "%s on %s%s", s.Source, s.Mountpoint, readOnly)
	row("daemon", "process %d, version %s, up %s", s.WorkerPID, s.Version, time.Since(s.Started).Round(time.Second))
	row("keeper", "%s", keeper)
	if s.Keeper.GivenUp > 0 {
		row("given up", "%d requests that daemons died of; the last: %s", s.Keeper.GivenUp, s.Keeper.LastGivenUp)
	}
	row("bucket", "%s", health)
	row("requests", "GET %d, HEAD %d, LIST %d; %s in; %d retried, %d hedged", s.Origin.Requests["GET"], s.Origin.Requests["HEAD"],
		s.Origin.Requests["LIST"], humanBytes(s.Origin.BytesIn), s.Origin.Retries, s.Origin.Hedges)
	for _, d := range s.Cache.Dirs {
		note := ""
		if d.Uncached {
			note = "; FULL OR FAILING, nothing new is kept"
		}
		row("cache", "%s: %s of %s%s", d.Path, humanBytes(d.UsedBytes), humanBytes(d.CapacityBytes), note)
	}
	row("checked", "%d objects equal to the bucket's checksum, %d without one, %d mismatches", s.Cache.Proven, s.Cache.Unverifiable, s.Cache.Mismatches)
	row("reads", "%s; %d opens passed through, %d served (%s)", how, s.Files.OpensPass, s.Files.OpensDaemon, humanBytes(read))
	row("prefetch", "%s asked for, %s used, %s wasted", humanBytes(s.Prefetch.Asked), humanBytes(s.Prefetch.Used), humanBytes(s.Prefetch.Wasted))
	row("memory", "%s of %s (buffers %s of %s)", humanBytes(s.Memory.Counted), humanBytes(s.Memory.Budget), humanBytes(s.Memory.PoolUsed), humanBytes(s.Memory.PoolSize))
	row("open", "%d files, %d handles", s.Files.Open, s.Files.Handles)
	if !s.ReadOnly {
		showWrites(&s.Writes, row)
	}
	return t.Flush()
}
