package powercut

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// How programs save, call by call, between two of which the power is cut.

// torch replaces a checkpoint by a rename, some with, some without an fsync of the directory.
func (w *teller) torch() error {
	for i := 1; i <= 3; i++ {
		if err := w.write("model.pt.tmp", 100+i); err != nil {
			return err
		}
		if i > 1 { // the one before may be there still
			w.say("fact model.pt", at{"model.pt", 100 + i - 1}, at{"model.pt", 100 + i})
		}
		if err := w.rename("model.pt.tmp", "model.pt", i != 2, moved{"model.pt.tmp", 100 + i, "model.pt.tmp", "model.pt"}); err != nil {
			return err
		}
		if i != 2 {
			w.fact("model.pt", 100+i, "model.pt")
		} else if f, err := os.Open(w.path("model.pt")); err != nil {
			return err
		} else if err := errors.Join(f.Sync(), f.Close()); err != nil { // which takes the name along
			return err
		} else {
			w.fact("model.pt", 100+i, "model.pt")
		}
		w.fact("model.pt.tmp", 0)
	}
	return nil
}

// orbax writes a directory with another name, renames it, and marks it.
func (w *teller) orbax() error {
	for step := 1; step <= 2; step++ {
		tmp, final := fmt.Sprintf("%d.orbax-checkpoint-tmp", step), fmt.Sprint(step)
		if err := os.MkdirAll(w.path(tmp+"/params/d"), 0o755); err != nil {
			return err
		}
		var all []moved
		for j, name := range []string{"/params/d/array", "/params/manifest.ocdbt", "/_METADATA"} {
			i := 200 + 10*step + j
			if err := w.write(tmp+name, i); err != nil {
				return err
			}
			all = append(all, moved{tmp + name, i, tmp + name, final + name})
		}
		if err := w.rename(tmp, final, true, all...); err != nil {
			return err
		}
		for _, m := range all {
			w.after(final+"/commit_success.txt", 209+step, m.to, m.i)
		}
		if err := w.write(final+"/commit_success.txt", 209+step); err != nil {
			return err
		}
	}
	return nil
}

// staging renames a directory while a file in it is open, as a trainer does.
func (w *teller) staging() error {
	if err := os.Mkdir(w.path("tmp-checkpoint-1"), 0o755); err != nil {
		return err
	}
	var all []moved
	for j, name := range []string{"/model.safetensors", "/optimizer.pt"} {
		if err := w.write("tmp-checkpoint-1"+name, 300+j); err != nil {
			return err
		}
		all = append(all, moved{"tmp-checkpoint-1" + name, 300 + j, "tmp-checkpoint-1" + name, "checkpoint-1" + name})
	}
	f, err := os.Create(w.path("tmp-checkpoint-1/trainer.log"))
	if err != nil {
		return err
	}
	w.may(302, "checkpoint-1/trainer.log", "tmp-checkpoint-1/trainer.log")
	_, err = f.Write(content(302)[:1000])
	if err = errors.Join(err, w.rename("tmp-checkpoint-1", "checkpoint-1", true, all...)); err == nil {
		_, err = f.Write(content(302)[1000:])
	}
	if err = errors.Join(err, f.Sync()); err == nil {
		w.fact("trainer.log", 302, "checkpoint-1/trainer.log")
	}
	return errors.Join(err, f.Close(), syncDir(w.path("checkpoint-1")))
}

// deepspeed writes over the file that names the newest checkpoint, in place.
func (w *teller) deepspeed() error {
	for step := 1; step <= 3; step++ {
		dir := fmt.Sprintf("global_step%d", step)
		if err := os.Mkdir(w.path(dir), 0o755); err != nil {
			return err
		}
		for rank := range 2 {
			name := fmt.Sprintf("%s/rank_%d_states.pt", dir, rank)
			if err := w.write(name, 400+10*step+rank); err != nil {
				return err
			}
			w.after("latest", 400+step, name, 400+10*step+rank)
		}
		w.fact("latest", 0) // it is emptied
		if err := w.write("latest", 400+step); err != nil {
			return err
		}
	}
	return nil
}

// swap exchanges two names by a third.
func (w *teller) swap() error {
	if err := errors.Join(w.write("swap/a", 501), w.write("swap/b", 502)); err != nil {
		return err
	}
	w.may(501, "swap/tmp", "swap/b")
	w.may(502, "swap/a")
	w.fact("swap/a", 501, "swap/a", "swap/tmp", "swap/b")
	w.fact("swap/b", 502, "swap/a", "swap/b")
	for _, r := range [][2]string{{"a", "tmp"}, {"b", "a"}, {"tmp", "b"}} {
		if err := os.Rename(w.path("swap/"+r[0]), w.path("swap/"+r[1])); err != nil {
			return err
		}
	}
	if err := syncDir(w.path("swap")); err != nil {
		return err
	}
	w.fact("swap/a", 501, "swap/b")
	w.fact("swap/b", 502, "swap/a")
	return nil
}

