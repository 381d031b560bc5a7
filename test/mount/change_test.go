package mount

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/s3test"
)

// TestNames: keys that are strange as file names.
func TestNames(t *testing.T) {
	long := strings.Repeat("l", 255)
	common := []string{"plain", "sp ace/x y", "uni\u00e9\u4e16", "new\nline", "dot.", ".hidden", "marker/", "a!", "a.txt", "a-b/x"}
	// Neither server lists a key "a" beside "a/x"; package fs is tested with such on a store
	// in memory.
	for _, kind := range s3test.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorldOn(t, s3test.Options{Kind: kind})
			keys := append(slices.Clone(common), long)
			for _, k := range keys {
				if strings.HasSuffix(k, "/") {
					w.put(k, nil)
				} else {
					w.put(k, []byte(k))
				}
			}
			m := w.mount()
			m.expect = []string{"have no name"}
			got := m.names(".")
			want := []string{".hidden", "a!", "a-b/", "a.txt", "dot.", long, "marker/", "new\nline", "plain", "sp ace/", "uni\u00e9\u4e16"}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("names\n%q, want\n%q", got, want)
			}
			for _, k := range keys {
				if !strings.HasSuffix(k, "/") {
					m.same(k, []byte(k))
				}
			}
			if got := m.names("marker"); len(got) != 0 {
				t.Errorf("marker/ holds %q", got)
			}
			_, err := os.Stat(m.path(strings.Repeat("x", 256)))
			wantErrno(t, "a name of 256 bytes", err, syscall.ENAMETOOLONG)
		})
	}
}

// TestTTL: a change is seen when the TTL is over, by one LIST or HEAD, and not before.
func TestTTL(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", []byte("one"))
	const ttl = 2 * time.Second
	m := w.mount("--ttl=" + ttl.String())
	asked := time.Now()
	m.same("d/f", []byte("one"))
	w.put("d/f", []byte("two!"))
	if b, err := os.ReadFile(m.path("d/f")); err != nil {
		t.Error(err)
	} else if took := time.Since(asked); string(b) != "one" && took < ttl {
		t.Errorf("%q is seen %v after it was asked for", b, took)
	}
	m.eventually("the new version is seen", func() error {
		b, err := os.ReadFile(m.path("d/f"))
		if err == nil && string(b) != "two!" {
			err = fmt.Errorf("still %q", b)
		}
		return err
	})
	w.del("d/f")
	w.put("d/g", []byte("g"))
	m.eventually("the deletion is seen", func() error {
		if _, err := os.Stat(m.path("d/f")); !os.IsNotExist(err) {
			return fmt.Errorf("stat: %v", err)
		}
		return nil
	})
	m.same("d/g", []byte("g"))
}

// TestNegativeTTL: a name that was missing appears within a second or two.
func TestNegativeTTL(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", []byte("f"))
	m := w.mount()
	m.names("d")
	_, err := os.Stat(m.path("d/new"))
	wantErrno(t, "stat of a missing name", err, syscall.ENOENT)
	w.put("d/new", []byte("n"))
	began := time.Now()
	m.eventually("the new name is seen", func() error { _, err := os.Stat(m.path("d/new")); return err })
	if d := time.Since(began); d > 20*time.Second { // the TTL of names that are there is a minute
		t.Errorf("a new name was seen after %v", d)
	}
	m.same("d/new", []byte("n"))
}

