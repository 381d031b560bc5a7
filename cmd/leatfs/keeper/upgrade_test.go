package keeper

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// standby is an upgrade's worker that goes well.
const standby = "beat prepared go same ready:new serve"

func TestUpgrade(t *testing.T) {
	t.Parallel()
	b := run(t, first, standby, later)
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.see("worker 1 mode=standby blame=false args=original")
	b.see("drain 0")
	b.see("go 1 blame=false")
	b.ready(1)
	b.seeIn("stderr", "upgrade done")
	b.signal(1, unix.SIGKILL)
	b.see("worker 2 mode=takeover blame=false args=resolvednew")
	b.ready(2)
	b.see(`"made by 0\nseen by 1\nseen by 2\n"`)
	b.never("stop")
}

// The program that was upgraded to is what restarts use, whatever happens to its name.
func TestUpgradeKeepsProgram(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, first, standby, "beat exe ready serve", "beat exe ready serve")
	b := begin(t, dir, cfg)
	b.ready(0)
	exe := filepath.Join(dir, "exe")
	copyProgram(t, exe)
	b.signals <- unix.SIGHUP
	b.ready(1)
	b.seeIn("stderr", "upgrade done")
	garbage(t, exe)
	b.signal(1, unix.SIGKILL)
	b.ready(2)
	b.see("exe 2 " + exe + " (deleted)")
	b.signals <- unix.SIGHUP // to garbage
	b.seeIn("stderr", "the upgrade did not work")
	b.signal(2, unix.SIGKILL)
	b.ready(3)
	b.see("exe 3 " + exe + " (deleted)")
}

// copyProgram puts a copy of this program at a path. Another process writes it: a descriptor for
// writing in this one could be inherited by a child for a moment, and the copy not be started.
func copyProgram(t *testing.T, path string) {
	t.Helper()
	_ = os.Remove(path)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", exe, path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestUpgradeGoesWrong(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		script string // of the standby and those after it
		edit   func(*Times)
		exe    func(*testing.T, string)
		err    string
		old    bool // the old worker never stopped serving
	}{
		"garbage": {exe: garbage, err: "exec format error", old: true},
		"missing": {exe: func(t *testing.T, p string) {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
		}, err: "no such file or directory", old: true},
		"refuses": {script: "fail:index-is-newer", err: "the new worker refuses: index-is-newer", old: true},
		"crashes": {script: "exit:2", err: "died before it took over: it exited with status 2", old: true},
		"silent": {script: "hang", err: "not prepared within 1s", old: true,
			edit: func(x *Times) { x.PrepareWait = time.Second }},
		"closes its link": {script: "closelink hang", err: "it closed its link", old: true,
			edit: func(x *Times) { x.LinkGrace = 10 * time.Millisecond }},
		"crashes after go": {script: "beat prepared go exit:2\n" + later, err: "took over and then died: it exited with status 2"},
		"refuses after go": {script: "beat prepared go fail:no\n" + later, err: "took over and then died: its start did not work: no"},
		"hangs after go": {script: "prepared go hang\n" + later, err: "took over and then died: it hung",
			edit: func(x *Times) { x.HangAfter = 5 * time.Second }},
		"dies prepared": {script: "prepared exit:3\n" + later, err: "died"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, cfg := scripted(t, append([]string{"beat mounted ready news serve"}, strings.Split(x.script, "\n")...)...)
			if x.edit != nil {
				x.edit(&cfg.Times)
			}
			b := begin(t, dir, cfg)
			b.ready(0)
			if x.exe != nil {
				x.exe(t, cfg.Exe)
			}
			b.signals <- unix.SIGHUP
			b.seeIn("stderr", "the upgrade did not work")
			b.seeIn("stderr", x.err)
			if x.old {
				b.see("news 0 upgrade to")
				b.see(x.err)
				b.never("drain")
				return
			}
			if name == "dies prepared" { // before or after the old one drained
				return
			}
			b.see("drain 0")
			b.see("worker 2 mode=takeover")
			b.see("args=resolved")
			b.ready(2)
		})
	}
}

