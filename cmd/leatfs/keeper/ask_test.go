package keeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAsk(t *testing.T) {
	t.Parallel()
	b := run(t, "beat mounted ready until:x ask ask serve", later)
	b.ready(0)
	b.mark("x")
	b.see("stop 0")
	b.end(exitOK)
	b.never("worker 1")
}

// Who sends SIGTERM to keeper and worker has not said it twice, whichever hears it first: the
// worker may take its time, for those who use the mount.
func TestAskAndSignal(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"worker first": "beat mounted ready ask until:x ended",
		"keeper first": "beat mounted ready until:k ask until:x ended",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := run(t, script)
			b.ready(0)
			if name == "worker first" {
				b.seeIn("stderr", "the worker was told to stop")
			}
			b.signals <- unix.SIGTERM
			b.seeIn("stderr", `msg="told to stop"`)
			b.mark("k")
			time.Sleep(100 * time.Millisecond) // for what must not come
			b.mark("x")
			b.end(exitOK)
			for _, bad := range []string{"told to stop again", "killed", "without a worker"} {
				if strings.Contains(b.file("stderr"), bad) {
					t.Errorf("%q\n%s", bad, b.all())
				}
			}
		})
	}
}

// A worker that is late to drain is not sent SIGTERM, which would tell it to end the mount.
func TestLateDrainIsNoStop(t *testing.T) {
	t.Parallel()
	dir, cfg := scripted(t, "trap beat mounted ready hang", standby)
	cfg.Times.DrainWait = time.Second
	b := begin(t, dir, cfg)
	b.ready(0)
	b.signals <- unix.SIGHUP
	b.ready(1)
	b.never("BAD")
}

func TestAskOfOldKeeper(t *testing.T) {
	t.Parallel()
	if err := (&Link{}).AskStop(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
