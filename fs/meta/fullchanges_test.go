package meta

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
)

// TestFullDiskChanges: on a disk that another writer has filled, and fills again as soon as there is a free block,
// files can be noted as published, removed and renamed, and objects as deleted; and the process can be
// killed at any time and opens the index again.
func TestFullDiskChanges(t *testing.T) {
	const rounds, each, last = 8, 300, 5000
	disk := smallDisk(t, 800)
	run := func(first, n int, how string) (acked int) {
		t.Helper()
		cmd := child("squeeze", disk, strconv.Itoa(first), strconv.Itoa(n), how)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := n
		if how == "kill" {
			kill = n/2 + rand.IntN(n/2)
		}
		acked = first
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if acked, err = strconv.Atoi(lines.Text()); err != nil {
				t.Error(lines.Text())
			}
			if how == "kill" && acked >= first+kill {
				_ = cmd.Process.Kill()
			}
		}
		if err := cmd.Wait(); err != nil && how != "kill" {
			t.Fatalf("after %d changes: %v", acked, err)
		} else if acked < first+kill {
			t.Fatalf("it ended after %d changes of %d: %v", acked-first, n, err)
		}
		return acked
	}
	run(0, rounds*each+last, "prepare")
	filler := filepath.Join(disk, "filler")
	if err := fillDisk(filler, "at once"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- keepFull(ctx, filler) }()
	at := 0
	for range rounds {
		at = run(at, each, "kill")
	}
	at = run(at, last, "change")
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	run(at, 0, "refused")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	run(at, 0, "normal")
}

// keepFull takes every block of the disk that becomes free.
func keepFull(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for b := make([]byte, 1<<20); ctx.Err() == nil; {
		switch _, err := f.Write(b); {
		case errors.Is(err, unix.ENOSPC):
			time.Sleep(time.Millisecond)
		case err != nil:
			return err
		}
	}
	return nil
}

// The changes of TestFullDiskChanges: number i is about the file or the object of that number.
const (
	squeezePublish = iota
	squeezeRemove
	squeezeRename
	squeezeTomb
	squeezeKinds
)

