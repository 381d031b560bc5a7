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
		s, err := d.openAny(ctx)
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

// openAny opens the origin, or goes on with it: a mount is taken over without asking the network or
// the disk, which may be what the other process died of, or be away for a moment.
func (d *daemon) openAny(ctx context.Context) (objstore.Store, error) {
	if d.from.Mode != keeper.ModeMount && d.cfg.url.Scheme == origin.File {
		known := recall[file.Known](d.info.Origin)
		if known == nil {
			known = new(file.Known)
		}
		return file.OpenLater(d.cfg.url.Path, *known)
	}
	return d.cfg.open(ctx, recall[s3.Known](d.info.Origin))
}

// recall is what the process before found out of the origin, nil when nothing is known.
func recall[T any](b json.RawMessage) *T {
	k := new(T)
	if len(b) == 0 || json.Unmarshal(b, k) != nil {
		return nil // another version's; it is asked again
	}
	return k
}

// remember is what recall gets.
func (d *daemon) remember() (json.RawMessage, error) {
	switch s := d.origin.(type) {
	case *s3.Store:
		return json.Marshal(s.Known())
	case *file.Store:
		known, err := s.Known()
		if err != nil {
			return nil, err
		}
		return json.Marshal(known)
	}
	return nil, nil
}

// open opens the bare origin.
func (c *mountConfig) open(ctx context.Context, known *s3.Known) (objstore.Store, error) {
	if c.url.Scheme == origin.File {
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
