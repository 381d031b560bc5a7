package main

import (
	"os"
	"time"

	"github.com/leatfs/leatfs/fs/fuse"
)

// endMount unmounts, if it was not somebody else who did, waits for the last request, and publishes what
// is left for a while.
func (d *daemon) endMount() error {
	defer func() { time.AfterFunc(closeWait, d.abandon) }() // the process ends, and the timer with it
	if d.leaving {
		d.session.Leave()
		<-d.served
		return nil
	}
	select {
	case <-d.served:
		// Aborted, and not unmounted: what is left of it serves nobody.
		var err error
		if fuse.OwnDead(d.cfg.mountpoint, d.device()) {
			err = fuse.UnmountOwn(d.cfg.mountpoint, d.device(), true)
		}
		d.drain()
		return err
	default:
	}
	err := fuse.UnmountOwn(d.cfg.mountpoint, d.device(), false)
	if err != nil {
		d.log.Warn("the mount is in use; it is out of sight now and ends when its last user does", "err", err)
		if err := fuse.UnmountOwn(d.cfg.mountpoint, d.device(), true); err != nil {
			return err
		}
	}
	<-d.served
	d.drain()
	return nil
}

// device is the device number of the mount, empty when it is not known.
func (d *daemon) device() string {
	info, err := d.memory.Info()
	if err != nil {
		return ""
	}
	return info.Dev
}

// closeWait is how long the daemon may take, after the mount has ended, to put its state away.
// It takes a second on a busy disk.
const closeWait = 10 * time.Second

// abandon ends the process. A disk that fails can keep the index from being closed for ever;
// what it has not written is found in its log at the next start, as after kill -9.
func (d *daemon) abandon() {
	d.log.Error("a cache directory cannot be written, so the daemon ends without closing it", "dirs", d.cfg.cacheDirs)
	os.Exit(exitError)
}
