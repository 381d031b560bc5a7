package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/objstore"
)

// unsure is a store that copies without a condition on the target only, as most do.
func unsure(w *world) {
	w.p.store = objstore.Around(noCopyIf{w.mem}, w.request)
}

type noCopyIf struct{ objstore.Store }

func (s noCopyIf) Copy(ctx context.Context, src, dst string, opt objstore.CopyOptions) (objstore.Object, error) {
	if opt.IfNoneMatch {
		return objstore.Object{}, &objstore.Error{Op: "COPY", Key: dst, Kind: objstore.Unsupported}
	}
	return s.Store.Copy(ctx, src, dst, opt)
}

// TestCopy: an object gets another name by the store's means, with its metadata, and never over
// what it may not replace.
func TestCopy(t *testing.T) {
	small, large := random(50, 1000), random(51, 9*part+3)
	for _, tc := range []struct {
		name   string
		data   []byte
		ifs    string // "", "none", "match"
		weak   bool   // COPY has no condition on the target
		noPart bool
		want   string
	}{
		{"plain", small, "", false, false, "HEAD, COPY"},
		{"if none", small, "none", false, false, "HEAD, COPY"},
		{"if match", small, "match", false, false, "HEAD, GET, PUT"},
		{"if match, larger", random(52, 1<<20+1), "match", false, false, "HEAD, CREATE MULTIPART, COPY PART x2, COMPLETE MULTIPART"},
		{"weak if none", small, "none", true, false, "HEAD, COPY, GET, PUT"},
		{"weak if none, no parts, larger", random(52, 1<<20+1), "none", true, true, "HEAD, COPY, HEAD, COPY"},
		{"large", large, "", false, false, "HEAD, CREATE MULTIPART, COPY PART x3, COMPLETE MULTIPART"},
		{"large if match", large, "match", true, false, "HEAD, CREATE MULTIPART, COPY PART x3, COMPLETE MULTIPART"},
		{"large, no parts", large, "none", false, true, ""},
		{"empty if match", nil, "match", false, false, "HEAD, PUT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opt := Options{PartSize: part, Multipart: part, MaxCopy: 2 << 20, CopyPart: 1 << 20}
			w := newWorld(t, opt, func(c *objstore.Caps) { c.PartCopy = !tc.noPart })
			if tc.weak {
				unsure(w)
			}
			src, err := w.mem.Put(t.Context(), "a", &view{c: &content{file: bytes.NewReader(tc.data)}, n: int64(len(tc.data)), pieces: []piece{{Range{0, int64(len(tc.data))}, inFile}}},
				objstore.PutOptions{Metadata: map[string]string{"foreign": "kept", "mode": "1", tokenKey: "old"}, ContentType: "image/gif"})
			if err != nil {
				t.Fatal(err)
			}
			j := Job{Key: "b", Copy: &Source{Key: "a", ETag: src.ETag, Size: src.Size}, Metadata: map[string]string{"mode": "2"}, Token: "new"}
			switch tc.ifs {
			case "none":
				j.IfNoneMatch = true
			case "match":
				j.IfMatch = w.mem.Set("b", []byte("to be replaced")).ETag
			}
			out := w.publish(j)
			if tc.want != "" {
				w.wantTook(tc.want)
			}
			w.has("b", tc.data)
			if !out.Summed || out.Sum != crc64nvme.Checksum(tc.data) || out.Object.Size != src.Size {
				t.Errorf("%+v", out)
			}
			o, err := w.mem.Head(t.Context(), "b", objstore.HeadOptions{})
			if err != nil || o.Metadata["foreign"] != "kept" || o.Metadata["mode"] != "2" || TokenOf(o) != "new" || o.ContentType != "image/gif" || o.ETag != out.Object.ETag {
				t.Errorf("%+v, %v", o, err)
			}
			// Once more: it is ours, and nothing is lost.
			if tc.ifs != "" {
				w.publish(j)
				w.has("b", tc.data)
			}
			// Somebody else's is not replaced.
			theirs := w.mem.Set("b", []byte("theirs"))
			_, err = w.p.Publish(t.Context(), j)
			if c, ok := err.(*Conflict); ok != (tc.ifs != "") || ok && c.Have.ETag != theirs.ETag {
				t.Errorf("over somebody else's: %v", err)
			}
			if tc.ifs != "" {
				w.has("b", []byte("theirs"))
			}
		})
	}
}