// TestImmutable: what was listed is not asked for again.
func TestImmutable(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", []byte("one"))
	m := w.mount("--immutable", "--ttl=0s")
	m.names(".")
	m.names("d")
	m.same("d/f", []byte("one"))
	mark := w.mark()
	w.put("d/f", []byte("two"))
	w.put("d/g", []byte("two"))
	for range 3 {
		m.same("d/f", []byte("one"))
		if got := m.names("d"); !slices.Equal(got, []string{"f"}) {
			t.Errorf("names %q", got)
		}
		_, err := os.Stat(m.path("d/g"))
		wantErrno(t, "a name that was not listed", err, syscall.ENOENT)
	}
	if n := len(w.proxy.Requests()) - mark; n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestChangeIsSeen by every open after the first one that saw it.
func TestChangeIsSeen(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		one, two := random(1, 5<<20), random(2, 6<<20)
		w.put("d/f", one)
		m := w.mount("--ttl=1s", flag)
		m.same("d/f", one)
		w.put("d/f", two)
		seen := 0
		for deadline := time.Now().Add(time.Minute); seen < 10; {
			got, err := os.ReadFile(m.path("d/f"))
			switch {
			case err != nil:
				t.Fatal(err)
			case bytes.Equal(got, two):
				seen++
			case bytes.Equal(got, one):
				if seen > 0 {
					t.Fatal("the old version came back")
				}
				if time.Now().After(deadline) {
					t.Fatal("the new version was never seen")
				}
			default:
				t.Fatalf("neither version: %s", difference(got, two))
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// TestVersionsNeverMix: an object is replaced by one of the same size while it is open.
func TestVersionsNeverMix(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		one, two := random(1, 8<<20), random(2, 8<<20)
		w.put("part", one)
		w.put("whole", one)
		m := w.mount(flag, "--ttl=1s")
		m.same("whole", one)
		m.proven(1)
		whole, part := mustOpen(t, m.path("whole")), mustOpen(t, m.path("part"))
		buf := make([]byte, 4096)
		if _, err := part.ReadAt(buf, 0); err != nil {
			t.Fatal(err)
		}
		w.put("part", two)
		w.put("whole", two)
		// The handle whose version is whole reads it on, past the TTL too.
		for range 2 {
			got := make([]byte, len(one))
			if _, err := whole.ReadAt(got, 0); err != nil || !bytes.Equal(got, one) {
				t.Errorf("open handle of a whole object: %v, %s", err, difference(got, one))
			}
			time.Sleep(1100 * time.Millisecond)
			dropCaches(t)
		}
		// The other gives old bytes or ESTALE.
		stale := 0
		for off := 0; off < len(one); off += 512 << 10 {
			got := make([]byte, 256<<10)
			n, err := part.ReadAt(got, int64(off))
			if err != nil {
				wantErrno(t, "read of a replaced object", err, syscall.ESTALE)
				stale++
			} else if !bytes.Equal(got[:n], one[off:off+n]) {
				t.Fatalf("bytes at %d are not those of the version that was opened", off)
			}
		}
		if stale == 0 {
			t.Error("every byte of the replaced object was in the cache; the test shows nothing")
		}
		// A new open gets the new one, whole.
		m.same("part", two)
		m.same("whole", two)
	})
}

// TestDeleted: as above, for an object that is gone.
func TestDeleted(t *testing.T) {
	w := newWorld(t)
	data := random(1, 8<<20)
	w.put("part", data)
	w.put("whole", data)
	m := w.mount("--ttl=1s")
	m.same("whole", data)
	m.proven(1)
	whole, part := mustOpen(t, m.path("whole")), mustOpen(t, m.path("part"))
	w.del("whole")
	w.del("part")
	got := make([]byte, len(data))
	if _, err := whole.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("open handle of a deleted object that is whole in the cache: %v", err)
	}
	_, err := part.ReadAt(got, 0)
	wantErrno(t, "read of a deleted object", err, syscall.ESTALE)
	m.eventually("the names are gone", func() error {
		if got := m.names("."); len(got) != 0 {
			return fmt.Errorf("names %q", got)
		}
		return nil
	})
	_, err = os.Open(m.path("part"))
	wantErrno(t, "open of a deleted object", err, syscall.ENOENT)
}

// TestArchived: an archived object is seen and not read, and the log says why.
func TestArchived(t *testing.T) {
	w := newWorld(t)
	w.put("f", random(1, 1000))
	m := w.mount()
	m.expect = []string{"archived"}
	w.proxy.Add(fault.Rule{Class: "GET", Key: "f", Do: fault.Archived()})
	if _, err := os.Stat(m.path("f")); err != nil {
		t.Error(err)
	}
	_, err := os.ReadFile(m.path("f"))
	wantErrno(t, "open of an archived object", err, syscall.EACCES)
	if !strings.Contains(m.logText(), "restore") {
		t.Errorf("the log does not say what to do:\n%s", m.logText())
	}
}

// TestOldVersionStays: on a bucket that keeps versions an open file is read to its end though
// it was replaced meanwhile.
func TestOldVersionStays(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorldOn(t, s3test.Options{Kind: s3test.Versitygw, Versioning: true})
		if err := w.server.EnableVersioning(t.Context(), w.bucket); err != nil {
			t.Fatal(err)
		}
		one, two := random(1, 24<<20), random(2, 24<<20)
		w.put("f", one)
		m := w.mount(flag, "--ttl=1s")
		f := mustOpen(t, m.path("f"))
		buf := make([]byte, 4096)
		if _, err := f.ReadAt(buf, 0); err != nil {
			t.Fatal(err)
		}
		w.put("f", two)
		got := make([]byte, len(one))
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, one) {
			t.Errorf("the version that was opened: %v, %s", err, difference(got, one))
		}
		m.eventually("a new open sees the new version", func() error {
			b, err := os.ReadFile(m.path("f"))
			if err == nil && !bytes.Equal(b, two) {
				err = fmt.Errorf("%s", difference(b, two))
			}
			return err
		})
	})
}
