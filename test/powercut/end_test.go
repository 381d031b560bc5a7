package powercut

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// end unmounts in order, without publishing, and waits until leatfs has ended.
func (m *machine) end(x *daemon) error {
	if _, err := m.run(x, m.binary, "umount", "--no-drain", m.mnt); err != nil {
		return errors.Join(err, x.kill())
	}
	if err := x.cmd.Wait(); err != nil {
		return fmt.Errorf("leatfs ended after the unmount: %w", err)
	}
	return nil
}

// After an unmount in order nothing is held, whether or not anything was synced: few files, and so many that the disk is
// forced as a whole. What was removed stays so, and the marker that was synced by itself comes after its data.
func TestUnmountKeepsAll(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		for _, n := range []int{3, 80} {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				m := newMachine(t, fs)
				x, err := m.start(m.d.Dir(), 1)
				if err != nil {
					t.Fatal(err)
				}
				w := &teller{m.d, x.Dir}
				work := func() error {
					// Something is in the bucket that is then removed.
					if err := w.write("old", 1); err != nil {
						return err
					}
					if _, err := m.sync(x); err != nil {
						return err
					}
					away := m.away()
					defer away.Remove()
					if err := errors.Join(os.Remove(w.path("old")), os.Mkdir(w.path("d"), 0o755)); err != nil {
						return err
					}
					for i := range n {
						name := fmt.Sprintf("d/f-%d.bin", i)
						w.may(2+i, name)
						if err := os.WriteFile(w.path(name), content(2+i), 0o644); err != nil {
							return err
						}
						w.after("d/latest", 0, name, 2+i)
					}
					if err := w.write("d/latest", 0); err != nil {
						return err
					}
					for i := range n { // labels are written anew, and keep the order
						if err := os.Chmod(w.path(fmt.Sprintf("d/f-%d.bin", i)), 0o600); err != nil {
							return err
						}
					}
					return m.end(x)
				}
				if err := work(); err != nil {
					t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
				}
				w.fact("old", 0)
				m.d.Ack("gone old")
				for i := range n {
					name := fmt.Sprintf("d/f-%d.bin", i)
					w.fact(name, 2+i, name)
				}
				m.d.Check([]record.Cut{{At: m.d.Position(), How: record.None}}, func(a *After) error {
					return m.checkFacts(a.Dir, a.Acked, 2, func(s *settled) error {
						if len(s.held) > 0 {
							return fmt.Errorf("held: %v", s.held)
						}
						return nil
					})
				})
			})
		}
	})
}

// The power is cut a second time while what the first cut left is taken up, or is published: nothing that was promised
// before the first is lost.
func TestSecondCut(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		m := newMachineSize(t, fs, 1<<30)
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
		r := rand.New(rand.NewPCG(40, 1))
		all := m.d.AtAcks("fact")
		firsts := append(chosen(all[len(all)/2:], Number(t, 1, 5)), record.Cut{At: m.d.Position(), How: record.Subset, Seed: 3})
		for n, c := range firsts {
			a, err := m.d.At(c)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			second := *m
			second.d = m.d.From(c)
			if n%2 == 1 { // the index is lost too
				if err := os.RemoveAll(filepath.Join(second.d.Dir(), "cache/index")); err != nil {
					t.Fatal(err)
				}
			}
			began := second.d.Position()
			x, err := second.start(second.d.Dir(), 2)
			if err != nil {
				t.Fatalf("%v: %v", c, err)
			}
			time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
			if err := x.kill(); err != nil {
				t.Fatal(err)
			}
			away.Remove()
			cuts := slices.DeleteFunc(second.d.Cuts(Number(t, 3, 20), uint64(50+n)), func(c record.Cut) bool { return c.At < began })
			cuts = append(cuts, record.Cut{At: second.d.Position(), How: record.None})
			second.d.Check(cuts, func(b *After) error {
				if err := m.emptyBucket(); err != nil {
					return err
				}
				if err := second.checkFacts(b.Dir, a.Acked, 3, nil); err != nil {
					return fmt.Errorf("first %v: %w", c, err)
				}
				return nil
			})
			away = m.away()
		}
	})
}

// A directory that was found again by its label, because the index was lost, does not come back when it is removed
// and the index is lost once more.
func TestRemovedDirectoryStaysSo(t *testing.T) {
	m := newMachine(t, Ext4)
	away := m.away()
	x, err := m.start(m.d.Dir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	w := teller{m.d, x.Dir}
	err = errors.Join(os.Mkdir(w.path("d"), 0o755), os.Mkdir(w.path("d/e"), 0o755), w.write("d/f", 1), syncDir(w.path("d")))
	if err = errors.Join(err, x.kill()); err != nil {
		t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
	}
	away.Remove()
	m.d.Check([]record.Cut{{At: m.d.Position(), How: record.None}}, func(a *After) error {
		for boot := 2; boot <= 3; boot++ {
			if err := os.RemoveAll(filepath.Join(a.Dir, "cache/index")); err != nil {
				return err
			}
			x, err := m.start(a.Dir, boot)
			if err != nil {
				return err
			}
			_, err = m.sync(x)
			if boot == 2 {
				if _, serr := os.Stat(x.Dir + "/d/e"); serr != nil {
					err = errors.Join(err, fmt.Errorf("found again by its label: %w", serr))
				}
				err = errors.Join(err, os.RemoveAll(x.Dir+"/d"))
				_, serr := m.sync(x)
				err = errors.Join(err, serr)
			} else if _, serr := os.Stat(x.Dir + "/d"); !errors.Is(serr, os.ErrNotExist) {
				err = errors.Join(err, fmt.Errorf("it was removed, and is there again: %v", serr))
			}
			if err = errors.Join(err, x.kill()); err != nil {
				return fmt.Errorf("boot %d: %w\nleatfs said:\n%s", boot, err, x.log)
			}
		}
		b, err := m.bucketNow()
		if err == nil && len(b) > 0 {
			err = fmt.Errorf("in the bucket: %v", b)
		}
		return err
	})
}
