package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
	"github.com/leatfs/leatfs/fs/fuse"
	"github.com/leatfs/leatfs/fs/session"
)

// refuse answers EIO to every request, until the keeper has another try at a real worker. What the
// mount is, and where, the session says. What cannot be had (the session, the control socket, the
// log) it does without.
func refuse(ctx context.Context, link *keeper.Link, commands <-chan keeper.Command) error {
	started := time.Now()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)) // the keeper's, and so the mount's
	from := link.Start()
	if from.Device == nil {
		err := fmt.Errorf("the keeper holds no mount to refuse requests of")
		link.Failed(err, false)
		return toldError{err}
	}
	var sess *session.Session
	var info session.Info // empty when it cannot be read: then the unmounting is the keeper's
	if from.Session != nil {
		var err error
		if sess, err = session.Attach(from.Session); err != nil {
			log.Error("the session of the mount cannot be read", "err", err)
		} else if info, err = sess.Info(); err != nil {
			log.Error("the session of the mount does not say what it is of", "err", err)
		}
	}
	r, err := fuse.NewRefuser(from.Device, sess, log)
	if err != nil {
		link.Failed(err, false)
		return toldError{err}
	}
	if from.Control != nil {
		if l, err := takeListener(from.Control); err == nil {
			ctl := startControl(l, false, func() any {
				return Status{Mountpoint: info.Mountpoint, Source: info.Source, Version: version, WorkerPID: os.Getpid(), Started: started,
					State: stateRefusing, Keeper: keeperStatus(link.News())}
			}, nil, nil, log)
			defer ctl.stop(true)
		}
	}
	log.Error("the daemon of this mount keeps dying: requests are answered EIO until one lives", "mountpoint", info.Mountpoint, "last", from.LastDeath)
	link.StatusText("the daemon keeps dying: requests are answered EIO")
	ended := make(chan bool, 1)
	go func() { ended <- r.Serve() }()
	if err := link.Ready(nil); err != nil {
		log.Error("the keeper does not listen", "err", err)
	}
	// unmount tells whether the mount is out of sight.
	unmount := func() bool {
		err := errors.New("the session does not say what to unmount")
		if info.Mountpoint != "" {
			err = fuse.UnmountOwn(info.Mountpoint, info.Dev, true)
		}
		if err != nil {
			log.Error("the unmounting is left to others", "err", err)
		}
		return err == nil
	}
	for {
		select {
		case <-ended:
			// Unmounted, or aborted: then what is left of it serves nobody.
			if info.Mountpoint != "" && fuse.OwnDead(info.Mountpoint, info.Dev) {
				unmount()
			}
			link.Ended()
			return nil
		case <-ctx.Done():
			r.Leave()
			<-ended
			return nil
		case command, ok := <-commands:
			switch {
			case !ok: // the keeper is gone: nobody will do better
				commands = nil
			case command == keeper.Stop:
				gone := unmount()
				r.Leave()
				<-ended
				if gone { // otherwise the keeper takes it away
					link.Ended()
				}
				return nil
			default:
				r.Leave()
				<-ended
				link.Drained()
				return nil
			}
		}
	}
}
