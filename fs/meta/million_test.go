package meta

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
)

// childEnv makes the test binary run one of children instead of the tests.
const childEnv = "LEATFS_META_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children()[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func children() map[string]func(args []string) error {
	return map[string]func([]string) error{
		"fill": childFill, "open": childOpen, "churn": childChurn, "flood": childFlood, "squeeze": childSqueeze, "once": childOnce,
	}
}

// child prepares a run of the test binary as a child of the given name.
func child(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// childFill fills an index with args[1] objects, prints its CPU time, and waits to be killed.
func childFill(args []string) error {
	n, _ := strconv.Atoi(args[1])
	cached := args[2] == "cached"
	db, err := Open(Options{Dir: args[0]})
	if err != nil {
		return err
	}
	r, err := db.Origin("s3://bucket/", "")
	if err != nil {
		return err
	}
	var id cache.ID
	for i := 0; i < n; i += 1000 {
		p := fillPage(i, min(1000, n-i))
		if _, err := db.Merge(r.Ino, p); err != nil {
			return err
		}
		if !cached {
			continue
		}
		var b cache.Batch
		for _, o := range p.Objects {
			if id, err = db.NewID(); err != nil {
				return err
			}
			e := cache.Extent{CRC: []uint64{uint64(id)}}
			e.Present[0] = 1
			b.Records = append(b.Records, cache.Record{ID: id, State: cache.Proven, Sum: 1 << 63, Epoch: 1,
				Identity: cache.Identity{Origin: "s3://bucket", Key: o.Name, ETag: o.ETag, Size: o.Size, Inode: 16}})
			b.Extents = append(b.Extents, cache.ExtentKey{ID: id, Extent: e})
			b.Usages = append(b.Usages, cache.Usage{ID: id, Bytes: o.Size, Admitted: uint64(i), LastUse: uint64(i)})
		}
		if err := db.Apply(b); err != nil {
			return err
		}
	}
	return ready(db, time.Duration(0))
}

// childOpen opens an index, reads it through once, and reports.
func childOpen(args []string) error {
	start := time.Now()
	db, err := Open(Options{Dir: args[0], Log: childLog()})
	if err != nil {
		return err
	}
	r, err := db.Origin("s3://bucket/", "")
	if err != nil {
		return err
	}
	took := time.Since(start)
	n := 0
	if err := db.Readdir(r.Ino, "", 0, func(Inode) bool { n++; return true }); err != nil {
		return err
	}
	fmt.Println("entries", n)
	return ready(db, took)
}

// childLog writes warnings and errors to stderr.
func childLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// ready prints what the parent wants to know and waits for its end.
func ready(db *DB, took time.Duration) error {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	status, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(status), "\n") {
		if f := strings.Fields(l); len(f) == 3 && strings.HasPrefix(f[0], "Rss") {
			fmt.Println(strings.TrimSuffix(f[0], ":"), f[1])
		}
	}
	fmt.Println("disk", db.Size())
	fmt.Println("cpu", (u.Utime.Nano()+u.Stime.Nano())/1e6)
	fmt.Println("open", took.Milliseconds())
	fmt.Println("ready 0")
	select {}
}

// figures starts a child, reads what it prints, and kills it.
func figures(t testing.TB, name string, args ...string) map[string]int {
	t.Helper()
	cmd := child(name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	s := bufio.NewScanner(out)
	for s.Scan() {
		f := bytes.Fields(s.Bytes())
		got[string(f[0])], _ = strconv.Atoi(string(f[1]))
		if string(f[0]) == "ready" {
			break
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, ok := got["ready"]; !ok {
		t.Fatalf("%s ended early", name)
	}
	return got
}

// BenchmarkMillion measures an index of 1,000,000 objects: CPU to list them, bytes on disk,
// memory, and the time to open it after kill -9.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	for _, kind := range []string{"listed", "cached"} {
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				dir := b.TempDir()
				fill := figures(b, "fill", dir, strconv.Itoa(n), kind)
				open := figures(b, "open", dir)
				if open["entries"] != n {
					b.Fatalf("got %d entries", open["entries"])
				}
				again := figures(b, "open", dir)
				b.ReportMetric(float64(fill["cpu"])/1000, "fill-cpu-s")
				b.ReportMetric(float64(fill["disk"])/n, "disk-B/object")
				b.ReportMetric(float64(again["disk"])/n, "disk-later-B/object")
				b.ReportMetric(float64(fill["RssAnon"])/1024, "fill-anon-MiB")
				b.ReportMetric(float64(open["RssAnon"])/1024, "open-anon-MiB")
				b.ReportMetric(float64(open["RssFile"])/1024, "open-file-MiB")
				b.ReportMetric(float64(open["open"]), "open-ms")
				b.ReportMetric(float64(again["open"]), "open-again-ms")
			}
		})
	}
}
