// Package keeper keeps a mount alive while the processes that serve it die.
//
// The keeper is a small process that holds the connection to the kernel, the session file and the
// control socket, as descriptors that it does not look into. It starts a worker, which does
// everything else, and another one when that dies; at SIGHUP it puts a worker of a new program in
// its place. The package has both ends: Run is the keeper, Link is what a worker has of it.
//
// # Messages
//
// Each worker has a socket pair with its keeper (SOCK_SEQPACKET): packets of JSON, descriptors
// beside them. The first, "start", lies in the socket before the worker's process is there; it has
// the mode, the news and the descriptors. Then:
//
//	mode      the worker says                                          the keeper says
//	mount     (mounts) mounted, ready | failed                         stop
//	takeover  mounted (what changed), ready | failed | ended           drain, stop
//	standby   prepared | failed; after go as takeover                  go, then drain, stop
//	refuse    ready                                                    drain, stop
//
// and at any time beat, status, ask (to be stopped), log, drained or ended before it exits, and news from
// the keeper. A
// keeper lives on while its workers are upgraded, so each side leaves what it does not know alone.
// What a worker sent before it died counts: a death is judged when its socket is empty.
//
// # States
//
// There is at most one worker on the mount (cur) and one standby (next), which touches neither
// mount nor index. A worker is gone when its process was waited for, not before: one in
// uninterruptible wait is waited for, and the status says so.
//
//	starting -> ready -> draining | stopping -> leaving -> exit
//	     any of them -> dying (SIGQUIT for one that hangs) -> killed
//
// After each event the loop asks what is next (keeper.act), in this order:
//
//	told to stop, or the mount is gone   kill the standby, stop the worker; when both are gone,
//	                                     take the mount away if nobody has, and end
//	a standby is prepared                have the worker drain; when it is gone, go
//	no worker, no pause                  start one: mount, takeover or refuse
//
// # Deaths
//
// A worker that crashed (an exit code that is not 0, SIGSEGV and its like, SIGKILL while the
// kernel killed for want of memory) or hung is blamed: the next worker is told, and counts it
// against the requests that were being executed. One that was killed from outside is not, and is
// replaced at once. What comes after which pause is decided by backoff.
//
// # Programs
//
// A program is held open, and workers are started from what is held: what lies at its path only
// counts for an upgrade. If the new worker dies before it is ready, the program before it takes
// over, with the command line that its last worker resolved.
//
// # Concurrency
//
// One goroutine, that of Run, has all state and takes no lock. Each worker has a goroutine that
// reads its socket and one that waits for its process; they, and timers, send functions to the
// loop over the channel events, and end when quit is closed. Run waits for those of the workers.
// In a Link, mu guards what was heard, sending a message and its deadline; they are not held
// together.
package keeper
