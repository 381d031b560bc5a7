package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// partSumsOf is what the parts of data hold.
func partSumsOf(data []byte, size int) (out []PartSum) {
	for p := range slices.Chunk(data, size) {
		out = append(out, PartSum{crc64nvme.Checksum(p), sha256.Sum256(p)})
	}
	return out
}

// before publishes data as "k", and returns it as what the next version can be compared with.
func (w *world) before(data []byte) Reuse {
	w.Helper()
	out := w.publish(Job{Key: "k", File: file(w.T, data)})
	if want := partSumsOf(data, part); !slices.Equal(out.Parts, want) || out.PartSize != part || out.Reused != 0 {
		w.Fatalf("of what was sent: parts of %d bytes, %d reused: %x, want %x", out.PartSize, out.Reused, out.Parts, want)
	}
	w.took()
	return Reuse{Key: "k", ETag: out.Object.ETag, Size: int64(len(data)), PartSize: out.PartSize, Parts: out.Parts}
}

// TestReuse: parts that are as in an earlier version are copied by the store, and nothing else is; whatever is
// in the way of that, the file lands as it is.
func TestReuse(t *testing.T) {
	old := random(40, 5*part+100)
	plain := "CREATE MULTIPART, 5 COPY PART, 1 PUT PART, COMPLETE MULTIPART"
	sent := "CREATE MULTIPART, 6 PUT PART, COMPLETE MULTIPART"
	for _, tc := range []struct {
		name, want string
		reused     int64 // -1: may be any
		failed     bool
		spoils     func(w *world, j *Job, data []byte) []byte
	}{
		{"plain", plain, 4*part + 100, false, nil},
		{"longer", "CREATE MULTIPART, 4 COPY PART, 3 PUT PART, COMPLETE MULTIPART", 4 * part, false,
			func(_ *world, _ *Job, data []byte) []byte { return append(data, random(44, part)...) }},
		{"shorter", "CREATE MULTIPART, 3 COPY PART, 2 PUT PART, COMPLETE MULTIPART", 3 * part, false,
			func(_ *world, _ *Job, data []byte) []byte { return data[:4*part+50] }},
		{"no copying", sent, 0, false, func(w *world, _ *Job, data []byte) []byte { w.p.caps.PartCopy = false; return data }},
		{"no conditions on the source", sent, 0, false, func(w *world, _ *Job, data []byte) []byte { w.p.caps.CopyIfMatch = false; return data }},
		{"no checksums", sent, 0, false, func(w *world, _ *Job, data []byte) []byte { w.p.caps.Checksums = false; return data }},
		{"not asked for", sent, 0, false, func(w *world, _ *Job, data []byte) []byte { w.p.opt.Reuse = false; return data }},
		{"odd parts", sent, 0, false, func(_ *world, j *Job, data []byte) []byte { j.Reuse[0].PartSize++; return data }},
		{"same CRC, other hash", sent, 0, false, func(_ *world, j *Job, data []byte) []byte {
			for i := range j.Reuse[0].Parts {
				j.Reuse[0].Parts[i].Hash[31] ^= 1
			}
			return data
		}},
		{"gone", "CREATE MULTIPART, 1 HEAD, 1 COPY PART, 6 PUT PART, COMPLETE MULTIPART", 0, true, func(w *world, _ *Job, data []byte) []byte {
			_ = w.mem.Delete(w.Context(), "k", objstore.DeleteOptions{})
			return data
		}},
		{"replaced", "CREATE MULTIPART, 1 HEAD, 1 COPY PART, 6 PUT PART, COMPLETE MULTIPART", 0, true, func(w *world, _ *Job, data []byte) []byte {
			w.mem.Set("k", random(45, len(old)))
			return data
		}},
		{"may not be read", "CREATE MULTIPART, 1 COPY PART, 6 PUT PART, COMPLETE MULTIPART", 0, true, func(w *world, _ *Job, data []byte) []byte {
			w.does("COPY PART", func(int) fate { return deny })
			return data
		}},
		{"copies of one part fail", "", 0, true, func(w *world, _ *Job, data []byte) []byte {
			w.does("COPY PART", func(int) fate { return fail })
			return data
		}},
		{"the answer of a copy is lost", "", 0, true, func(w *world, _ *Job, data []byte) []byte {
			w.does("COPY PART", func(int) fate { return lose })
			return data
		}},
		{"arrives as another", "", 0, true, func(w *world, _ *Job, data []byte) []byte {
			w.does("COPY PART", func(int) fate { return spoil })
			return data
		}},
		{"replaced in the middle", "", -1, true, func(w *world, _ *Job, data []byte) []byte {
			w.does("COPY PART", func(n int) fate {
				if n == 3 {
					w.mem.Set("k", random(46, len(old)))
				}
				return pass
			})
			return data
		}},
		{"deleted in the middle", "", -1, true, func(w *world, _ *Job, data []byte) []byte {
			w.does("COPY PART", func(n int) fate {
				if n == 2 {
					_ = w.mem.Delete(w.Context(), "k", objstore.DeleteOptions{})
				}
				return pass
			})
			return data
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, Options{PartSize: part, Multipart: part, Parallel: 1, Reuse: true})
			r := w.before(old)
			data := bytes.Clone(old)
			copy(data[3*part+9:], "changed")
			j := Job{Key: "k2", Token: NewToken(), Reuse: []Reuse{r}}
			if tc.spoils != nil {
				data = tc.spoils(w, &j, data)
			}
			j.File = file(t, data)
			out := w.publish(j)
			w.has("k2", data)
			sums(t, out, data)
			if got := w.tally(); tc.want != "" && got != tc.want {
				t.Errorf("requests: %s, want %s", got, tc.want)
			}
			if tc.reused >= 0 && out.Reused != tc.reused || (out.ReuseFailed != nil) != tc.failed || out.Requests.Sent+out.Reused < int64(len(data)) {
				t.Errorf("%d bytes reused, %d sent, failed %v; want %d, %v", out.Reused, out.Requests.Sent, out.ReuseFailed, tc.reused, tc.failed)
			}
			if w.p.opt.Reuse && w.p.caps.PartCopy && w.p.caps.CopyIfMatch && w.p.caps.Checksums && !slices.Equal(out.Parts, partSumsOf(data, part)) {
				t.Errorf("the next version would be compared with %x", out.Parts)
			}
		})
	}
}

