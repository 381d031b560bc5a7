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
		// It failed at 0 and 1 s.
		if err := q.WaitOrFail(t.Context(), 2); err == nil || err.Error() != `"d/x" has to be published before "d/latest": denied` {
			t.Fatalf("WaitOrFail of what waits for it: %v", err)
		}
		start := time.Now()
		if err := q.Wait(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		wantCommits(t, &c, "x", "latest")
		if d := time.Since(start); d != 6*time.Second {
			t.Fatalf("tried again after %v more, want 2 s + 4 s", d)
		}
		if !slices.Equal(told, []uint32{1, 2, 3}) {
			t.Fatalf("told of tries %v", told)
		}
	})
}

// Two of one key: an earlier one that comes while the later waits in order goes first, and they do not
// wait for each other.
func TestEarlierOfTheSameKeyComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		q := NewQueue(QueueOptions{})
		defer closeQueue(t, q)
		q.Start()
		q.Add(Item{ID: 1, Key: "d/x.bin", Seq: 1, Run: c.run("x", time.Second)})
		q.Add(Item{ID: 2, Key: "d/latest", Seq: 10, Ahead: true, Run: c.run("later", 0)})
		synctest.Wait()
		if n := q.Counts(); n[StateOrdered] != 1 || n[StateRunning] != 1 {
			t.Fatalf("counts %v", n)
		}
		q.Add(Item{ID: 3, Key: "d/latest", Seq: 5, Run: c.run("earlier", 0)})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := q.Wait(ctx, 2); err != nil {
			t.Fatal(err)
		}
		wantCommits(t, &c, "x", "earlier", "later")
	})
}

// Directories take turns: few large ones elsewhere are not behind all the small ones.
func TestDirectoriesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		q := NewQueue(QueueOptions{Parallel: 4})
		defer closeQueue(t, q)
		for i := range uint64(1000) {
			q.Add(Item{ID: i + 1, Key: fmt.Sprintf("many/%d.jpg", i), Seq: i + 1, Run: c.run("", time.Second)})
		}
		for i := range uint64(8) {
			q.Add(Item{ID: i + 2000, Key: fmt.Sprintf("ck/%d.bin", i), Seq: i + 2000, Run: c.run("ck", time.Second)})
		}
		start := time.Now()
		q.Start()
		for i := range uint64(8) {
			if err := q.Wait(t.Context(), i+2000); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(start); d != 4*time.Second {
			t.Fatalf("8 of 1 s with half of 4 slots took %v", d)
		}
		if err := q.WaitAll(t.Context(), 3000); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 252*time.Second {
			t.Fatalf("1008 of 1 s with 4 slots took %v", d)
		}
	})
}

// What replaces a running one starts when that has returned; who waits, waits for the new one.
func TestReplaceRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		q := NewQueue(QueueOptions{})
		defer closeQueue(t, q)
		q.Start()
		q.Add(Item{ID: 1, Key: "x", Seq: 1, Run: func(ctx context.Context, _ func(context.Context) error) error {
			<-ctx.Done()
			time.Sleep(time.Second) // slow to give up
			c.add("gave up")
			return ctx.Err()
		}})
		one, all := make(chan error, 1), make(chan error, 1)
		go func() { one <- q.Wait(t.Context(), 1) }()
		go func() { all <- q.WaitAll(t.Context(), 1) }()
		synctest.Wait()
		q.Add(Item{ID: 1, Key: "x", Seq: 2, Run: c.run("new", time.Second)})
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		wantCommits(t, &c, "gave up")
		if len(one)+len(all) != 0 {
			t.Fatal("a wait ended though the new content is not published")
		}
		if err := errors.Join(<-one, <-all); err != nil {
			t.Fatal(err)
		}
		wantCommits(t, &c, "new")
	})
}

