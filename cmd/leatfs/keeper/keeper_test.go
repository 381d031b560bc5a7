package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must come. It is long: the machine may be busy.
const patience = 60 * time.Second

// quick are times that make tests quick where nothing that is right can be too slow for them.
func quick() Times {
	return Times{
		Tick:        20 * time.Millisecond,
		HangAfter:   patience,
		PrepareWait: patience,
		DrainWait:   patience,
		LeaveWait:   patience,
		StopWait:    patience,
		LinkGrace:   patience,
		QuitWait:    200 * time.Millisecond,
		StableAfter: patience,
		PauseMin:    time.Millisecond,
		FailFor:     patience,
		FailPause:   10 * time.Millisecond,
		RetryMin:    50 * time.Millisecond,
		RetryMax:    100 * time.Millisecond,
	}
}

// bench is a keeper under test, in this process or in its own.
type bench struct {
	t       *testing.T
	dir     string
	signals chan os.Signal
	done    chan struct{} // closed when Run has returned
	code    int           // by done
	err     error         // by done
	pid     int           // of a keeper in its own process
	stderr  *os.File      // of a keeper in this process
}

// scripted makes a directory with the workers' script, a line each.
func scripted(t *testing.T, lines ...string) (string, Config) {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "mnt"), 0o700),
		os.WriteFile(filepath.Join(dir, "script"), []byte(strings.Join(lines, "\n")), 0o600),
		os.WriteFile(filepath.Join(dir, "log"), nil, 0o600),
		os.Symlink(exe, filepath.Join(dir, "exe")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, Config{
		Args:   []string{"original"},
		Exe:    filepath.Join(dir, "exe"),
		Env:    append(os.Environ(), testDir+"="+dir),
		Shared: true,
		Times:  quick(),
		Level:  slog.LevelDebug,
	}
}

