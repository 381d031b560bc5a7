package meta

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// damageable makes a closed index with names in tables and a log, and returns its directory,
// the largest inode number and the largest ID it gave out.
func damageable(t *testing.T) (dir string, ino Ino, id uint64) {
	t.Helper()
	dir = t.TempDir()
	for range 2 {
		db, err := Open(Options{Dir: dir, NoSync: true, Ballast: 1 << 20, Floor: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		r := root(t, db)
		fillDir(t, db, r.Ino, 20_000)
		in, err := db.Insert(r.Ino, Inode{Name: "extra" + strings.Repeat("x", int(id)), Kind: KindFile})
		if err != nil {
			t.Fatal(err)
		}
		i, err := db.NewID()
		if err != nil {
			t.Fatal(err)
		}
		ino, id = in.Ino, uint64(i)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir, ino, id
}

func TestDamage(t *testing.T) {
	glob := func(t *testing.T, dir, pattern string) string {
		t.Helper()
		m, _ := filepath.Glob(filepath.Join(dir, "db-*", pattern))
		if len(m) == 0 {
			t.Fatalf("no %s", pattern)
		}
		return m[0]
	}
	write := func(t *testing.T, path string, off int64, b []byte) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if off < 0 {
			fi, _ := f.Stat()
			off += fi.Size()
		}
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
	}
	garbage := []byte(strings.Repeat("\xfe\x01garbage", 20))
	for name, c := range map[string]struct {
		do      func(t *testing.T, dir string)
		rebuilt bool
	}{
		"nothing":            {func(*testing.T, string) {}, false},
		"manifest missing":   {func(t *testing.T, dir string) { os.Remove(glob(t, dir, "MANIFEST")) }, true},
		"manifest empty":     {func(t *testing.T, dir string) { os.Truncate(glob(t, dir, "MANIFEST"), 0) }, true},
		"manifest garbage":   {func(t *testing.T, dir string) { write(t, glob(t, dir, "MANIFEST"), 0, garbage) }, true},
		"manifest middle":    {func(t *testing.T, dir string) { write(t, glob(t, dir, "MANIFEST"), 20, garbage) }, true},
		"table missing":      {func(t *testing.T, dir string) { os.Remove(glob(t, dir, "*.sst")) }, true},
		"table empty":        {func(t *testing.T, dir string) { os.Truncate(glob(t, dir, "*.sst"), 0) }, true},
		"table short":        {func(t *testing.T, dir string) { os.Truncate(glob(t, dir, "*.sst"), 5000) }, true},
		"table tail garbage": {func(t *testing.T, dir string) { write(t, glob(t, dir, "*.sst"), -100, garbage[:100]) }, true},
		"table end":          {func(t *testing.T, dir string) { write(t, glob(t, dir, "*.sst"), -4, []byte{0xff, 0xff, 0xff, 0xff}) }, true},
		"key registry":       {func(t *testing.T, dir string) { write(t, glob(t, dir, "KEYREGISTRY"), 0, garbage) }, true},
		"found damaged":      {func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, "db-1", damagedFile), garbage, 0o600) }, true},
		"all gone":           {func(t *testing.T, dir string) { os.RemoveAll(filepath.Join(dir, "db-1")) }, true},
		"value log garbage":  {func(t *testing.T, dir string) { write(t, glob(t, dir, "*.vlog"), 0, garbage) }, false},
		"discard garbage":    {func(t *testing.T, dir string) { os.Truncate(glob(t, dir, "DISCARD"), 17) }, false},
		"empty log":          {func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, "db-1", "00009.mem"), nil, 0o600) }, false},
		"short log": {func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "db-1", "00009.mem"), []byte("x"), 0o600)
		}, false},
		"log of nothing": {func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "db-1", "00009.mem"), make([]byte, 1<<20), 0o600)
		}, false},
		"log garbage": {func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "db-1", "00009.mem"), append(make([]byte, 20), garbage...), 0o600)
		}, false},
		"stray table": {func(t *testing.T, dir string) { os.WriteFile(filepath.Join(dir, "db-1", "000900.sst"), garbage, 0o600) }, false},
		"marks gone":  {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "marks")) }, false},
		"one mark":    {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "marks"), 0, garbage[:40]) }, false},
		"marks garbage": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "marks"), 0, garbage)
			write(t, filepath.Join(dir, "marks"), slotStride, garbage)
		}, false},
		"lock garbage": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "lock"), 0, garbage) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, ino, id := damageable(t)
			c.do(t, dir)
			for round := range 2 {
				db := openAt(t, dir)
				if db.Rebuilt() != (c.rebuilt && round == 0) {
					t.Fatalf("round %d: got rebuilt %v", round, db.Rebuilt())
				}
				r := root(t, db)
				if got, want := len(names(t, db, r.Ino)), 20_001; !c.rebuilt && got != want {
					t.Fatalf("got %d names, want %d", got, want)
				}
				in, err := db.Insert(r.Ino, Inode{Name: "new", Kind: KindFile})
				if round == 0 && (err != nil || in.Ino <= ino || in.Ino > ino+2*lostMarks) {
					t.Fatalf("got inode %d, %v; want one above %d", in.Ino, err, ino)
				}
				i, err := db.NewID()
				// Without marks and without any record of the cache nothing tells of the IDs but the
				// copy in the database, which is made when a range is reserved.
				if err != nil || uint64(i) <= id {
					t.Fatalf("got ID %d, %v; want one above %d", i, err, id)
				}
				if err := db.Remove(r.Ino, "new"); err != nil && round == 0 {
					t.Fatal(err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if bad, _ := filepath.Glob(filepath.Join(dir, "bad-*")); len(bad) > 1 {
					t.Fatalf("got %v", bad)
				}
			}
		})
	}
}

