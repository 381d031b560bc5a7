package storetest

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/leatfs/leatfs/objstore"
)

func writeTests() []test {
	checksums := func(c objstore.Caps) bool { return c.Checksums }
	return []test{
		{"PutSizes", nil, testPutSizes},
		{"PutChecksum", checksums, testPutChecksum},
		{"PutSourceFails", nil, testPutSourceFails},
		{"PutAtomic", nil, testPutAtomic},
		{"Metadata", nil, testMetadata},
		{"Delete", nil, testDelete},
	}
}

func conditionTests() []test {
	return []test{
		{"PutIfNoneMatch", func(c objstore.Caps) bool { return c.PutIfNoneMatch }, testPutIfNoneMatch},
		{"PutIfMatch", func(c objstore.Caps) bool { return c.PutIfMatch }, testPutIfMatch},
		{"PutRace", func(c objstore.Caps) bool { return c.PutIfNoneMatch }, testPutRace},
		{"DeleteIfMatch", func(c objstore.Caps) bool { return c.DeleteIfMatch }, testDeleteIfMatch},
		{"Unsupported", nil, testUnsupported},
	}
}

func testPutSizes(e *env) {
	for i, n := range []int{0, 1, 4095, 4096, 1 << 20, 6<<20 + 1} {
		key := fmt.Sprintf("s/%d", n)
		data := Bytes(uint64(20+i), n)
		e.put(key, data)
		e.whole(key, data)
		e.put(key, []byte("shorter"))
		e.whole(key, []byte("shorter"))
	}
}

func testPutChecksum(e *env) {
	data := Bytes(30, 200_000)
	for _, a := range []objstore.ChecksumAlgorithm{objstore.CRC64NVME, objstore.CRC32C, objstore.CRC32} {
		key := "sum/" + a.String()
		sum := Sum(a, data)
		o, err := e.s.Put(e.ctx, key, NewSource(data), objstore.PutOptions{Checksum: sum})
		if err != nil {
			e.Errorf("Put with %v: %v", a, err)
			continue
		}
		// The store may keep an algorithm of its own.
		if o.Checksum.Algorithm == objstore.ChecksumNone || o.Checksum != Sum(o.Checksum.Algorithm, data) {
			e.Errorf("Put with %v: got %+v", a, o.Checksum)
		}
		h := e.head(key)
		if h.Checksum.Algorithm == objstore.ChecksumNone || h.Checksum != Sum(h.Checksum.Algorithm, data) {
			e.Errorf("Head after Put with %v: got %+v", a, h.Checksum)
		}
		if r := e.whole(key, data); r.Object.Checksum != h.Checksum {
			e.Errorf("Get after Put with %v: got %+v, Head has %+v", a, r.Object.Checksum, h.Checksum)
		}
		sum.Value ^= 1 << 7
		_, err = e.s.Put(e.ctx, "wrong/"+a.String(), NewSource(data), objstore.PutOptions{Checksum: sum})
		e.wantKind("Put with a wrong "+a.String(), err, objstore.Corrupt)
		_, err = e.s.Head(e.ctx, "wrong/"+a.String(), objstore.HeadOptions{})
		e.wantKind("Head of what was refused", err, objstore.NotFound)
		// What was there stays.
		if _, err = e.s.Put(e.ctx, key, NewSource(data[1:]), objstore.PutOptions{Checksum: sum}); err == nil {
			e.Error("a wrong checksum was taken")
		}
		e.whole(key, data)
	}
}

// brokenSource fails half way.
type brokenSource struct{ Source }

var errBroken = errors.New("the disk is broken")

func (b brokenSource) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.Size()/2 {
		return 0, errBroken
	}
	return b.Source.ReadAt(p, off)
}

func testPutSourceFails(e *env) {
	src := brokenSource{NewSource(Bytes(31, 2<<20))}
	for _, sum := range []objstore.Checksum{{}, {Algorithm: objstore.CRC64NVME, Value: 1}} {
		_, err := e.s.Put(e.ctx, "f", src, objstore.PutOptions{Checksum: sum})
		if !errors.Is(err, errBroken) {
			e.Errorf("Put of a source that fails: got %v, want %v", err, errBroken)
		}
		_, err = e.s.Head(e.ctx, "f", objstore.HeadOptions{})
		e.wantKind("Head", err, objstore.NotFound)
	}
}