// begin runs a keeper in this process.
func begin(t *testing.T, dir string, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, dir: dir, signals: make(chan os.Signal, 8), done: make(chan struct{})}
	stderr, err := os.OpenFile(filepath.Join(dir, "stderr"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Signals = b.signals
	b.stderr = stderr
	if cfg.Stderr == nil {
		cfg.Stderr = stderr
	}
	cfg.Report = func(err error, usage bool) { note(dir, "report %v %v", err, usage) }
	go func() {
		defer close(b.done)
		b.code, b.err = Run(context.Background(), cfg)
	}()
	t.Cleanup(func() {
		select {
		case b.signals <- unix.SIGTERM:
		case <-b.done:
		}
		b.wait()
		_ = stderr.Close()
		b.clean()
	})
	return b
}

// run is scripted and begin in one.
func run(t *testing.T, lines ...string) *bench {
	t.Helper()
	dir, cfg := scripted(t, lines...)
	return begin(t, dir, cfg)
}

// wait waits for the end of the keeper.
func (b *bench) wait() {
	b.t.Helper()
	select {
	case <-b.done:
	case <-time.After(2 * patience):
		b.t.Fatalf("the keeper does not end\n%s", b.all())
	}
}

// clean checks what holds of every run, and that no worker is left.
func (b *bench) clean() {
	if strings.Contains(b.log(), "BAD") {
		b.t.Errorf("the workers saw what must not be:\n%s", b.all())
	}
	for n := 0; ; n++ {
		pid, ok := b.worker(n)
		if !ok {
			return
		}
		cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.HasPrefix(string(cmd), filepath.Join(b.dir, "exe")) {
			b.t.Errorf("worker %d still lives", n)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// worker is the process id of a worker.
func (b *bench) worker(n int) (int, bool) {
	x, err := os.ReadFile(filepath.Join(b.dir, "worker."+strconv.Itoa(n)))
	if err != nil {
		return 0, false
	}
	pid, err := strconv.Atoi(string(x))
	return pid, err == nil
}

// signal sends a worker a signal.
func (b *bench) signal(n int, s syscall.Signal) {
	b.t.Helper()
	pid, ok := b.worker(n)
	if !ok {
		b.t.Fatalf("no worker %d\n%s", n, b.all())
	}
	if err := unix.Kill(pid, s); err != nil {
		b.t.Fatalf("signal worker %d: %v\n%s", n, err, b.all())
	}
}

func (b *bench) log() string { return b.file("log") }

func (b *bench) file(name string) string {
	x, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Error(err)
	}
	return string(x)
}

// all is everything there is to read of a run.
func (b *bench) all() string { return b.log() + "---- stderr\n" + b.file("stderr") }

// see waits for a text in the workers' log.
func (b *bench) see(text string) { b.t.Helper(); b.seeIn("log", text) }

// ready waits until a worker is ready and the keeper knows it.
func (b *bench) ready(n int) {
	b.t.Helper()
	b.see(fmt.Sprintf("ready %d\n", n))
	pid, _ := b.worker(n)
	b.seeIn("stderr", fmt.Sprintf("msg=\"worker ready\" process=keeper worker=%d ", pid))
}

func (b *bench) seeIn(name, text string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if strings.Contains(b.file(name), text) {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%q does not come\n%s", text, b.all())
		}
	}
}

// never fails if the workers' log has a text.
func (b *bench) never(text string) {
	b.t.Helper()
	if strings.Contains(b.log(), text) {
		b.t.Errorf("%q\n%s", text, b.all())
	}
}

// mark makes a file that a script waits for.
func (b *bench) mark(name string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// end waits for the end with an exit code.
func (b *bench) end(code int) {
	b.t.Helper()
	b.wait()
	if b.code != code || (b.err == nil) != (code == 0) {
		b.t.Errorf("exit code %d, error %v, want code %d\n%s", b.code, b.err, code, b.all())
	}
}

// A usual worker: the first mounts, the next take over.
const (
	first = "beat mounted ready serve"
	later = "beat same ready serve"
)

func TestFirstStartFails(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		script, want string
		code         int
	}{
		{"fail:no-such-bucket", "report no-such-bucket false", exitError},
		{"usage:bad-flag", "report bad-flag true", exitUsage},
		{"exit:2", "report the worker died while it started: it exited with status 2; ", exitError},
		{"signal:9", "report the worker died while it started: it was killed from outside with SIGKILL; ", exitError},
		{"mounted fail:late", "report late false", exitError},
		{"mounted exit:2", "report the worker died while it started: it exited with status 2; ", exitError},
		{"ended", "report it was unmounted before it was ready false", exitError},
	} {
		t.Run(x.script, func(t *testing.T) {
			t.Parallel()
			b := run(t, x.script)
			b.end(x.code)
			b.see(x.want)
			b.never("worker 1")
		})
	}
}

func TestExecFails(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, first)
	cfg.Self = filepath.Join(dir, "garbage")
	garbage(t, cfg.Self)
	b := begin(t, dir, cfg)
	b.end(exitError)
	b.see("exec format error false")
}

// garbage puts a program that is none at a path.
func garbage(t *testing.T, path string) {
	t.Helper()
	_ = os.Remove(path)
	if err := os.WriteFile(path, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestReadyAndEnded(t *testing.T) {
	t.Parallel()
	b := run(t, "beat mounted ready until:x ended")
	b.see("report <nil> false")
	b.mark("x")
	b.end(exitOK)
	b.never("worker 1")
}

func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	b := run(t, first, later)
	b.ready(0)
	const kills = 20
	for n := range kills {
		b.signal(n, unix.SIGKILL)
		b.ready(n + 1)
		b.see(fmt.Sprintf("worker %d mode=takeover blame=false args=resolved", n+1))
	}
	b.see(`device 2 "made by 0\nseen by 1\nseen by 2\n"`)
	b.never("mode=refuse")
	b.signals <- unix.SIGTERM
	b.see(fmt.Sprintf("stop %d", kills))
	b.end(exitOK)
}

func TestKilledBeforeReady(t *testing.T) {
	t.Parallel()
	// The mount is there, so the death of the first worker does not end it.
	b := run(t, "beat mounted signal:9", later)
	b.ready(1)
	b.see("worker 1 mode=takeover blame=false args=original")
}

func TestCrashIsBlamed(t *testing.T) {
	t.Parallel()
	b := run(t, "mounted ready beat until:a exit:2", "same ready beat until:b signal:6", "same ready beat until:c exit:0",
		"same ready beat signal:15", later)
	b.ready(0)
	b.mark("a")
	b.see("worker 1 mode=takeover blame=true")
	b.ready(1)
	b.mark("b")
	b.see("worker 2 mode=takeover blame=true")
	b.ready(2)
	b.mark("c")
	b.see("worker 3 mode=takeover blame=false") // exit 0: no crash
	b.see("worker 4 mode=takeover blame=false") // SIGTERM
	b.ready(4)
}

func TestDyingAtStartRefuses(t *testing.T) {
	t.Parallel()
	b := run(t, "mounted ready beat until:a exit:2",
		"exit:2", "exit:2", "exit:2", "exit:2", "exit:2", // with the first: six
		"beat same ready serve", // refuses
		"fail:for-once",         // a real one
		"beat same ready serve", // refuses
		later)
	b.ready(0)
	b.mark("a")
	b.ready(9)
	for n := 1; n <= 5; n++ {
		b.see(fmt.Sprintf("worker %d mode=takeover blame=true", n))
	}
	b.see("worker 6 mode=refuse blame=false")
	b.see("drain 6")
	b.see("worker 7 mode=takeover blame=true")
	b.see("worker 8 mode=refuse blame=false")
	b.see("drain 8")
	b.see("worker 9 mode=takeover blame=false") // after fail
	b.seeIn("stderr", "workers keep dying")
	b.signals <- unix.SIGTERM
	b.end(exitOK)
}

// Starts that say that they do not work are tried for longer, and then refused as well.
func TestFailingStarts(t *testing.T) {
	t.Parallel()
	fails := strings.Split(strings.Repeat("fail:away ", 20), " ")[:20]
	t.Run("passes", func(t *testing.T) {
		t.Parallel()
		b := run(t, append(append([]string{"mounted ready beat until:a exit:2"}, fails...), later)...)
		b.mark("a")
		b.ready(21)
		b.never("mode=refuse")
	})
	t.Run("does not", func(t *testing.T) {
		t.Parallel()
		dir, cfg := scripted(t, "mounted ready beat until:a exit:2", "fail:away", later)
		cfg.Times.FailFor = time.Nanosecond
		b := begin(t, dir, cfg)
		b.mark("a")
		b.see("worker 2 mode=refuse") // which may be told to go before the keeper has seen that it is ready
		b.ready(3)
	})
}

func TestRefuserDies(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "mounted ready beat until:a exit:2", "exit:2", "exit:2", "ready exit:2", later)
	cfg.Times.RefuseAfter = 3
	cfg.Times.RetryMin, cfg.Times.RetryMax = patience, patience
	b := begin(t, dir, cfg)
	b.mark("a")
	b.see("worker 3 mode=refuse")
	b.see("worker 4 mode=refuse")
	b.ready(4)
	b.signal(4, unix.SIGKILL)
	b.ready(5)
	b.see("worker 5 mode=refuse")
	// A refuser is told to stop as any worker.
	b.signals <- unix.SIGTERM
	b.see("stop 5")
	b.end(exitOK)
}

func TestHang(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"no beats":   "mounted ready hang",
		"stopped":    "beat mounted ready signal:19",
		"takeover":   "beat mounted ready signal:9\nhang",
		"link":       "beat mounted ready closelink hang",
		"flood":      "beat mounted ready flood hang",
		"quit taken": "mounted ready hang",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, cfg := scripted(t, script, later)
			cfg.Times.HangAfter = 5 * time.Second
			cfg.Times.LinkGrace = 500 * time.Millisecond
			b := begin(t, dir, cfg)
			n := 1 + strings.Count(script, "\n")
			b.see(fmt.Sprintf("worker %d mode=takeover blame=true", n))
			b.ready(n)
			b.seeIn("stderr", "the worker hangs and is replaced")
			b.never(fmt.Sprintf("worker %d ", n+1))
			if name == "quit taken" {
				b.seeIn("stderr", "goroutine ") // the dump
			}
		})
	}
}

