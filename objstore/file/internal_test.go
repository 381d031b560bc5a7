package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func openTB(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func listAll(t *testing.T, s *Store, opt objstore.ListOptions) (names []string) {
	t.Helper()
	for {
		p, err := s.List(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range p.Objects {
			names = append(names, o.Key)
		}
		names = append(names, p.Prefixes...)
		if opt.Token = p.Next; p.Next == "" {
			slices.Sort(names)
			return names
		}
	}
}

func wantKind(t *testing.T, what string, err error, k objstore.Kind) {
	t.Helper()
	if !objstore.Is(err, k) {
		t.Errorf("%s: got %v, want %q", what, err, k)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "x")
	_, err := Open(dir + "/none")
	wantKind(t, "missing", err, objstore.NoBucket)
	_, err = Open(dir + "/file")
	wantKind(t, "a file", err, objstore.NoBucket)
	s := openTB(t, dir+"/../"+filepath.Base(dir)+"/")
	if s.String() != "file://"+dir {
		t.Errorf("String: got %q", s)
	}
	if names := listAll(t, s, objstore.ListOptions{}); !slices.Equal(names, []string{"file"}) {
		t.Errorf("got %q", names)
	}
	if _, err := os.Stat(dir + "/" + tmpDir); err == nil {
		t.Error("reading made a directory")
	}
}

// TestLinks: links inside lead to files; those that lead out are nothing.
func TestLinks(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	write(t, out+"/secret", "secret")
	write(t, dir+"/d/file", "inside")
	for name, target := range map[string]string{
		"good": "d/file", "d/up": "../d/file", "abs": out + "/secret", "rel": "../" + filepath.Base(out) + "/secret",
		"dir": "d", "outdir": out, "loop": "loop", "broken": "none", "proc": "/proc/self/environ",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	s := openTB(t, dir)
	want := []string{"d/file", "d/up", "good"}
	if got := listAll(t, s, objstore.ListOptions{}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := listAll(t, s, objstore.ListOptions{Delimiter: "/"}); !slices.Equal(got, []string{"d/", "good"}) {
		t.Errorf("with a delimiter: got %q", got)
	}
	for _, k := range want {
		r, err := s.Get(t.Context(), k, objstore.GetOptions{Length: -1})
		if err != nil {
			t.Errorf("%s: %v", k, err)
			continue
		}
		if b, _ := io.ReadAll(r.Body); string(b) != "inside" {
			t.Errorf("%s: got %q", k, b)
		}
		r.Body.Close()
	}
	for _, k := range []string{"abs", "rel", "outdir/secret", "loop", "broken", "proc", "fifo", "dir", "d"} {
		_, err := s.Head(t.Context(), k, objstore.HeadOptions{})
		wantKind(t, "Head "+k, err, objstore.NotFound)
		_, err = s.Get(t.Context(), k, objstore.GetOptions{Length: -1})
		wantKind(t, "Get "+k, err, objstore.NotFound)
	}
	// Nothing is written through a link.
	for _, k := range []string{"outdir/x", "abs"} {
		_, _ = s.Put(t.Context(), k, storetest.NewSource([]byte("new")), objstore.PutOptions{})
	}
	if b, err := os.ReadFile(out + "/secret"); err != nil || string(b) != "secret" {
		t.Errorf("a file outside was changed: %q, %v", b, err)
	}
	if _, err := os.Stat(out + "/x"); err == nil {
		t.Error("a file outside was made")
	}
	if err := s.Delete(t.Context(), "outdir/secret", objstore.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(out + "/secret"); err != nil {
		t.Error("a file outside was deleted")
	}
}

// TestChangedInPlace: a file that others change while it is read gives the old bytes or an
// error.
func TestChangedInPlace(t *testing.T) {
	dir := t.TempDir()
	s := openTB(t, dir)
	old := storetest.Bytes(1, 1<<20)
	for name, change := range map[string]func(f *os.File) error{
		"overwrite": func(f *os.File) error { _, err := f.WriteAt([]byte("new"), 900_000); return err },
		"append":    func(f *os.File) error { _, err := f.WriteAt([]byte("new"), 1<<20); return err },
		"truncate":  func(f *os.File) error { return f.Truncate(800_000) },
		"times": func(f *os.File) error {
			if _, err := f.WriteAt([]byte("new"), 900_000); err != nil {
				return err
			}
			return os.Chtimes(f.Name(), time.Unix(1, 0), time.Unix(1, 0))
		},
	} {
		path := filepath.Join(dir, name)
		write(t, path, string(old))
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		etag := head(t, s, name).ETag
		r, err := s.Get(t.Context(), name, objstore.GetOptions{Length: -1, IfMatch: etag})
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 1000)
		if _, err := io.ReadFull(r.Body, first); err != nil || !bytes.Equal(first, old[:1000]) {
			t.Fatalf("%s: %v", name, err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := change(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		rest, err := io.ReadAll(r.Body)
		wantKind(t, name, err, objstore.PreconditionFailed)
		if len(rest) > 0 {
			t.Errorf("%s: %d bytes were given out after the change", name, len(rest))
		}
		r.Body.Close()
		_, err = s.Get(t.Context(), name, objstore.GetOptions{Offset: 5, Length: 5, IfMatch: etag})
		wantKind(t, name+", next Get", err, objstore.PreconditionFailed)
	}
}

func head(t *testing.T, s *Store, key string) objstore.Object {
	t.Helper()
	o, err := s.Head(t.Context(), key, objstore.HeadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestRemovedWhileRead: a reader keeps a file that is replaced or removed.
func TestRemovedWhileRead(t *testing.T) {
	s := openTB(t, t.TempDir())
	data := storetest.Bytes(2, 1<<20)
	for _, replace := range []bool{true, false} {
		if _, err := s.Put(t.Context(), "f", storetest.NewSource(data), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := s.Get(t.Context(), "f", objstore.GetOptions{Length: -1})
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 1000)
		if _, err := io.ReadFull(r.Body, first); err != nil {
			t.Fatal(err)
		}
		if replace {
			_, err = s.Put(t.Context(), "f", storetest.NewSource([]byte("new")), objstore.PutOptions{})
		} else {
			err = s.Delete(t.Context(), "f", objstore.DeleteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(append(first, rest...), data) {
			t.Errorf("replace %v: got %d bytes, %v", replace, len(rest), err)
		}
		r.Body.Close()
	}
}

// TestSettled: two contents of one size written at once never share an ETag that was
// given out by Head.
func TestSettled(t *testing.T) {
	dir := t.TempDir()
	s := openTB(t, dir)
	seen := map[string]byte{}
	f, err := os.Create(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range byte(20) {
		if _, err := f.WriteAt([]byte{i}, 0); err != nil {
			t.Fatal(err)
		}
		etag := head(t, s, "f").ETag
		if was, ok := seen[etag]; ok {
			t.Fatalf("contents %d and %d have one ETag %q", was, i, etag)
		}
		seen[etag] = i
	}
}

// TestListModel holds listings, by small windows and with lost cursors, against a sorted
// slice.
func TestListModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		s, err := Open(dir)
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		s.window = rapid.IntRange(1, 5).Draw(rt, "window")
		key := rapid.StringMatching(`[ab!-]{1,2}(/[ab!-]{1,2}){0,3}`)
		files := map[string]bool{}
		for _, k := range rapid.SliceOfN(key, 0, 40).Draw(rt, "keys") {
			if os.MkdirAll(filepath.Dir(filepath.Join(dir, k)), 0o755) == nil && os.WriteFile(filepath.Join(dir, k), nil, 0o644) == nil {
				files[k] = true
			}
		}
		opt := objstore.ListOptions{
			Prefix:     rapid.OneOf(rapid.Just(""), key, rapid.Map(key, func(k string) string { return k + "/" })).Draw(rt, "prefix"),
			StartAfter: rapid.OneOf(rapid.Just(""), key, rapid.Map(key, func(k string) string { return k + "/" })).Draw(rt, "after"),
			MaxKeys:    rapid.IntRange(1, 6).Draw(rt, "max"),
			Delimiter:  rapid.SampledFrom([]string{"", "/"}).Draw(rt, "delimiter"),
		}
		want := map[string]bool{}
		for k := range files {
			rest, ok := strings.CutPrefix(k, opt.Prefix)
			if !ok {
				continue
			}
			if i := strings.Index(rest, "/"); i >= 0 && opt.Delimiter != "" {
				k = opt.Prefix + rest[:i+1]
				if strings.HasPrefix(opt.StartAfter, k) {
					continue
				}
			}
			if k > opt.StartAfter {
				want[k] = true
			}
		}
		var wantNames []string
		for k := range want {
			wantNames = append(wantNames, k)
		}
		// Directories made for a file that could not be made are empty; they may be listed.
		slices.Sort(wantNames)
		var got []string
		for {
			p, err := s.List(t.Context(), opt)
			if err != nil {
				rt.Fatal(err)
			}
			for _, o := range p.Objects {
				got = append(got, o.Key)
			}
			for _, name := range p.Prefixes {
				if want[name] {
					got = append(got, name)
				}
			}
			if opt.Token = p.Next; p.Next == "" {
				break
			}
			if rapid.Bool().Draw(rt, "lose the cursor") {
				s.cursors.clear()
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, wantNames) {
			rt.Fatalf("List(%+v): got %q, want %q", opt, got, wantNames)
		}
	})
}

// TestUploadOutlivesStore: an upload is resumed by another process.
func TestUploadOutlivesStore(t *testing.T) {
	dir := t.TempDir()
	s := openTB(t, dir)
	id, err := s.CreateMultipart(t.Context(), "d/f", objstore.PutOptions{Metadata: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutPart(t.Context(), "d/f", id, 1, storetest.NewSource([]byte("one")), objstore.Checksum{}); err != nil {
		t.Fatal(err)
	}
	s = openTB(t, dir)
	parts, err := s.ListParts(t.Context(), "d/f", id)
	if err != nil || len(parts) != 1 {
		t.Fatalf("got %+v, %v", parts, err)
	}
	_, err = s.ListParts(t.Context(), "another/key", id)
	wantKind(t, "another key", err, objstore.NotFound)
	for _, bad := range []string{"", "..", "../x", strings.Repeat("A", 26), strings.Repeat(".", 26)} {
		_, err = s.ListParts(t.Context(), "d/f", bad)
		wantKind(t, "id "+bad, err, objstore.NotFound)
	}
	// A part that rots on disk is found before it is part of an object.
	rotten := fmt.Sprintf("%s/%s/mp-%s/%s", dir, tmpDir, id, partName(1, parts[0].Checksum.Value))
	if err := os.WriteFile(rotten, []byte("onE"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = s.CompleteMultipart(t.Context(), "d/f", id, parts, objstore.PutOptions{})
	wantKind(t, "rotten part", err, objstore.Corrupt)
	p, err := s.PutPart(t.Context(), "d/f", id, 1, storetest.NewSource([]byte("one")), objstore.Checksum{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.CompleteMultipart(t.Context(), "d/f", id, []objstore.Part{p}, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if o := head(t, s, "d/f"); o.Metadata["k"] != "v" || o.Size != 3 {
		t.Errorf("got %+v", o)
	}
	left, err := os.ReadDir(dir + "/" + tmpDir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestSweep: the temporary files of dead writers go, those of live ones and uploads stay.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * sweepAge)
	for _, n := range []string{"put-OLD", "put-NEW", "mp-OLD/upload"} {
		write(t, dir+"/"+tmpDir+"/"+n, "x")
		if strings.Contains(n, "OLD") {
			if err := os.Chtimes(dir+"/"+tmpDir+"/"+n, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := openTB(t, dir)
	if _, err := s.Put(t.Context(), "f", storetest.NewSource(nil), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[string]bool{"put-OLD": false, "put-NEW": true, "mp-OLD/upload": true} {
		if _, err := os.Stat(dir + "/" + tmpDir + "/" + n); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", n, err, want)
		}
	}
}

// TestForeignFiles: files that others made have no checksum, and one whose content was changed
// under its attribute has none either.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	s := openTB(t, dir)
	write(t, dir+"/foreign", "x")
	if o := head(t, s, "foreign"); o.Checksum.Algorithm != objstore.ChecksumNone || o.Size != 1 {
		t.Errorf("got %+v", o)
	}
	o, err := s.Put(t.Context(), "ours", storetest.NewSource([]byte("abc")), objstore.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s.xattrs && o.Checksum != storetest.Sum(objstore.CRC64NVME, []byte("abc")) {
		t.Errorf("got %+v", o)
	}
	write(t, dir+"/ours", "xyz")
	if o := head(t, s, "ours"); o.Checksum.Algorithm != objstore.ChecksumNone {
		t.Errorf("a changed file: got %+v", o)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var oe *objstore.Error
	if _, err := s.Put(t.Context(), "ours/below", storetest.NewSource(nil), objstore.PutOptions{}); !errors.As(err, &oe) || oe.Kind != objstore.BadRequest {
		t.Errorf("a file below a file: got %v", err)
	}
}

func BenchmarkListLargeDirectory(b *testing.B) {
	dir := b.TempDir()
	const n = 100_000
	for i := range n {
		f, err := os.Create(fmt.Sprintf("%s/%07d.jpg", dir, i))
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	s, err := Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		var opt objstore.ListOptions
		got := 0
		for {
			p, err := s.List(b.Context(), opt)
			if err != nil {
				b.Fatal(err)
			}
			got += len(p.Objects)
			if opt.Token = p.Next; p.Next == "" {
				break
			}
		}
		if got != n {
			b.Fatalf("got %d names", got)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/name")
}
