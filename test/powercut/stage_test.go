package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cache/cachetest"
)

// openCache opens a cache in dir as after a boot of the machine; the index is lost.
func openCache(dir, boot string) (*cache.Cache, error) {
	pool, err := buf.New(buf.Options{Cap: 64 * buf.Size})
	if err != nil {
		return nil, err
	}
	return cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: filepath.Join(dir, "cache"), Size: 256 << 20}}, Index: cachetest.NewIndex(),
		Pool: pool, ReserveFree: -1, BootID: boot, Log: slog.New(slog.DiscardHandler)})
}

// stager makes staging files and says what was promised of them:
//
//	synced ID NAME SEQ   it is there under this name, with content(SEQ)
//	moving ID NAME       it may have this name too from now on
//	replaced ID BY       it may be gone from now on, if the other has its name and is whole
type stager struct {
	d *Disk
	c *cache.Cache
}

func stageLabel(name string, seq int) cache.StageLabel {
	return cache.StageLabel{Origin: "test://bucket", Ino: uint64(seq) + 2, Parent: 1, Name: name, Mode: unix.S_IFREG | 0o644, Seq: uint64(seq)}
}

// make makes a file, writes it and syncs it.
func (s stager) make(name string, seq int) (cache.ID, error) {
	id, f, err := s.c.NewStage(stageLabel(name, seq))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data := content(seq)
	for len(data) > 0 {
		n := min(len(data), 10_000)
		if _, err := f.Write(data[:n]); err != nil {
			return 0, err
		}
		data = data[n:]
	}
	if seq%2 == 0 {
		err = f.Sync()
	} else {
		err = unix.Fdatasync(int(f.Fd()))
	}
	s.d.Ack("synced %d %s %d", id, name, seq)
	return id, err
}

// rename gives it another name.
func (s stager) rename(id cache.ID, name string, seq int) error {
	s.d.Ack("moving %d %s", id, name)
	return s.c.RelabelStage(id, stageLabel(name, seq))
}

// stage is what is known of one staging file from what was promised.
type stage struct {
	names []string // one of them
	seq   int
	by    cache.ID // what replaced it, if anything may have
}

func promised(acked []string) (map[cache.ID]*stage, error) {
	out := map[cache.ID]*stage{}
	for _, line := range acked {
		w := strings.Fields(line)
		if len(w) < 3 {
			return nil, fmt.Errorf("what is promised by %q?", line)
		}
		n, err := strconv.ParseUint(w[1], 10, 64)
		id := cache.ID(n)
		if s := out[id]; err == nil && s == nil && w[0] != "synced" {
			err = errors.New("it was not synced before")
		}
		switch {
		case err != nil:
		case w[0] == "synced":
			s := &stage{names: []string{w[2]}}
			s.seq, err = strconv.Atoi(w[3])
			out[id] = s
		case w[0] == "moving":
			out[id].names = append(out[id].names, w[2])
		case w[0] == "replaced":
			n, err = strconv.ParseUint(w[2], 10, 64)
			out[id].by = cache.ID(n)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return out, nil
}

// checkStages looks whether the staging files are as they were promised to be.
func checkStages(a *After) error {
	want, err := promised(a.Acked)
	if err != nil || len(want) == 0 {
		return err // the cache may not have been made yet
	}
	c, err := openCache(a.Dir, "boot-2")
	if err != nil {
		return err
	}
	defer c.Close()
	var errs []error
	labels := map[cache.ID]cache.StageLabel{}
	err = c.WalkStages(func(id cache.ID, l cache.StageLabel, err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		labels[id] = l
		return true
	})
	if err != nil {
		return err
	}
	whole := func(id cache.ID, s *stage) error {
		l, ok := labels[id]
		if !ok {
			return fmt.Errorf("staging file %d is not there, promised: %+v", id, *s)
		}
		if int(l.Seq) != s.seq || !bytes.Contains([]byte(" "+strings.Join(s.names, " ")+" "), []byte(" "+l.Name+" ")) {
			return fmt.Errorf("staging file %d is labelled %q, %d; promised: %+v", id, l.Name, l.Seq, *s)
		}
		f, err := c.OpenStage(id, os.O_RDONLY)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err == nil && !bytes.Equal(b, content(s.seq)) {
			err = fmt.Errorf("staging file %d has %d bytes, not those that were synced: %+v", id, len(b), *s)
		}
		return err
	}
	for id, s := range want {
		if _, ok := labels[id]; !ok && s.by != 0 {
			by := want[s.by]
			if err := whole(s.by, by); err != nil {
				errs = append(errs, fmt.Errorf("%d was replaced: %w", id, err))
			} else if name := labels[s.by].Name; name != s.names[len(s.names)-1] {
				errs = append(errs, fmt.Errorf("%d was replaced by %d, which is called %s", id, s.by, name))
			}
			continue
		}
		if err := whole(id, s); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func newStager(t *testing.T, fs FS) stager {
	t.Helper()
	d := New(t, Options{FS: fs})
	c, err := openCache(d.Dir(), "boot-1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return stager{d, c}
}

// A staging file that was synced is there, with its label and its bytes, after any cut. One that was renamed has the old
// or the new name, the new one after its next fsync. Of two of which one replaced the other one is always there.
func TestStages(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		s := newStager(t, fs)
		for i := range 12 {
			old, err := s.make(fmt.Sprintf("f-%d", i), i)
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("g-%d", i)
			if err := s.rename(old, name, i); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				if err := s.c.SyncStage(old, false); err != nil {
					t.Fatal(err)
				}
				s.d.Ack("synced %d %s %d", old, name, i)
			}
			if i%3 == 0 {
				continue
			}
			id, err := s.make(fmt.Sprintf("tmp-%d", i), 100+i)
			if err != nil {
				t.Fatal(err)
			}
			s.d.Ack("replaced %d %d", old, id)
			if err := s.rename(id, name, 100+i); err != nil {
				t.Fatal(err)
			}
			if err := s.c.RemoveStage(old); err != nil {
				t.Fatal(err)
			}
			if i%4 == 1 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		s.d.Check(append(s.d.AtAcks("synced"), s.d.Cuts(Number(t, 20, 200), 4)...), checkStages)
	})
}

// A rename is there after fsync of the directory, which is SyncStaging (with the index's Sync, that no label needs).
func TestRenameAndSyncStaging(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		s := newStager(t, fs)
		for i := range 12 {
			id, err := s.make(fmt.Sprintf("f-%d", i), i)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.c.SyncStaging(); err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("g-%d", i)
			if err := s.rename(id, name, i); err != nil {
				t.Fatal(err)
			}
			if err := s.c.SyncStaging(); err != nil {
				t.Fatal(err)
			}
			s.d.Ack("synced %d %s %d", id, name, i)
		}
		s.d.Check(append(s.d.AtAcks("synced"), s.d.Cuts(Number(t, 10, 200), 5)...), checkStages)
	})
}
