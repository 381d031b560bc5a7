package publish

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A directory is renamed while a file in it is under way, which takes a while to stop: the marker under the new name still
// comes after it, by Add and by Rekey.
func TestMovedWhileRunning(t *testing.T) {
	for _, rekey := range []bool{false, true} {
		t.Run(fmt.Sprint(rekey), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c commits
				q := NewQueue(QueueOptions{Parallel: 8})
				slow := func(ctx context.Context, _ func(context.Context) error) error {
					<-ctx.Done()
					time.Sleep(time.Second) // a request that cannot be taken back
					return ctx.Err()
				}
				runs := 0
				data := Item{ID: 1, Key: "d/z.bin", Seq: 1, Run: func(ctx context.Context, order func(context.Context) error) error {
					if runs++; runs == 1 {
						return slow(ctx, order)
					}
					return c.run("data", time.Millisecond)(ctx, order)
				}}
				marker := Item{ID: 2, Key: "d/.metadata", Seq: 2, Run: c.run("marker", 0)}
				q.Add(data)
				q.Add(marker)
				q.Start()
				defer closeQueue(t, q)
				synctest.Wait()
				if rekey {
					q.Rekey(1, "e/z.bin")
					q.Rekey(2, "e/.metadata")
				} else {
					data.Key, data.Seq, marker.Key, marker.Seq = "e/z.bin", 3, "e/.metadata", 4
					q.Add(data)
					q.Add(marker)
				}
				if err := q.WaitAll(t.Context(), 4); err != nil {
					t.Fatal(err)
				}
				wantCommits(t, &c, "data", "marker")
			})
		})
	}
}
