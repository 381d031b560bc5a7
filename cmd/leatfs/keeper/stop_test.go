package keeper

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The signal to stop comes in each state.
func TestStop(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		script string
		see    string
		edit   func(*Times)
		reload bool
		code   int
	}{
		"starting": {script: "serve", see: "worker 0", code: exitError},
		"starting, mounted": {script: "beat mounted until:never", see: "worker 0", code: exitError,
			edit: func(x *Times) { x.StopWait = time.Millisecond }},
		"starting, deaf": {script: "hang", see: "worker 0", code: exitError,
			edit: func(x *Times) { x.StopWait = time.Millisecond }},
		"ready": {script: first, see: "ready 0"},
		"ready, deaf": {script: "beat mounted ready hang", see: "ready 0",
			edit: func(x *Times) { x.StopWait = time.Millisecond }},
		"ready, stopped": {script: "beat mounted ready signal:19", see: "ready 0",
			edit: func(x *Times) { x.StopWait = time.Millisecond }},
		"taking over": {script: "beat mounted ready signal:9\nbeat until:never", see: "worker 1",
			edit: func(x *Times) { x.StopWait = time.Millisecond }},
		"pause": {script: "beat mounted ready exit:2", see: "ready 0",
			edit: func(x *Times) { x.PauseMin = time.Hour }},
		"dies when stopped": {script: "beat mounted ready until:stop exit:2", see: "ready 0"},
		"standby":           {script: first + "\nbeat hang", see: "worker 1", reload: true},
		"draining": {script: "beat mounted ready hang\nbeat prepared go hang", see: "worker 1", reload: true,
			edit: func(x *Times) { x.StopWait, x.DrainWait = time.Millisecond, time.Second }},
		"switching": {script: first + "\nbeat prepared go hang", see: "go 1", reload: true,
			edit: func(x *Times) { x.StopWait = time.Millisecond }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, cfg := scripted(t, strings.Split(x.script, "\n")...)
			if x.edit != nil {
				x.edit(&cfg.Times)
			}
			b := begin(t, dir, cfg)
			if x.reload {
				b.ready(0)
				b.signals <- unix.SIGHUP
			}
			b.see(x.see)
			if strings.HasPrefix(x.see, "ready") {
				b.ready(0)
			}
			if name == "pause" {
				b.seeIn("stderr", "pause before")
			}
			b.signals <- unix.SIGTERM
			if name == "dies when stopped" {
				b.seeIn("stderr", "told to stop")
				b.mark("stop")
			}
			b.end(x.code)
		})
	}
}

func TestStopTwice(t *testing.T) {
	t.Parallel()
	b := run(t, "beat mounted ready hang")
	b.ready(0)
	b.signals <- unix.SIGTERM
	b.signals <- unix.SIGINT
	b.end(exitOK)
}

// A worker that dies in the moment in which the end is asked for is dead, and no worker that does
// not do what it is told.
func TestStopOfTheDead(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		b := run(t, first, later)
		b.ready(0)
		b.signal(0, unix.SIGKILL)
		time.Sleep(time.Duration(i%10) * 300 * time.Microsecond)
		b.signals <- unix.SIGTERM
		b.end(exitOK)
		if log := b.file("stderr"); strings.Contains(log, "level=WARN") {
			t.Fatalf("after %d starts:\n%s", i+1, log)
		}
	}
}