func TestDebounceAndHasten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		q := NewQueue(QueueOptions{})
		defer closeQueue(t, q)
		q.Start()
		later := time.Now().Add(time.Hour)
		q.Add(Item{ID: 1, Key: "d/x.tmp", Seq: 1, NotBefore: later, Run: c.run("x", 0)})
		q.Add(Item{ID: 2, Key: "e/y.tmp", Seq: 2, NotBefore: later, Run: c.run("y", 0)})
		q.Add(Item{ID: 3, Key: "d/latest", Seq: 3, NotBefore: later, Run: c.run("latest", 0)})
		synctest.Wait()
		if n := q.Counts(); n[StateDebounced] != 3 {
			t.Fatalf("counts %v", n)
		}
		if s := q.Snapshot(); len(s) != 3 || !s[0].Next.Equal(later) || s[0].State != StateDebounced {
			t.Fatalf("snapshot %+v", s)
		}
		q.Hasten(3) // and what must be published before it
		synctest.Wait()
		wantCommits(t, &c, "x", "latest")
		q.HastenAll()
		synctest.Wait()
		wantCommits(t, &c, "y")

		q.Add(Item{ID: 4, Key: "z.tmp", Seq: 4, NotBefore: time.Now().Add(2 * time.Second), Run: c.run("z", 0)})
		start := time.Now()
		if err := q.Wait(t.Context(), 4); err != nil || time.Since(start) != 2*time.Second {
			t.Fatalf("waited %v, %v; want 2 s", time.Since(start), err)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c commits
		q := NewQueue(QueueOptions{OnFail: func(uint64, uint32, time.Time, error) { t.Error("OnFail after Close") }})
		q.Start()
		q.Add(Item{ID: 1, Key: "d/x", Seq: 1, Run: func(ctx context.Context, _ func(context.Context) error) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		}})
		q.Add(Item{ID: 2, Key: "d/latest", Seq: 2, Ahead: true, Run: c.run("latest", 0)})
		one, all := make(chan error, 1), make(chan error, 1)
		go func() { one <- q.Wait(t.Context(), 2) }()
		go func() { all <- q.WaitAll(t.Context(), 2) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := q.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("close before the Run has returned: %v", err)
		}
		if err := <-one; !errors.Is(err, ErrClosed) {
			t.Fatalf("Wait: %v", err)
		}
		if err := <-all; !errors.Is(err, ErrClosed) {
			t.Fatalf("WaitAll: %v", err)
		}
		closeQueue(t, q)
		q.Add(Item{ID: 3, Key: "y", Seq: 3, Run: c.run("y", 0)})
		synctest.Wait()
		wantCommits(t, &c)
	})
}

// TestQueueRetry: Retry ends the backoff of what has failed, but no debounce, and none of others.
func TestQueueRetry(t *testing.T) {
	q := NewQueue(QueueOptions{MinBackoff: time.Hour})
	defer q.Close(context.Background())
	ran := make(chan uint64, 10)
	add := func(id uint64, notBefore time.Time) {
		tries := 0
		q.Add(Item{ID: id, Key: fmt.Sprint("k", id), Seq: id, NotBefore: notBefore, Run: func(context.Context, func(context.Context) error) error {
			ran <- id
			if tries++; tries == 1 {
				return errors.New("not yet")
			}
			return nil
		}})
	}
	add(1, time.Time{})
	add(2, time.Time{})
	add(3, time.Now().Add(time.Hour))
	q.Start()
	<-ran
	<-ran
	for len(ran) == 0 { // it may not have failed yet
		q.Retry(2)
		q.Retry(3)
		q.Retry(99)
		time.Sleep(time.Millisecond)
	}
	if id := <-ran; id != 2 {
		t.Errorf("%d ran", id)
	}
	if err := q.Wait(context.Background(), 2); err != nil {
		t.Error(err)
	}
	q.Retry(3)
	time.Sleep(10 * time.Millisecond)
	if len(ran) > 0 {
		t.Errorf("%d ran", <-ran)
	}
}

// TestQueueRenamedWhileRunning: what comes after an item that is renamed while it runs waits for it under its
// new name, also before its Run has returned.
func TestQueueRenamedWhileRunning(t *testing.T) {
	for _, rekey := range []bool{false, true} {
		q := NewQueue(QueueOptions{})
		var c commits
		release, began := make(chan struct{}), make(chan struct{})
		data := Item{ID: 1, Key: "d/data.bin", Seq: 1, Run: func(ctx context.Context, order func(context.Context) error) error {
			if err := order(ctx); err != nil {
				return err
			}
			close(began)
			<-release // a commit that cannot be called back
			return nil
		}}
		q.Add(data)
		q.Start()
		<-began
		if rekey {
			q.Rekey(1, "e/data.bin")
		}
		data.Key, data.Seq = "e/data.bin", 3
		data.Run = func(ctx context.Context, order func(context.Context) error) error {
			if err := order(ctx); err != nil {
				return err
			}
			c.add("e/data.bin")
			return nil
		}
		q.Add(data)
		q.Add(Item{ID: 2, Key: "e/.metadata", Seq: 4, Run: func(ctx context.Context, order func(context.Context) error) error {
			if err := order(ctx); err != nil {
				return err
			}
			c.add("e/.metadata")
			return nil
		}})
		time.Sleep(20 * time.Millisecond)
		close(release)
		for _, id := range []uint64{1, 2} {
			if err := q.Wait(context.Background(), id); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"e/data.bin", "e/.metadata"}; !slices.Equal(c.keys, want) {
			t.Errorf("rekey %v: %q, want %q", rekey, c.keys, want)
		}
		// One that is taken out holds up nothing.
		if err := q.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if len(q.order.dirs) != 0 {
			t.Errorf("%d directories stay in the order", len(q.order.dirs))
		}
	}
}