// testPutAtomic reads while two contents take turns: each read is one of them.
func testPutAtomic(e *env) {
	const size = 300_000
	a, b := Bytes(32, size), Bytes(33, size)
	sumA, sumB := Sum(objstore.CRC64NVME, a), Sum(objstore.CRC64NVME, b)
	e.put("f", a)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer stop.Store(true)
		for i := range 20 {
			data := a
			if i%2 == 0 {
				data = b
			}
			if _, err := e.s.Put(e.ctx, "f", NewSource(data), objstore.PutOptions{}); err != nil {
				e.Errorf("Put: %v", err)
			}
		}
	})
	for !stop.Load() {
		got, _, err := e.read("f", objstore.GetOptions{Length: -1})
		if objstore.KindOf(err) == objstore.PreconditionFailed || objstore.KindOf(err) == objstore.Unavailable {
			continue // changed while it was read: said, not hidden
		}
		if err != nil {
			e.Errorf("Get: %v", err)
			break
		}
		if s := Sum(objstore.CRC64NVME, got); s != sumA && s != sumB {
			e.Errorf("a mixture was read: %s", brief(got))
			break
		}
	}
	wg.Wait()
}

func testMetadata(e *env) {
	if e.f.NoMetadata {
		return
	}
	opt := objstore.PutOptions{
		Metadata:    map[string]string{"token": "host-1/4711", "mixed-case": "Value With Blanks"},
		ContentType: "application/x-leat",
	}
	if _, err := e.s.Put(e.ctx, "f", NewSource([]byte("x")), opt); err != nil {
		e.Fatal(err)
	}
	check := func(what string, o objstore.Object, md map[string]string) {
		e.Helper()
		if !maps.Equal(o.Metadata, md) || o.ContentType != opt.ContentType {
			e.Errorf("%s: got %q %q, want %q %q", what, o.Metadata, o.ContentType, md, opt.ContentType)
		}
	}
	check("Head", e.head("f"), opt.Metadata)
	check("Get", e.whole("f", []byte("x")).Object, opt.Metadata)
	if _, err := e.s.Copy(e.ctx, "f", "g", objstore.CopyOptions{}); err != nil {
		e.Fatal(err)
	}
	check("Head of a copy", e.head("g"), opt.Metadata)
	md := map[string]string{"other": "2"}
	if _, err := e.s.Copy(e.ctx, "f", "h", objstore.CopyOptions{Metadata: md}); err != nil {
		e.Fatal(err)
	}
	check("Head of a copy with metadata of its own", e.head("h"), md)
	if o := e.put("plain", []byte("x")); len(o.Metadata) > 0 {
		e.Errorf("Put without metadata: got %q", o.Metadata)
	}
	if o := e.head("plain"); len(o.Metadata) > 0 {
		e.Errorf("Head without metadata: got %q", o.Metadata)
	}
}

func testDelete(e *env) {
	e.put("d/f", []byte("x"))
	e.put("d/g", []byte("y"))
	for range 2 {
		if err := e.s.Delete(e.ctx, "d/f", objstore.DeleteOptions{}); err != nil {
			e.Errorf("Delete: %v", err)
		}
	}
	_, err := e.s.Head(e.ctx, "d/f", objstore.HeadOptions{})
	e.wantKind("Head", err, objstore.NotFound)
	if err := e.s.Delete(e.ctx, "never/was", objstore.DeleteOptions{}); err != nil {
		e.Errorf("Delete of what never was: %v", err)
	}
	e.whole("d/g", []byte("y"))
}