// The old worker does not drain: it is killed, and its death is nobody's fault.
func TestUpgradeOldDoesNotDrain(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "beat mounted ready hang", standby)
	cfg.Times.DrainWait = 100 * time.Millisecond
	b := begin(t, dir, cfg)
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.see("go 1 blame=false")
	b.ready(1)
}

// The old worker dies while the standby prepares: another old one serves meanwhile.
func TestUpgradeOldDies(t *testing.T) {
	t.Parallel()
	b := run(t, first, "beat until:x prepared go same ready serve", later)
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.see("worker 1 mode=standby")
	b.signal(0, unix.SIGKILL)
	b.ready(2)
	b.mark("x")
	b.see("drain 2")
	b.ready(1)
	b.see(`"made by 0\nseen by 2\nseen by 1\n"`)
}

// The old worker crashes while it drains: the new one hears of the blame.
func TestUpgradeOldCrashesDraining(t *testing.T) {
	t.Parallel()
	b := run(t, "beat mounted ready until:x exit:2", standby)
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.seeIn("stderr", "the old worker drains")
	b.mark("x")
	b.see("go 1 blame=true")
	b.ready(1)
}

// An upgrade gets a mount that refuses, or pauses, out of it.
func TestUpgradeHelps(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		pause  time.Duration
		refuse int
	}{"refusing": {time.Millisecond, 2}, "pause": {patience, 6}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := []string{"mounted ready beat until:a exit:2"}
			if name == "refusing" {
				script = append(script, "exit:2", "beat ready serve")
			}
			dir, cfg := scripted(t, append(script, standby)...)
			cfg.Times.PauseMin, cfg.Times.RefuseAfter = x.pause, x.refuse
			cfg.Times.RetryMin, cfg.Times.RetryMax = patience, patience
			b := begin(t, dir, cfg)
			b.ready(0)
			b.mark("a")
			if name == "refusing" {
				b.see("worker 2 mode=refuse")
				b.ready(2)
			} else {
				b.seeIn("stderr", "pause before")
			}
			b.signals <- unix.SIGHUP
			b.see("go " + map[bool]string{true: "3", false: "1"}[name == "refusing"])
			b.seeIn("stderr", "upgrade done")
		})
	}
}

// One more SIGHUP during an upgrade is one more upgrade.
func TestUpgradeTwice(t *testing.T) {
	t.Parallel()
	b := run(t, first, "beat until:x prepared go ready serve", standby, later)
	b.signals <- unix.SIGHUP // too early: a line of the log
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.see("worker 1 mode=standby")
	b.signals <- unix.SIGHUP
	b.signals <- unix.SIGHUP
	b.seeIn("stderr", "another upgrade follows")
	b.mark("x")
	b.ready(2)
	b.see("go 2")
	b.signal(2, unix.SIGKILL)
	b.see("worker 3 mode=takeover")
}

// Those who ask for an upgrade can tell when what they asked for has ended, and not what was asked
// for before; two that ask during one are answered by the next.
func TestUpgradesCounted(t *testing.T) {
	t.Parallel()
	b := run(t, first, "beat until:x prepared go fail:no", "beat same ready serve",
		"beat until:y prepared go same ready tries:3 serve")
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.see("worker 1 mode=standby")
	b.signals <- unix.SIGHUP
	b.signals <- unix.SIGHUP
	for end := time.Now().Add(patience); strings.Count(b.file("stderr"), "another upgrade follows") < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(b.all())
		}
	}
	b.mark("x")
	b.mark("y")
	b.see("tries 3 3 of 3")
}

// Somebody unmounts while an upgrade waits.
func TestUpgradeEnded(t *testing.T) {
	t.Parallel()
	b := run(t, "beat mounted ready until:x ended", "beat hang")
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.see("worker 1 mode=standby")
	b.mark("x")
	b.end(exitOK)
}