func TestGarbageDoesNotHurt(t *testing.T) {
	t.Parallel()
	b := run(t, "beat garbage mounted garbage ready until:x garbage serve", later)
	b.ready(0)
	b.mark("x")
	b.seeIn("stderr", "no message")
	b.signal(0, unix.SIGKILL)
	b.ready(1)
}

func TestLogMoves(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "beat mounted:log ready serve", later)
	b := begin(t, dir, cfg)
	b.see("ready 0")
	b.signal(0, unix.SIGKILL)
	b.see("ready 1")
	b.seeIn("worker.log", `"mode":"takeover"`)
}

// A log that was turned over takes the keeper's lines too.
func TestLogTurns(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "beat mounted:log ready until:x log:new.log serve", later)
	b := begin(t, dir, cfg)
	b.see("ready 0")
	b.seeIn("worker.log", `"mode":"mount"`)
	b.mark("x")
	pid, _ := b.worker(0)
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(b.stderr.Fd()))); target == filepath.Join(dir, "new.log") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the log stays where it was\n%s", b.all())
		}
	}
	b.signal(0, unix.SIGKILL)
	b.see("ready 1")
	b.seeIn("new.log", fmt.Sprintf(`"worker":%d`, pid))
	b.seeIn("new.log", `"mode":"takeover"`)
}