// TestReuseOfSeveral: each part is taken from the first object that has it; one that is gone does not
// keep the others from being used.
func TestReuseOfSeveral(t *testing.T) {
	w := newWorld(t, Options{PartSize: part, Multipart: part, Parallel: 1, Reuse: true})
	a, b := random(50, 4*part), random(51, 4*part)
	var all []Reuse
	for _, data := range [][]byte{a, a, b} {
		r := w.before(data)
		r.Key = fmt.Sprint("k", len(all))
		r.ETag = w.mem.Set(r.Key, data).ETag
		all = append(all, r)
	}
	if err := w.mem.Delete(t.Context(), "k0", objstore.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	data := slices.Concat(a[:part], b[part:2*part], random(52, part), a[3*part:])
	out := w.publish(Job{Key: "l", File: file(t, data), Reuse: all})
	w.has("l", data)
	if got := w.tally(); got != "CREATE MULTIPART, 1 HEAD, 4 COPY PART, 1 PUT PART, COMPLETE MULTIPART" || out.Reused != 3*part || !slices.Equal(out.ReuseFailed, []string{"k0"}) {
		t.Errorf("requests: %s; %d bytes reused, failed %q", got, out.Reused, out.ReuseFailed)
	}
}

// TestReuseOfItself: a version takes parts of the one that it replaces, under the same key.
func TestReuseOfItself(t *testing.T) {
	w := newWorld(t, Options{PartSize: part, Multipart: part, Reuse: true})
	data := random(41, 4*part)
	r := w.before(data)
	for round := range 3 {
		data = bytes.Clone(data)
		data[round*part]++
		out := w.publish(Job{Key: "k", File: file(t, data), IfMatch: r.ETag, Reuse: []Reuse{r}})
		w.has("k", data)
		if out.Reused != 3*part || out.Requests.Sent != part {
			t.Errorf("round %d: %d bytes reused, %d sent", round, out.Reused, out.Requests.Sent)
		}
		r = Reuse{Key: "k", ETag: out.Object.ETag, Size: int64(len(data)), PartSize: out.PartSize, Parts: out.Parts}
	}
}

// TestReuseWrongBytes: a store that copies other bytes than those of the object, and vouches for them, is found out
// by the checksum of the whole, and all is sent.
func TestReuseWrongBytes(t *testing.T) {
	w := newWorld(t, Options{PartSize: part, Multipart: part, Parallel: 1, Reuse: true})
	old := random(42, 4*part)
	r := w.before(old)
	w.mem.Set("other", random(43, 4*part))
	wrong, err := w.mem.Head(t.Context(), "other", objstore.HeadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.p.store = copiesOther{w.p.store, wrong}
	out := w.publish(Job{Key: "k2", File: file(t, old), Reuse: []Reuse{r}})
	w.has("k2", old)
	sums(t, out, old)
	if out.Reused != 0 || out.Requests.Parts != 4 {
		t.Errorf("%+v", out)
	}
}

// copiesOther copies parts of another object than it is told, and says nothing of their checksum.
type copiesOther struct {
	objstore.Store
	other objstore.Object
}

func (s copiesOther) CopyPart(ctx context.Context, key, id string, number int, _ string, off, n int64, opt objstore.CopyOptions) (objstore.Part, error) {
	opt.SourceIfMatch = s.other.ETag
	p, err := s.Store.CopyPart(ctx, key, id, number, s.other.Key, off, n, opt)
	p.Checksum = objstore.Checksum{}
	return p, err
}

// TestReuseStream: parts are copied while the file grows too; what is rewritten after it was sent or copied is
// sent or copied then.
func TestReuseStream(t *testing.T) {
	w := newWorld(t, Options{PartSize: part, Multipart: part, Parallel: 1, Reuse: true})
	data := random(47, 6*part)
	r := w.before(data)
	first := bytes.Clone(data)
	copy(first, "a header that is written last")
	copy(first[2*part:], "changed for good")
	data = bytes.Clone(data)
	copy(data[2*part:], "changed for good")
	copy(data[3*part:], "changed at the end")
	f := file(t, first)
	j := Job{Key: "k2", File: f, Token: NewToken(), Reuse: []Reuse{r}}
	st := w.p.Stream(t.Context(), j)
	st.Grown(int64(len(first)))
	w.until("COPY PART", 3)
	w.until("PUT PART", 2)
	writeAt(t, f, data, 0)
	out, err := st.Finish(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.tally(); got != "CREATE MULTIPART, 5 COPY PART, 3 PUT PART, COMPLETE MULTIPART" {
		t.Errorf("requests: %s", got)
	}
	w.has("k2", data)
	sums(t, out, data)
	if out.Reused != 4*part || !slices.Equal(out.Parts, partSumsOf(data, part)) {
		t.Errorf("%d bytes reused; the next version would be compared with %x", out.Reused, out.Parts)
	}
}

// TestReuseResumed: what an earlier process had sent before it died is not sent again, and is known to the
// next version.
func TestReuseResumed(t *testing.T) {
	w := newWorld(t, Options{PartSize: part, Multipart: part, Parallel: 1, Reuse: true})
	data := random(48, 5*part)
	r := w.before(data)
	data = bytes.Clone(data)
	copy(data[part:], "changed")
	j := Job{Key: "k2", File: file(t, data), Token: NewToken(), Reuse: []Reuse{r}}
	j.Began = func(u Upload) error { j.Upload = u; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	w.hook = func(op objstore.Op, n int) (fate, func()) {
		if op.Name == "COPY PART" && n == 3 {
			return pass, cancel
		}
		return pass, nil
	}
	if _, err := w.p.Publish(ctx, j); !errors.Is(err, context.Canceled) && !objstore.Is(err, objstore.Canceled) {
		t.Fatal(err)
	}
	w.hook = nil
	w.took()
	out := w.publish(j)
	w.has("k2", data)
	sums(t, out, data)
	// This store does not tell what a copied part holds, so that those are copied once more.
	if got := w.tally(); got != "1 LIST PARTS, 4 COPY PART, COMPLETE MULTIPART" || out.Requests.Sent != 0 || !slices.Equal(out.Parts, partSumsOf(data, part)) {
		t.Errorf("requests: %s; the next version would be compared with %x", got, out.Parts)
	}
}

// TestFamily: which keys may be versions of one thing, and which of them are nearest.
func TestFamily(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		same bool
		like int
	}{
		{"run/step-1000/model.pt", "run/step-2000/model.pt", true, 0},
		{"run/step-1000/rank-3.pt", "run/step-2000/rank-3.pt", true, 1},
		{"run/step-1000/rank-3.pt", "run/step-2000/rank-4.pt", true, 0},
		{"model-00001-of-00004.st", "model-00001-of-00004.st", true, 2},
		{"3fa85f64-5717-4562-b3fc-2c963f66afa6/w", "0fa85f64-5717-4562-b3fc-2c963f66afa6/w", true, 0},
		{"deadbeef1/w", "deadbeef2/w", true, 0},
		{"run/step-1000/model.pt", "run/1000/model.pt", false, 0},
		{"a/model.pt", "b/model.pt", false, 0},
		{"a/1/model.pt", "a/model.pt", false, 0},
	} {
		if got := Family(tc.a) == Family(tc.b); got != tc.same {
			t.Errorf("%s and %s: of one family: %v", tc.a, tc.b, got)
		}
		if got := Likeness(tc.a, tc.b); tc.same && got != tc.like {
			t.Errorf("%s and %s: likeness %d, want %d", tc.a, tc.b, got, tc.like)
		}
	}
}

// copying is a publisher that has parts copied whatever is known of the server. versitygw copies them, but
// vouches for the checksum of the whole source; where the source has none, it computes the part's.
func (b *bucket) copying() *Publisher {
	caps := b.store.Caps()
	caps.PartCopy = true
	p := New(withCaps{b.store, caps}, Options{PartSize: 5 * mib, Multipart: 5 * mib, Parallel: 4, Scratch: b.TempDir(), Reuse: true})
	b.Cleanup(p.Close)
	return p
}

// unsum takes the checksum of an object away from a versitygw.
func (b *bucket) unsum(key string) {
	b.Helper()
	if err := unix.Removexattr(b.srv.Dir+"/"+b.name+"/"+key, "user.checksums"); err != nil {
		b.Fatalf("the server keeps no checksum of %s as an attribute of its file: %v", key, err)
	}
}

// testS3Reuse: as TestReuse, on a server that copies parts. Only what has changed goes over the wire.
func testS3Reuse(b *bucket) {
	if b.srv.Kind != "versitygw" {
		b.Skip("this server does not copy parts of an upload with a checksum of the whole")
	}
	p := b.copying()
	data := random(90, 22*mib)
	out, err := p.Publish(b.Context(), Job{Key: "step-1/k", File: file(b, data), IfNoneMatch: true, Token: NewToken()})
	if err != nil {
		b.Fatal(err)
	}
	r := Reuse{Key: "step-1/k", ETag: out.Object.ETag, Size: int64(len(data)), PartSize: out.PartSize, Parts: out.Parts}
	b.unsum("step-1/k")
	copy(data[6*mib:], "changed")
	j := Job{Key: "step-2/k", File: file(b, data), IfNoneMatch: true, Token: NewToken(), Reuse: []Reuse{r}}
	b.proxy.Forget()
	if out, err = p.Publish(b.Context(), j); err != nil {
		b.Fatal(err)
	}
	var wire int64
	for _, q := range b.proxy.Requests() {
		n, _ := strconv.ParseInt(q.Header.Get("Content-Length"), 10, 64)
		wire += n
	}
	b.wantWire("create 1, part 1, part copy 4, complete 1")
	if out.Reused != 17*mib || out.Requests.Sent != 5*mib || wire < 5*mib || wire > 5*mib+100_000 {
		b.Errorf("%d bytes reused, %d sent, %d over the wire", out.Reused, out.Requests.Sent, wire)
	}
	b.has("step-2/k", data)
	sums(b, out, data)
	o, err := b.store.Head(b.Context(), "step-2/k", objstore.HeadOptions{})
	if err != nil || o.Checksum != crc64(crc64nvme.Checksum(data)) {
		b.Errorf("the server has %+v, %v", o, err)
	}
	// The source is replaced: the condition holds it back, and all is sent.
	b.publish(Job{Key: "step-1/k", Data: random(91, 22*mib)})
	j.Key, j.Token = "step-3/k", NewToken()
	if out, err = p.Publish(b.Context(), j); err != nil {
		b.Fatal(err)
	}
	if out.Reused != 0 || out.ReuseFailed == nil || out.Requests.Sent != 22*mib {
		b.Errorf("a source that was replaced: %+v", out)
	}
	b.has("step-3/k", data)
	b.noUploads()
}

// testS3ReuseLies: servers that do not copy parts rightly, and are asked to, do no harm.
func testS3ReuseLies(b *bucket) {
	p := b.copying()
	data := random(92, 22*mib)
	out, err := p.Publish(b.Context(), Job{Key: "k", File: file(b, data), Token: NewToken()})
	if err != nil {
		b.Fatal(err)
	}
	r := Reuse{Key: "k", ETag: out.Object.ETag, Size: int64(len(data)), PartSize: out.PartSize, Parts: out.Parts}
	if out, err = p.Publish(b.Context(), Job{Key: "l", File: file(b, data), Token: NewToken(), Reuse: []Reuse{r}}); err != nil {
		b.Fatal(err)
	}
	if out.Reused != 0 || out.ReuseFailed == nil {
		b.Errorf("%+v", out)
	}
	b.has("l", data)
	sums(b, out, data)
	b.noUploads()
}