func testPutIfNoneMatch(e *env) {
	opt := objstore.PutOptions{IfNoneMatch: true}
	if _, err := e.s.Put(e.ctx, "d/f", NewSource([]byte("first")), opt); err != nil {
		e.Fatal(err)
	}
	_, err := e.s.Put(e.ctx, "d/f", NewSource([]byte("second")), opt)
	e.wantKind("second Put", err, objstore.PreconditionFailed)
	e.whole("d/f", []byte("first"))
	if e.f.DeletedExists && e.s.Caps().Versions {
		return
	}
	if err := e.s.Delete(e.ctx, "d/f", objstore.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
	if _, err := e.s.Put(e.ctx, "d/f", NewSource([]byte("third")), opt); err != nil {
		e.Errorf("Put after Delete: %v", err)
	}
}

func testPutIfMatch(e *env) {
	first := e.put("f", []byte("first")).ETag
	second, err := e.s.Put(e.ctx, "f", NewSource([]byte("second")), objstore.PutOptions{IfMatch: first})
	if err != nil {
		e.Fatal(err)
	}
	_, err = e.s.Put(e.ctx, "f", NewSource([]byte("third")), objstore.PutOptions{IfMatch: first})
	e.wantKind("Put over an ETag that is gone", err, objstore.PreconditionFailed)
	e.whole("f", []byte("second"))
	_, err = e.s.Put(e.ctx, "none", NewSource([]byte("x")), objstore.PutOptions{IfMatch: second.ETag})
	e.wantKind("Put over nothing", err, objstore.PreconditionFailed)
	_, err = e.s.Put(e.ctx, "f", NewSource([]byte("x")), objstore.PutOptions{IfMatch: second.ETag, IfNoneMatch: true})
	e.wantKind("both conditions", err, objstore.BadRequest)
}

// testPutRace: of many that create a key, one wins.
func testPutRace(e *env) {
	for round := range 5 {
		key := fmt.Sprintf("r/%d", round)
		var won, lost atomic.Int32
		var winner atomic.Value
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				data := fmt.Sprintf("writer %d", i)
				_, err := e.s.Put(e.ctx, key, NewSource([]byte(data)), objstore.PutOptions{IfNoneMatch: true})
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(data)
				case objstore.Is(err, objstore.PreconditionFailed):
					lost.Add(1)
				default:
					e.Errorf("Put: %v", err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != 7 {
			e.Fatalf("%d writers won, %d lost", won.Load(), lost.Load())
		}
		e.whole(key, []byte(winner.Load().(string)))
	}
}

func testDeleteIfMatch(e *env) {
	old := e.put("f", []byte("old")).ETag
	now := e.put("f", []byte("now")).ETag
	err := e.s.Delete(e.ctx, "f", objstore.DeleteOptions{IfMatch: old})
	e.wantKind("Delete of an ETag that is gone", err, objstore.PreconditionFailed)
	e.whole("f", []byte("now"))
	if err := e.s.Delete(e.ctx, "f", objstore.DeleteOptions{IfMatch: now}); err != nil {
		e.Errorf("Delete: %v", err)
	}
	_, err = e.s.Head(e.ctx, "f", objstore.HeadOptions{})
	e.wantKind("Head", err, objstore.NotFound)
}

// testUnsupported: what Caps denies is refused, never ignored.
func testUnsupported(e *env) {
	etag := e.put("f", []byte("x")).ETag
	c := e.s.Caps()
	src := NewSource([]byte("y"))
	if !c.PutIfNoneMatch {
		_, err := e.s.Put(e.ctx, "g", src, objstore.PutOptions{IfNoneMatch: true})
		e.wantKind("Put IfNoneMatch", err, objstore.Unsupported)
	}
	if !c.PutIfMatch {
		_, err := e.s.Put(e.ctx, "f", src, objstore.PutOptions{IfMatch: etag})
		e.wantKind("Put IfMatch", err, objstore.Unsupported)
	}
	if !c.DeleteIfMatch {
		err := e.s.Delete(e.ctx, "f", objstore.DeleteOptions{IfMatch: etag})
		e.wantKind("Delete IfMatch", err, objstore.Unsupported)
	}
	if !c.CopyIfMatch {
		_, err := e.s.Copy(e.ctx, "f", "g", objstore.CopyOptions{SourceIfMatch: etag})
		e.wantKind("Copy SourceIfMatch", err, objstore.Unsupported)
	}
	if !c.Versions {
		_, err := e.s.Head(e.ctx, "f", objstore.HeadOptions{VersionID: "v"})
		e.wantKind("Head VersionID", err, objstore.Unsupported)
		_, err = e.s.Get(e.ctx, "f", objstore.GetOptions{VersionID: "v", Length: -1})
		e.wantKind("Get VersionID", err, objstore.Unsupported)
		err = e.s.Delete(e.ctx, "f", objstore.DeleteOptions{VersionID: "v"})
		e.wantKind("Delete VersionID", err, objstore.Unsupported)
	}
	if !c.ListOrdered {
		_, err := e.s.List(e.ctx, objstore.ListOptions{StartAfter: "a"})
		e.wantKind("List StartAfter", err, objstore.Unsupported)
	}
	if !c.Multipart {
		_, err := e.s.CreateMultipart(e.ctx, "g", objstore.PutOptions{})
		e.wantKind("CreateMultipart", err, objstore.Unsupported)
	}
	e.whole("f", []byte("x"))
}
