package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leatfs/leatfs/cmd/leatfs/keeper"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/deadline"
	"github.com/leatfs/leatfs/objstore/file"
	"github.com/leatfs/leatfs/objstore/limit"
	"github.com/leatfs/leatfs/objstore/origin"
	"github.com/leatfs/leatfs/objstore/retry"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/objstore/stack"
	"github.com/leatfs/leatfs/objstore/stall"
)

// openTimeout bounds the first questions to the bucket, with all their tries.
const openTimeout = 30 * time.Second

// openOrigin reaches the bucket, so that what is wrong with it is said now. A store that
// throttles is asked again: many nodes mount at the same time. One that cannot be reached
// is asked twice more, within a second.
func (d *daemon) openOrigin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(openTimeout, d.cfg.originWait))
	defer cancel()
	for try := 1; ; try++ {
		s, err := d.cfg.open(ctx, d.known(), d.from.Mode != keeper.ModeMount)
		if err == nil {
			d.origin = s
			d.onClose(func() error {
				if d.store != nil {
					return d.store.Close()
				}
				return s.Close()
			})
			return nil
		}
		again := false
		switch objstore.KindOf(err) {
		case objstore.Throttled, objstore.Unavailable:
			again = true
		case objstore.Network:
			again = try < 3
		}
		if ctx.Err() != nil || !again {
			return d.openFailed(ctx, err)
		}
		wait := time.NewTimer(rand.N(min(time.Duration(try)*300*time.Millisecond, 3*time.Second)))
		select {
		case <-ctx.Done():
			wait.Stop()
			return d.openFailed(ctx, err)
		case <-wait.C:
		}
	}
}

// openFailed says of an open that ran out of time what it was waiting for.
func (d *daemon) openFailed(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	where := d.cfg.endpoint
	if where == "" {
		where = "the endpoint"
	}
	return fmt.Errorf("%s: %s gave no good answer within %v; check the endpoint and the network (last: %w)",
		d.cfg.url, where, min(openTimeout, d.cfg.originWait), err)
}

// known is what the process before found out of the bucket, nil when there was none. A mount is
// taken over without asking the network, which may be what the other one died of.
func (d *daemon) known() *s3.Known {
	if len(d.info.Origin) == 0 {
		return nil
	}
	k := new(s3.Known)
	if json.Unmarshal(d.info.Origin, k) != nil {
		return nil // another version's; it is asked again
	}
	return k
}

// open opens the bare origin. again says that it was open before, for the same mount: then one that
// is away for a moment fails requests, and not the start.
func (c *mountConfig) open(ctx context.Context, known *s3.Known, again bool) (objstore.Store, error) {
	if c.url.Scheme == origin.File {
		if again {
			return file.OpenLater(c.url.Path)
		}
		return file.Open(c.url.Path)
	}
	style := map[string]s3.Style{"auto": s3.StyleAuto, "on": s3.StylePath, "off": s3.StyleVirtualHost}
	return s3.Open(ctx, s3.Config{
		Bucket: c.url.Bucket, Prefix: c.url.Prefix, Region: c.region, Profile: c.profile, Endpoint: c.endpoint,
		Style: style[c.pathStyle], Anonymous: c.noSignRequest, RequesterPays: c.requesterPays, SSECKey: c.sseCustomerKeyFile,
		UserAgent: "leatfs/" + version, Known: known,
		Transport: s3.Transport{MaxConns: c.maxRequests + 64},
	})
}

// openStore puts the wrappers around the origin. --origin-timeout bounds what an application
// waits: the last try must end before it too, so tries begin only in its first part.
func (d *daemon) openStore(context.Context) error {
	c := d.cfg
	// Room for two tries that hear nothing.
	silence := min(10*time.Second, c.originWait*9/20)
	d.stack = stack.New(d.origin, stack.Options{
		Retry: retry.Options{Elapsed: c.originWait - silence, Log: d.log},
		Limit: limit.Options{Max: c.maxRequests, Start: min(48, c.maxRequests)},
		Stall: stall.Options{FirstByte: silence, Idle: silence, Listing: min(30*time.Second, c.originWait/2)},
	})
	d.store = deadline.New(d.stack, c.originWait, d.stack.Metrics.Progress)
	return nil
}