// unsynced closes files without fsync, which may be held or lost afterwards, and never half published.
func (w *teller) unsynced() error {
	for i := range 4 {
		name := fmt.Sprintf("unsynced-%d", i)
		w.may(600+i, name)
		if err := os.WriteFile(w.path(name), content(600+i), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// osync writes with O_SYNC: what is there at the close is whole.
func (w *teller) osync() error {
	w.may(700, "o_sync")
	f, err := os.OpenFile(w.path("o_sync"), os.O_CREATE|os.O_WRONLY|os.O_SYNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content(700))
	if err = errors.Join(err, f.Close()); err == nil {
		w.fact("o_sync", 700, "o_sync")
	}
	return err
}

// empty makes directories in which nothing is, one of which gets another name.
func (w *teller) empty() error {
	if err := errors.Join(os.MkdirAll(w.path("empty/a"), 0o755), os.Mkdir(w.path("empty/b"), 0o755), os.Rename(w.path("empty/b"), w.path("empty/c")),
		os.Mkdir(w.path("removed"), 0o755), os.Remove(w.path("removed")), syncDir(w.path("empty")), syncDir(w.dir)); err != nil {
		return err
	}
	w.d.Ack("dir empty/a")
	w.d.Ack("dir empty/c")
	return nil
}

func (w *teller) clients() error {
	for _, f := range []func() error{w.empty, w.torch, w.orbax, w.staging, w.deepspeed, w.swap, w.unsynced, w.osync} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// staleness says what becomes of the index besides the cut.
type staleness string

const (
	indexAsIs  staleness = "index as it is"
	indexGone  staleness = "index deleted"
	indexStale staleness = "older index"
)

// clientsWorld is a machine on which clients have saved while the bucket took nothing.
type clientsWorld struct {
	*machine
	stale string // an index of before the last third
}

func newClientsWorld(t *testing.T, fs FS) *clientsWorld {
	t.Helper()
	m := newMachine(t, fs)
	away := m.away()
	x, err := m.start(m.d.Dir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	w := teller{m.d, x.Dir}
	err = os.Mkdir(w.path("swap"), 0o755)
	if err = errors.Join(err, w.clients(), x.kill()); err != nil {
		t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
	}
	away.Remove()
	c := &clientsWorld{machine: m, stale: filepath.Join(t.TempDir(), "index")}
	all := m.d.AtAcks("fact")
	old, err := m.d.At(record.Cut{At: all[len(all)/2].At, How: record.All})
	if err != nil {
		t.Fatal(err)
	}
	err = os.CopyFS(c.stale, os.DirFS(filepath.Join(old.Dir, "cache/index")))
	if err = errors.Join(err, old.Close()); err != nil {
		t.Fatal(err)
	}
	return c
}

// spoil makes of the index below dir what how says.
func (c *clientsWorld) spoil(dir string, how staleness) error {
	index := filepath.Join(dir, "cache/index")
	if how == indexAsIs {
		return nil
	}
	if err := os.RemoveAll(index); err != nil || how == indexGone {
		return err
	}
	return os.CopyFS(index, os.DirFS(c.stale))
}

// chosen are n of the cuts, evenly.
func chosen(cuts []record.Cut, n int) (out []record.Cut) {
	for i := range min(n, len(cuts)) {
		out = append(out, cuts[i*len(cuts)/min(n, len(cuts))])
	}
	return out
}

// What checkpoint writers had synced before a cut is published whole and in order after the next start, and
// nothing that is not whole is: with the index as the cut left it, without one, and with an older one.
func TestClientsPowerCut(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		c := newClientsWorld(t, fs)
		for n, how := range []staleness{indexAsIs, indexGone, indexStale} {
			t.Run(string(how), func(t *testing.T) {
				c.t = t
				cuts := c.d.Cuts(Number(t, 3, 30), uint64(10+n))
				last := c.d.Position()
				if how == indexStale { // it is older than the disk
					half := c.d.AtAcks("fact")
					cuts = slices.DeleteFunc(cuts, func(x record.Cut) bool { return x.At < half[len(half)/2].At })
				}
				first := c.d.AtAcks("may")[0].At
				cuts = slices.DeleteFunc(cuts, func(x record.Cut) bool { return x.At < first })
				if how != indexStale {
					cuts = append(cuts, chosen(c.d.AtAcks("fact"), Number(t, 3, 30))...)
				}
				cuts = append(cuts, record.Cut{At: last, How: record.None})
				for _, l := range c.d.Losses(cuts, func(a *After) error {
					if err := errors.Join(c.emptyBucket(), c.spoil(a.Dir, how)); err != nil {
						return err
					}
					return c.checkFacts(a.Dir, a.Acked, 2, nil)
				}) {
					t.Errorf("%v: %v", l.Cut, l.Err)
				}
			})
		}
	})
}
