package meta

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk mounts an ext4 of the given MiB and returns where.
func smallDisk(t *testing.T, mib int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, mib<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("no loop mounts here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullDisk fills the disk under an index that is being written to, in a process of its
// own, since it would die of a signal.
func TestFullDisk(t *testing.T) {
	for _, how := range []string{"steadily", "at once"} {
		t.Run(how, func(t *testing.T) {
			disk := smallDisk(t, 800)
			for round := range 2 {
				cmd := child("flood", disk, how)
				if out, err := cmd.Output(); err != nil || !strings.HasSuffix(string(out), "good\n") {
					t.Fatalf("round %d: %v\n%s", round, err, out)
				}
			}
		})
	}
}

// childFlood is one round of TestFullDisk.
func childFlood(args []string) error {
	disk, how := args[0], args[1]
	dir, filler := filepath.Join(disk, "index"), filepath.Join(disk, "filler")
	opt := Options{Dir: dir, Floor: 300 << 20, Ballast: 64 << 20}
	db, err := Open(opt)
	if err != nil {
		return err
	}
	r, err := db.Origin("o", "")
	if err != nil {
		return err
	}
	wrote := 0
	first := time.Now().UnixNano() // no page is as it was in the round before: that would be no write
	write := func() error {
		p := fillPage(wrote%100*1000, 1000)
		for i := range p.Objects {
			p.Objects[i].Size = first + int64(wrote)
		}
		wrote++
		_, err := db.Merge(r.Ino, p)
		return err
	}
	for range 40 {
		if err := write(); err != nil {
			return fmt.Errorf("while there is space: %w", err)
		}
	}
	if how == "at once" {
		// Nobody can be quicker than that, so badger must be at rest.
		quiet(db)
	}
	done := make(chan error, 1)
	go func() { done <- fillDisk(filler, how) }()
	filled := false
	var since time.Time
	for end := time.Now().Add(30 * time.Second); !filled || time.Since(since) < 2*time.Second; {
		if time.Now().After(end) {
			return errors.New("the disk does not get full")
		}
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("filler: %w", err)
			}
			filled, since = true, time.Now()
		default:
		}
		if err := write(); err != nil && !errors.Is(err, ErrNoSpace) {
			return fmt.Errorf("on a full disk: %w", err)
		} else if err == nil && filled && time.Since(since) > time.Second {
			// It looks every minLook; on a busy machine its turn may come much later.
			return errors.New("wrote to a full disk")
		}
		n := 0
		if err := db.Readdir(r.Ino, "", 1000, func(Inode) bool { n++; return true }); err != nil || n != 1000 {
			return fmt.Errorf("reading: %d entries, %w", n, err)
		}
	}
	if !filled || !db.FreeSpaceLow() {
		return fmt.Errorf("filled %v, low %v", filled, db.FreeSpaceLow())
	}
	fmt.Println("full after", wrote, "pages")
	if _, err := Open(opt); err == nil {
		return errors.New("opened twice")
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); ; {
		if err := write(); err == nil {
			break
		} else if time.Now().After(end) {
			return fmt.Errorf("after space came back: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for range 50 {
		if err := write(); err != nil {
			return err
		}
	}
	quiet(db)
	// Once more, to close it on a full disk and to be refused at opening.
	if err := fillDisk(filler, how); err != nil {
		return err
	}
	if err := db.Close(); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	} else if err != nil {
		fmt.Println("close:", err)
	} else {
		for {
			db, err := Open(opt)
			if err != nil {
				if !errors.Is(err, ErrNoSpace) {
					return fmt.Errorf("opening on a full disk: %w", err)
				}
				break
			}
			if err := fillDisk(filler, how); err != nil { // what the ballast gave
				return err
			}
			if err := db.Close(); err != nil {
				break
			}
		}
	}
	if err := os.Remove(filler); err != nil {
		return err
	}
	fmt.Println("good")
	return nil
}

// quiet waits until the database's files have not changed for a while.
func quiet(db *DB) {
	for was, same := db.Size(), 0; same < 10; same++ {
		time.Sleep(50 * time.Millisecond)
		if now := db.Size(); now != was {
			was, same = now, 0
		}
	}
}

// fillDisk makes path as large as the file system allows: at once, or at some 300 MB/s.
func fillDisk(path, how string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	at, size, pause := fi.Size(), int64(256<<20), time.Duration(0)
	if how == "steadily" {
		size, pause = 3<<20, 10*time.Millisecond
	}
	for synced := false; size >= 4096; {
		if size < 1<<20 && !synced {
			// What was deleted lately is free only after the journal is committed.
			if err := unix.Syncfs(int(f.Fd())); err != nil {
				return err
			}
			size, synced = 1<<20, true
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, at, size); {
		case err == nil:
			at += size
			time.Sleep(pause)
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
	return nil
}