// What opening does not look at is looked at soon after; the next start makes a fresh index.
func TestDamageFoundLater(t *testing.T) {
	dir, _, _ := damageable(t)
	tables, _ := filepath.Glob(filepath.Join(dir, "db-1", "*.sst"))
	for _, p := range tables {
		if fi, err := os.Stat(p); err != nil || fi.Size() < 1<<20 {
			continue // its one block is looked at by Open
		}
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 1000), 100); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	db := openAt(t, dir)
	db.scrub.wg.Wait()
	if !db.damage.Load() || db.Rebuilt() {
		t.Fatal("nobody noticed")
	}
	db.Close()
	if db = openAt(t, dir); !db.Rebuilt() {
		t.Fatal("not rebuilt")
	}
}

func TestNewerFormat(t *testing.T) {
	dir, _, _ := damageable(t)
	for name, at := range map[string]int64{"ours": 4, "badger's": 6} {
		path := filepath.Join(dir, "db-1", manifestFile)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		newer := append([]byte(nil), before...)
		newer[at+1]++
		os.WriteFile(path, newer, 0o600)
		if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrNewer) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want ErrNewer", name, err)
		}
		if after, _ := os.ReadFile(path); string(after) != string(newer) {
			t.Errorf("%s: the index was touched", name)
		}
		os.WriteFile(path, before, 0o600)
	}
	path := filepath.Join(dir, "marks")
	before, _ := os.ReadFile(path)
	b := encodeSlot(1<<40, 5, 5)
	b[11]++
	copy(b[slotSize-4:], castagnoli(b[:slotSize-4]))
	os.WriteFile(path, b, 0o600)
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrNewer) {
		t.Errorf("marks: got %v, want ErrNewer", err)
	}
	os.WriteFile(path, before, 0o600)
	if db := openAt(t, dir); db.Rebuilt() {
		t.Error("rebuilt")
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	db := openAt(t, dir)
	_, err := Open(Options{Dir: dir})
	want := "index " + dir + " is used by another mount (pid " + itoa(os.Getpid()) + ")"
	if err == nil || err.Error() != want || !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v, want %s", err, want)
	}
	db.Close()
	openAt(t, dir)
	if _, err := Open(Options{Dir: filepath.Join(dir, "lock", "x")}); !errors.Is(err, unix.ENOTDIR) {
		t.Fatalf("got %v", err)
	}
}
