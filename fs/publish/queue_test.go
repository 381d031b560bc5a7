package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// commits records the order in which keys were committed.
type commits struct {
	mu   sync.Mutex
	keys []string // guarded by mu
}

func (c *commits) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = append(c.keys, key)
}

func (c *commits) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keys
	c.keys = nil
	return k
}

// run returns a Run that takes that long to upload, and then commits key.
func (c *commits) run(key string, upload time.Duration) func(context.Context, func(context.Context) error) error {
	return func(ctx context.Context, order func(context.Context) error) error {
		if err := pause(ctx, upload); err != nil {
			return err
		}
		if err := order(ctx); err != nil {
			return err
		}
		c.add(key)
		return nil
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func closeQueue(t *testing.T, q *Queue) {
	t.Helper()
	if err := q.Close(t.Context()); err != nil && t.Context().Err() == nil {
		t.Fatalf("close: %v", err)
	}
}

func wantCommits(t *testing.T, c *commits, want ...string) {
	t.Helper()
	if got := c.take(); !slices.Equal(got, want) {
		t.Fatalf("committed %q, want %q", got, want)
	}
}

// A marker that is small waits for a shard that takes long, also when there is one slot only; the
// shard's upload does not hold up another directory.
func TestMarkerWaits(t *testing.T) {
	for _, parallel := range []int{1, 2, 64} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c commits
				q := NewQueue(QueueOptions{Parallel: parallel})
				q.Add(Item{ID: 1, Key: "ck/a.bin", Seq: 1, Run: c.run("a", time.Minute)})
				q.Add(Item{ID: 2, Key: "ck/b.bin", Seq: 2, Run: c.run("b", time.Second), Ahead: true})
				q.Add(Item{ID: 3, Key: "ck/.metadata", Seq: 3, Run: c.run("meta", time.Second), Ahead: true})
				q.Start()
				if err := q.WaitAll(t.Context(), 3); err != nil {
					t.Fatal(err)
				}
				got := c.take()
				if len(got) != 3 || got[2] != "meta" {
					t.Fatalf("committed %q", got)
				}
				if n := q.Counts(); n.Total() != 0 {
					t.Fatalf("left: %v", n)
				}
				closeQueue(t, q)
			})
		})
	}
}

// An item that fails holds up what must come after it and nothing else, and is tried again.
func TestFailureBlocksItsDirectoryOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		fails := 3
		var told []uint32
		q := NewQueue(QueueOptions{Random: func() float64 { return 1 }, OnFail: func(id uint64, tries uint32, next time.Time, err error) {
			told = append(told, tries)
		}})
		defer closeQueue(t, q)
		q.Add(Item{ID: 1, Key: "d/x", Seq: 1, Run: func(ctx context.Context, order func(context.Context) error) error {
			if fails--; fails >= 0 {
				return errors.New("denied")
			}
			c.add("x")
			return nil
		}})
		q.Add(Item{ID: 2, Key: "d/latest", Seq: 2, Run: c.run("latest", 0)})
		q.Add(Item{ID: 3, Key: "e/latest", Seq: 3, Run: c.run("other", 0)})
		q.Start()
		if err := q.WaitOrFail(t.Context(), 1); err == nil || err.Error() != "denied" {
			t.Fatalf("WaitOrFail: %v", err)
		}
		synctest.Wait()
		wantCommits(t, &c, "other")
		start := time.Now()
		if err := q.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		wantCommits(t, &c, "x", "latest")
		if d := time.Since(start); d != 7*time.Second {
			t.Fatalf("tried again after %v in all, want 1 s + 2 s + 4 s", d)
		}
		if !slices.Equal(told, []uint32{1, 2, 3}) {
			t.Fatalf("told of tries %v", told)
		}
	})
}
