package keeper

import (
	"log/slog"
	"os"
	"time"
)

// Config is what Run needs.
type Config struct {
	// Args is the worker's command line after the program's name: "mount" and so on.
	Args []string
	// Exe is the absolute path that the program was started by; an upgrade starts the file that
	// is at this path then. It is also the workers' name for themselves.
	Exe string
	// Self is the program as it was when the keeper started; /proc/self/exe when empty. Workers
	// are started from it until an upgrade has worked.
	Self string
	// Env is the workers' environment; the keeper's own without what is meant for the keeper
	// alone when nil.
	Env []string
	// Report is called once, in the goroutine of Run: with nil when the first worker is ready,
	// and else with why there is no mount. usage says that the command line or the configuration
	// is wrong.
	Report func(err error, usage bool)
	// Stderr is where the keeper logs and its workers' standard output and error go; os.Stderr
	// when nil. The log of a mount is put in its place by dup3.
	Stderr *os.File
	// Level is the least level that is logged.
	Level slog.Level
	// Signals, when not nil, is read in place of the process's own SIGTERM, SIGINT and SIGHUP.
	Signals <-chan os.Signal
	// Shared says that the process does something else too, as a test does. Otherwise it is made
	// small, and the last to be killed for want of memory if it may be: its workers have the score
	// that it had.
	Shared bool
	// OneGroup leaves workers in the keeper's process group; else each has its own, so that a
	// Ctrl-C at the terminal is for the keeper alone.
	OneGroup bool
	// Times are for tests; what is zero is as DefaultTimes.
	Times Times
}

// Times are the bounds of the keeper's patience.
type Times struct {
	Tick        time.Duration // time between looks at the workers; also the unit that HangAfter is counted in
	HangAfter   time.Duration // a worker that gives no sign of life for so long hangs
	QuitWait    time.Duration // from SIGQUIT to SIGKILL, and from there to the first complaint
	PrepareWait time.Duration // how long a standby may take to say Prepared
	DrainWait   time.Duration // how long a worker may take to drain, before SIGKILL
	LeaveWait   time.Duration // how long a worker may live after it said Ended, Failed or Drained, or a refuser after Drain
	StopWait    time.Duration // how long a worker may take to stop, before the keeper unmounts
	LinkGrace   time.Duration // how long a worker may live after it closed its link
	StableAfter time.Duration // a worker that was ready for so long did start well
	PauseMin    time.Duration // the first pause before another try; each next one is twice as long
	RefuseAfter int           // deaths in a row after which a worker refuses
	FailFor     time.Duration // for how long starts that say that they do not work are tried, before that
	FailPause   time.Duration // the longest pause between those
	RetryMin    time.Duration // the first pause before a real worker is tried in place of one that refuses
	RetryMax    time.Duration // the longest such pause
	StuckLog    time.Duration // time between log lines on a worker that does not die
}

// DefaultTimes are those of a real mount. StopWait is below the 90 s after which systemd kills.
func DefaultTimes() Times {
	return Times{
		Tick:        time.Second,
		HangAfter:   10 * time.Second,
		QuitWait:    2 * time.Second,
		PrepareWait: 30 * time.Second,
		DrainWait:   10 * time.Second,
		LeaveWait:   5 * time.Second,
		StopWait:    75 * time.Second,
		LinkGrace:   time.Second,
		StableAfter: 10 * time.Second,
		PauseMin:    50 * time.Millisecond,
		RefuseAfter: 6,
		FailFor:     30 * time.Second,
		FailPause:   time.Second,
		RetryMin:    10 * time.Second,
		RetryMax:    60 * time.Second,
		StuckLog:    30 * time.Second,
	}
}

// or fills what is zero from def.
func (t Times) or(def Times) Times {
	for _, x := range []struct{ p, def *time.Duration }{
		{&t.Tick, &def.Tick}, {&t.HangAfter, &def.HangAfter}, {&t.QuitWait, &def.QuitWait},
		{&t.PrepareWait, &def.PrepareWait}, {&t.DrainWait, &def.DrainWait}, {&t.LeaveWait, &def.LeaveWait},
		{&t.StopWait, &def.StopWait}, {&t.LinkGrace, &def.LinkGrace}, {&t.StableAfter, &def.StableAfter},
		{&t.PauseMin, &def.PauseMin}, {&t.RetryMin, &def.RetryMin}, {&t.RetryMax, &def.RetryMax},
		{&t.StuckLog, &def.StuckLog}, {&t.FailFor, &def.FailFor}, {&t.FailPause, &def.FailPause},
	} {
		if *x.p == 0 {
			*x.p = *x.def
		}
	}
	if t.RefuseAfter == 0 {
		t.RefuseAfter = def.RefuseAfter
	}
	return t
}
