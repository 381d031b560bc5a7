package cache_test

import (
	"testing"

	"github.com/leatfs/leatfs/cache"
)

// TestUsageLost: a file whose usage the index has lost, and not its record, counts again as what it takes, so that it can be evicted:
// after the next start, or as soon as its object is asked for.
func TestUsageLost(t *testing.T) {
	for _, how := range []string{"maintained", "opened"} {
		e := newEnv(t, 64<<20, 64)
		whole, wident := e.store.put("whole", 9<<20+5)
		o := e.fetched(wident)
		wid := o.ID()
		o.Release()
		part, pident := e.store.put("part", 12<<20)
		o = e.object(pident)
		e.stored(o, part, 4<<20)
		pid := o.ID()
		o.Release()
		eventually(t, "indexed", func() bool {
			r, err := e.index.Record(wid)
			u, uerr := e.index.Usage(pid)
			return err == nil && r.State.Complete() && uerr == nil && u.Bytes == 4<<20
		})
		used := e.Stats().Dirs[0].Used
		want := map[cache.ID]cache.Usage{}
		e.index.Freeze()
		e.close()
		for _, id := range []cache.ID{wid, pid} {
			u, err := e.index.Usage(id)
			if err != nil {
				t.Fatal(err)
			}
			want[id] = u
			e.index.LoseUsage(id)
		}
		e.index.Thaw()
		e.open()
		if how == "maintained" {
			if err := e.Maintain(t.Context()); err != nil {
				t.Fatal(err)
			}
		} else {
			e.object(wident).Release()
			e.object(pident).Release()
		}
		for id, w := range want {
			eventually(t, how+": the usage is in the index", func() bool { u, err := e.index.Usage(id); return err == nil && u.Bytes == w.Bytes })
		}
		if got := e.Stats().Dirs[0].Used; got != used {
			t.Errorf("%s: %d bytes used, want %d", how, got, used)
		}
		gets, _, _ := e.store.counts()
		o = e.object(wident)
		e.wantLent(o, whole)
		o.Release()
		o = e.object(pident)
		e.wantRead(o, part, 0, 4<<20)
		if n := o.ResidentBytes(); n != 4<<20 {
			t.Errorf("%s: %d bytes resident", how, n)
		}
		o.Release()
		if g, _, _ := e.store.counts(); g != gets {
			t.Errorf("%s: %d GETs", how, g-gets)
		}
	}
}