// TestCopyLost: as TestLostAnswers, for what a copy asks.
func TestCopyLost(t *testing.T) {
	data := random(53, 4*part)
	for _, f := range []fate{lose, fail} {
		for _, max := range []int64{8 * part, part} {
			for _, name := range []string{"COPY", "HEAD", "CREATE MULTIPART", "COPY PART", "COMPLETE MULTIPART"} {
				t.Run(fmt.Sprint(f, max, name), func(t *testing.T) {
					w := newWorld(t, Options{PartSize: part, Multipart: part, MaxCopy: max, CopyPart: part})
					src := w.mem.Set("a", data)
					j := Job{Key: "b", Copy: &Source{Key: "a", ETag: src.ETag, Size: src.Size}, IfNoneMatch: true, Token: NewToken()}
					j.Began = func(u Upload) error { j.Upload = u; return nil }
					w.does(name, nth(1, f))
					if _, err := w.p.Publish(t.Context(), j); err != nil {
						if !objstore.KindOf(err).Temporary() {
							t.Errorf("the first try: %v", err)
						}
						w.publish(j)
					}
					w.has("b", data)
				})
			}
		}
	}
}

// TestCopySource: a source that is not the one meant is not copied.
func TestCopySource(t *testing.T) {
	w := newWorld(t, Options{})
	src := w.mem.Set("a", []byte("old"))
	j := Job{Key: "b", Copy: &Source{Key: "a", ETag: src.ETag, Size: src.Size}, IfNoneMatch: true, Token: "t"}
	now := w.mem.Set("a", []byte("new"))
	_, err := w.p.Publish(t.Context(), j)
	var c *SourceChanged
	if !errors.As(err, &c) || c.Have.ETag != now.ETag {
		t.Errorf("got %v", err)
	}
	if err := w.mem.Delete(t.Context(), "a", objstore.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = w.p.Publish(t.Context(), j); !errors.As(err, &c) || c.Have.Key != "" {
		t.Errorf("got %v", err)
	}
	if _, err := w.mem.Head(t.Context(), "b", objstore.HeadOptions{}); !objstore.Is(err, objstore.NotFound) {
		t.Errorf("it is there: %v", err)
	}
	// Replaced between the HEAD and the COPY.
	src = w.mem.Set("a", []byte("old"))
	w.hook = func(op objstore.Op, _ int) (fate, func()) {
		if op.Name == "COPY" {
			w.mem.Set("a", []byte("newer"))
		}
		return pass, nil
	}
	if _, err = w.p.Publish(t.Context(), j); !errors.As(err, &c) || c.Have.Size != 5 {
		t.Errorf("got %v", err)
	}
	// Copied by an earlier try, and the source deleted since.
	w.hook = nil
	src = w.mem.Set("a", []byte("old"))
	w.publish(j)
	if err := w.mem.Delete(t.Context(), "a", objstore.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.publish(j)
	w.has("b", []byte("old"))
}

// TestCopyOntoItself changes metadata.
func TestCopyOntoItself(t *testing.T) {
	w := newWorld(t, Options{})
	src := w.mem.Set("a", []byte("x"))
	w.publish(Job{Key: "a", Copy: &Source{Key: "a", ETag: src.ETag, Size: 1}, IfMatch: src.ETag, Metadata: map[string]string{"mode": "7"}})
	w.wantTook("HEAD, COPY")
	if o, err := w.mem.Head(t.Context(), "a", objstore.HeadOptions{}); err != nil || o.Metadata["mode"] != "7" {
		t.Errorf("%+v, %v", o, err)
	}
	// Without a token of its own a copy has none, and not that of its source.
	if _, err := w.p.Publish(t.Context(), Job{Key: "b", Copy: &Source{Key: "a", ETag: src.ETag, Size: 1}}); err != nil {
		t.Fatal(err)
	}
	if o, err := w.mem.Head(t.Context(), "b", objstore.HeadOptions{}); err != nil || TokenOf(o) != "" || o.Metadata["mode"] != "7" {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestCopyAskedOnce: a store that does not copy with a condition on the target is asked to once, not for each
// file that is renamed.
func TestCopyAskedOnce(t *testing.T) {
	w := newWorld(t, Options{PartSize: part, Multipart: part})
	unsure(w)
	src := w.mem.Set("a", []byte("content"))
	for i, want := range []string{"HEAD, COPY, GET, PUT", "HEAD, GET, PUT", "HEAD, GET, PUT"} {
		key := fmt.Sprint("b", i)
		w.publish(Job{Key: key, Copy: &Source{Key: "a", ETag: src.ETag, Size: src.Size}, IfNoneMatch: true, Token: fmt.Sprint("t", i)})
		w.wantTook(want)
		w.has(key, []byte("content"))
	}
}
