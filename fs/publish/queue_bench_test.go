package publish

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// benchKeys are n keys in one of the shapes that hurt: see BenchmarkQueue.
func benchKeys(shape string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		switch shape {
		case "alike": // one directory, one extension
			keys[i] = fmt.Sprintf("data/train/%08d.jpg", i)
		case "pairs": // each waits for the one before
			keys[i] = fmt.Sprintf("data/train/%08d.%s", i/2, [...]string{"jpg", "txt"}[i%2])
		case "words": // each a class of its own
			keys[i] = fmt.Sprintf("data/train/%s", letters(i))
		case "dirs": // each a directory of its own, deep
			keys[i] = fmt.Sprintf("data/a/b/c/%02d/%05d/x.bin", i%100, i)
		}
	}
	return keys
}

func letters(i int) string {
	s := "word"
	for ; i > 0; i /= 20 {
		s += string(rune('g' + i%20))
	}
	return s
}

// BenchmarkQueue puts 100,000 items into a queue and has them carried out by Runs that do nothing. ns/op is for
// an item from Add to its end; B/item is what one that waits takes in memory, its key and closure not
// counted.
func BenchmarkQueue(b *testing.B) {
	const n = 100_000
	for _, shape := range []string{"alike", "pairs", "words", "dirs"} {
		b.Run(shape, func(b *testing.B) {
			keys := benchKeys(shape, n)
			run := func(ctx context.Context, order func(context.Context) error) error { return order(ctx) }
			var add, all time.Duration
			var bytes uint64
			for range b.N {
				q := NewQueue(QueueOptions{})
				before := heapBytes()
				start := time.Now()
				for i, k := range keys {
					q.Add(Item{ID: uint64(i + 1), Key: k, Seq: uint64(i + 1), Run: run})
				}
				add += time.Since(start)
				bytes = heapBytes() - before
				start = time.Now()
				q.Start()
				if err := q.WaitAll(b.Context(), n); err != nil {
					b.Fatal(err)
				}
				all += time.Since(start)
				if err := q.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(add.Nanoseconds())/float64(b.N)/n, "ns/Add")
			b.ReportMetric(float64(all.Nanoseconds())/float64(b.N)/n, "ns/item")
			b.ReportMetric(float64(bytes)/n, "B/item")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Many thousand with failures and renames, from many goroutines at once: for the race detector, and
// so that a scan of all items for each would be noticed.
func TestManyAtOnce(t *testing.T) {
	const n = 20_000
	q := NewQueue(QueueOptions{MinBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond})
	q.Start()
	var m sync.Mutex
	left := make(map[uint64]int) // failures to come, by m
	run := func(id uint64) func(context.Context, func(context.Context) error) error {
		return func(ctx context.Context, order func(context.Context) error) error {
			m.Lock()
			left[id]--
			fail := left[id] >= 0
			m.Unlock()
			if fail {
				return context.DeadlineExceeded
			}
			return order(ctx)
		}
	}
	var adders sync.WaitGroup
	for w := range 4 {
		adders.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := w; i < n; i += 4 {
				id := uint64(i + 1)
				if rnd.IntN(1000) == 0 {
					m.Lock()
					left[id] = 1 + rnd.IntN(3)
					m.Unlock()
				}
				q.Add(Item{ID: id, Key: fmt.Sprintf("d%d/%d.jpg", i%3, i), Seq: id, Ahead: i%7 == 0, Delete: i%11 == 0, Run: run(id)})
				switch rnd.IntN(50) {
				case 0:
					q.Rekey(1+rnd.Uint64N(id), fmt.Sprintf("d%d/latest", i%3))
				case 1:
					if err := q.Cancel(t.Context(), 1+rnd.Uint64N(id)); err != nil {
						t.Errorf("cancel: %v", err)
					}
				case 2:
					q.Hasten(1 + rnd.Uint64N(id))
				}
			}
		})
	}
	adders.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := q.WaitAll(ctx, uint64(n)); err != nil {
		t.Fatalf("%v: %v left", err, q.Counts())
	}
	(&naive{}).assertEmpty(t, q)
	closeQueue(t, q)
}

func (m *naive) assertEmpty(t *testing.T, q *Queue) {
	t.Helper()
	m.leftovers(q)
	for _, e := range m.errs {
		t.Error(e)
	}
}