// childSqueeze does a part of TestFullDiskChanges: looks whether all changes before first are there, and does n more.
func childSqueeze(args []string) error {
	first, _ := strconv.Atoi(args[1])
	n, _ := strconv.Atoi(args[2])
	db, err := Open(Options{Dir: filepath.Join(args[0], "index"), Log: childLog()})
	if err != nil {
		return err
	}
	if db.Rebuilt() {
		return errors.New("rebuilt")
	}
	r, err := db.Origin("o", "")
	if err != nil {
		return err
	}
	s := squeeze{db, r.Ino}
	if args[3] == "prepare" {
		for i := range n {
			if err := s.add(i); err != nil {
				return err
			}
		}
		fmt.Println(n)
		return db.Close()
	}
	for i := range first {
		if done, err := s.done(i); err != nil || !done {
			return fmt.Errorf("change %d is lost: %w", i, err)
		}
	}
	// The one after that may have been done when the process was killed.
	if full := args[3] != "normal"; full != db.FreeSpaceLow() {
		return fmt.Errorf("low: %v", db.FreeSpaceLow())
	} else if full {
		if err := s.add(1 << 30); !errors.Is(err, ErrNoSpace) {
			return fmt.Errorf("a new file on a full disk: %w", err)
		}
		b := cache.Batch{Vars: map[string][]byte{"x": nil}}
		if err := db.Apply(b); !errors.Is(err, ErrNoSpace) {
			return fmt.Errorf("a batch of the cache on a full disk: %w", err)
		}
		b.Needed = true
		if err := errors.Join(db.Apply(b), db.Apply(cache.Batch{Delete: []cache.ID{1 << 30}})); err != nil {
			return fmt.Errorf("a batch of the cache that is needed on a full disk: %w", err)
		}
	} else if err := s.add(1 << 30); err != nil {
		return err
	}
	for i := first; i < first+n; i++ {
		if done, err := s.done(i); err != nil {
			return err
		} else if !done {
			if err := s.change(i); err != nil {
				return fmt.Errorf("change %d: %w", i, err)
			}
		}
		fmt.Println(i + 1)
	}
	if args[3] == "kill" {
		select {}
	}
	if args[3] == "normal" {
		if err := audit(db); err != nil {
			return err
		}
		fmt.Println(first)
		return db.Close()
	}
	if n == 0 {
		fmt.Println(first)
	}
	if err := db.Close(); !errors.Is(err, ErrNoSpace) {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// keyOf is a long key, so that the changes take several logs.
func keyOf(name string) string { return strings.Repeat("long/", 180) + name }

type squeeze struct {
	db   *DB
	root Ino
}

func (s squeeze) add(i int) error {
	return s.db.Do(func(tx *Tx) error {
		in, err := tx.Insert(s.root, Inode{Kind: KindFile, Name: "f" + strconv.Itoa(i), Stage: 1 << 20})
		if err != nil {
			return err
		}
		return tx.SetDirty(&Dirty{Ino: in.Ino, Seq: 1})
	})
}

func (s squeeze) change(i int) error {
	name := "f" + strconv.Itoa(i)
	return s.db.Do(func(tx *Tx) error {
		in, err := tx.Lookup(s.root, name)
		if err != nil {
			return err
		}
		switch i % squeezeKinds {
		case squeezePublish:
			in.Stage, in.Object.Size, in.Object.ETag = 0, 1, "etag"
			if err := tx.Update(&in); err != nil {
				return err
			}
			return tx.ClearDirty(in.Ino, true)
		case squeezeRemove:
			if err := tx.SetTomb(&Tomb{Key: keyOf(name), ETag: "e"}); err != nil {
				return err
			}
			if err := tx.ClearDirty(in.Ino, false); err != nil {
				return err
			}
			_, err := tx.Remove(s.root, name)
			return err
		case squeezeRename:
			_, err := tx.Move(s.root, name, s.root, "moved-"+name)
			return err
		}
		return tx.SetTomb(&Tomb{Key: keyOf(name), ETag: "e", Done: int64(i)})
	})
}

// done tells whether a change was made.
func (s squeeze) done(i int) (done bool, err error) {
	name := "f" + strconv.Itoa(i)
	err = s.db.Do(func(tx *Tx) error {
		in, err := tx.Lookup(s.root, name)
		switch i % squeezeKinds {
		case squeezePublish:
			done = err == nil && in.Stage == 0
			return err
		case squeezeRemove:
			if done = errors.Is(err, ErrNotFound); done {
				_, err = tx.Tomb(keyOf(name))
			}
			return err
		case squeezeRename:
			if done = errors.Is(err, ErrNotFound); done {
				_, err = tx.Lookup(s.root, "moved-"+name)
			}
			return err
		}
		_, err = tx.Tomb(keyOf(name))
		if done = err == nil; errors.Is(err, ErrNotFound) {
			err = nil
		}
		return err
	})
	return done, err
}

// TestEveryMapHasBlocks: badger writes to no file through a map that has no blocks, so that it cannot die of a
// full disk.
func TestEveryMapHasBlocks(t *testing.T) {
	var out lines
	db, err := Open(Options{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	r, err := db.Origin("o", "")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for i := range 300 {
		p := fillPage(i%20*1000, 1000)
		for k := range p.Objects {
			p.Objects[k].Size = int64(i)
		}
		if _, err := db.Merge(r.Ino, p); err != nil {
			t.Fatal(err)
		}
		names, err := os.ReadDir(db.path)
		if err != nil {
			t.Fatal(err)
		}
		if i%4 != 0 {
			continue
		}
		for _, n := range names {
			ext := filepath.Ext(n.Name())
			seen[ext]++
			// A file that was made this moment is not mapped yet.
			for end := time.Now().Add(30 * time.Second); ext == ".mem" || ext == ".sst" || ext == ".vlog"; time.Sleep(time.Millisecond) {
				fi, err := os.Stat(filepath.Join(db.path, n.Name()))
				if err != nil || allocated(fi) >= written(n.Name(), fi.Size()) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%s has %d bytes of %d", n.Name(), allocated(fi), fi.Size())
				}
			}
		}
	}
	quiet(db)
	if seen[".mem"] == 0 || seen[".sst"] == 0 || seen[".vlog"] == 0 {
		t.Error(seen)
	}
	// Compactions stop by what they say before they make a table.
	if all, said := out.count("Compaction for level:"), out.count(beforeTable); all == 0 || said < all {
		t.Errorf("%d compactions, %d times before a table", all, said)
	}
}

// lines are what was logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.buf.Bytes(), []byte(what))
}

// TestCompactionsWait: on a full disk no compaction makes a table, since badger would take one that cannot be made for
// an empty one.
func TestCompactionsWait(t *testing.T) {
	db := open(t)
	var free atomic.Int64
	real := db.space.free
	db.space.mu.Lock()
	db.space.free = func() (int64, error) {
		if n := free.Load(); n != 0 {
			return n, nil
		}
		return real()
	}
	db.space.mu.Unlock()
	free.Store(1)
	for end := time.Now().Add(30 * time.Second); db.space.allow(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the disk is full, and nobody sees it")
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		logger{db.log, db.space}.Debugf("[%d] "+beforeTable+" %d keys.", 1, 2)
	}()
	select {
	case <-done:
		t.Error("a compaction goes on")
	case <-time.After(300 * time.Millisecond):
	}
	if !db.space.stuck() {
		t.Error("nobody knows that it waits")
	}
	free.Store(0)
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("it still waits")
	}
}
