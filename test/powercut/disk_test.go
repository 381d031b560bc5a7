package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/powercut/record"
)

// An fsync on the file system is a flush of the disk, and what was synced was written before it.
func TestFsyncIsAFlush(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		d := New(t, Options{FS: fs})
		before := d.Position()
		f, err := os.Create(filepath.Join(d.Dir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(bytes.Repeat([]byte("x"), 100_000)); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		after := d.Position()
		var flushes, written int64
		last := record.Kind(0)
		events, err := d.disk.Events(before)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events[:after-before] {
			switch e.Kind {
			case record.Flush:
				flushes++
			case record.Write:
				written += e.Len
			}
			last = e.Kind
		}
		if flushes == 0 || written < 100_000 || last != record.Flush {
			t.Errorf("after an fsync of 100000 bytes: %d flushes, %d bytes written, the last event is a %v", flushes, written, last)
		}
		// fdatasync of bytes in place
		before = d.Position()
		if _, err := f.WriteAt([]byte("y"), 5); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		if events, err = d.disk.Events(before); err != nil {
			t.Fatal(err)
		}
		if len(events) < 2 || events[len(events)-1].Kind != record.Flush {
			t.Errorf("after an fdatasync: %v", events)
		}
	})
}

// writer writes files one after the other, each under a temporary name that it then gives up, and says when each is
// done; it syncs the file before the rename, and the directory after it, or not.
func writer(d *Disk, n int, sync bool) error {
	other, err := os.Create(filepath.Join(d.Dir(), "other"))
	if err != nil {
		return err
	}
	defer other.Close()
	for i := range n {
		tmp, name := filepath.Join(d.Dir(), "tmp"), filepath.Join(d.Dir(), fmt.Sprintf("file-%d", i%4))
		f, err := os.Create(tmp)
		if err != nil {
			return err
		}
		_, err = f.Write(content(i))
		if err == nil && sync {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if i >= 4 && i%2 == 0 { // a new name now and then: ext4 has a mercy for replacing
			if err := os.Remove(name); err != nil {
				return err
			}
		}
		if err := os.Rename(tmp, name); err != nil {
			return err
		}
		if sync {
			if err := syncDir(d.Dir()); err != nil {
				return err
			}
		}
		d.Ack("%d", i)
		// Somebody else syncs something else: names reach the disk.
		if _, err := other.WriteAt([]byte{byte(i)}, 0); err != nil {
			return err
		}
		if err := other.Sync(); err != nil {
			return err
		}
	}
	return nil
}

func content(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "content of file %8d;", i), 1000+i*37)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// intact tells whether the files that writer had promised are there, and whether each that is there
// is whole.
func intact(a *After) error {
	newest := map[int]int{}
	for _, s := range a.Acked {
		var i int
		if _, err := fmt.Sscan(s, &i); err != nil {
			return err
		}
		newest[i%4] = i
	}
	var bad []error
	for k := range 4 {
		b, err := os.ReadFile(filepath.Join(a.Dir, fmt.Sprintf("file-%d", k)))
		i, promised := newest[k]
		if errors.Is(err, os.ErrNotExist) {
			// The one after it removes the name first, in which it may have been cut.
			if promised && (i+4)%2 != 0 {
				bad = append(bad, fmt.Errorf("file-%d is not there, %d was promised", k, i))
			}
			continue
		}
		if err != nil {
			return err
		}
		if !promised {
			i = k
		}
		if !bytes.Equal(b, content(i)) && !(promised && bytes.Equal(b, content(i+4))) {
			bad = append(bad, fmt.Errorf("file-%d has %d bytes, not those of %d; zeros: %v", k, len(b), i, len(bytes.Trim(b, "\x00")) == 0))
		}
	}
	return errors.Join(bad...)
}

// A writer that renames without fsync is found out, with and without its files' names having survived.
func TestFindsMissingFsync(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		d := New(t, Options{FS: fs})
		if err := writer(d, 24, false); err != nil {
			t.Fatal(err)
		}
		losses := d.Losses(d.Cuts(Number(t, 40, 150), 1), intact)
		missing, empty := 0, 0
		for _, l := range losses {
			if strings.Contains(l.Err.Error(), "not there") {
				missing++
			}
			if strings.Contains(l.Err.Error(), "not those") {
				empty++
			}
		}
		t.Logf("%d files missing, %d not whole", missing, empty)
		if empty == 0 {
			t.Error("no cut shows a file that has its name and not its bytes")
		}
		if missing == 0 {
			t.Error("no cut shows a promised file that is not there")
		}
	})
}

// The same with fsync loses nothing, whatever the disk does with what was not flushed.
func TestFsyncKeeps(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		for _, unit := range []int64{4096, 512} {
			t.Run(fmt.Sprint(unit), func(t *testing.T) {
				d := New(t, Options{FS: fs, Unit: unit})
				if err := writer(d, 24, true); err != nil {
					t.Fatal(err)
				}
				begun, n := time.Now(), Number(t, 40, 150)
				d.Check(d.Cuts(n, 2), intact)
				t.Logf("%d cuts, %v each", n, time.Since(begun)/time.Duration(n))
			})
		}
	})
}
