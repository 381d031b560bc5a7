package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/leatfs/leatfs/objstore"
)

func multipartTests() []test {
	mp := func(c objstore.Caps) bool { return c.Multipart }
	return []test{
		{"Multipart", mp, testMultipart},
		{"MultipartChecksum", func(c objstore.Caps) bool { return c.Multipart && c.Checksums }, testMultipartChecksum},
		{"MultipartConditions", func(c objstore.Caps) bool { return c.Multipart && c.PutIfNoneMatch }, testMultipartConditions},
		{"MultipartAbort", mp, testMultipartAbort},
		{"MultipartMetadata", mp, testMultipartMetadata},
		{"MultipartErrors", mp, testMultipartErrors},
		{"CopyPart", func(c objstore.Caps) bool { return c.Multipart && c.PartCopy }, testCopyPart},
	}
}

// partSize is the smallest size a part but the last may have here, and enough to matter.
func (e *env) partSize() int { return int(max(e.s.Caps().MinPartSize, 1000)) }

func (e *env) create(key string, opt objstore.PutOptions) string {
	e.Helper()
	id, err := e.s.CreateMultipart(e.ctx, key, opt)
	if err != nil || id == "" {
		e.Fatalf("CreateMultipart(%q): %q, %v", key, id, err)
	}
	return id
}

func (e *env) putPart(key, id string, number int, data []byte) objstore.Part {
	e.Helper()
	p, err := e.s.PutPart(e.ctx, key, id, number, NewSource(data), objstore.Checksum{})
	if err != nil {
		e.Fatalf("PutPart(%q, %d): %v", key, number, err)
	}
	if p.Number != number || p.Size != int64(len(data)) || p.ETag == "" {
		e.Errorf("PutPart(%q, %d): got %+v", key, number, p)
	}
	return p
}

func testMultipart(e *env) {
	ps := e.partSize()
	data := Bytes(40, 3*ps+123)
	id := e.create("d/f", objstore.PutOptions{})
	parts := make([]objstore.Part, 4)
	var wg sync.WaitGroup
	for _, n := range []int{4, 2, 1, 3} { // any order, at once
		wg.Go(func() {
			b := data[(n-1)*ps : min(n*ps, len(data))]
			p, err := e.s.PutPart(e.ctx, "d/f", id, n, NewSource(b), Sum(objstore.CRC64NVME, b))
			if err != nil {
				e.Errorf("PutPart %d: %v", n, err)
			}
			parts[n-1] = p
		})
	}
	wg.Wait()
	if e.Failed() {
		e.FailNow()
	}
	_, err := e.s.Head(e.ctx, "d/f", objstore.HeadOptions{})
	e.wantKind("Head before Complete", err, objstore.NotFound)
	if keys, prefixes, _ := e.list(objstore.ListOptions{Delimiter: "/"}); len(keys)+len(prefixes) > 0 {
		e.Errorf("an upload is listed: %q, %q", keys, prefixes)
	}
	// A part may be sent again: the last counts.
	parts[1] = e.putPart("d/f", id, 2, data[ps:2*ps])

	got, err := e.s.ListParts(e.ctx, "d/f", id)
	if err != nil {
		e.Fatal(err)
	}
	slices.SortFunc(got, func(a, b objstore.Part) int { return a.Number - b.Number })
	if len(got) != 4 {
		e.Fatalf("ListParts: got %+v", got)
	}
	for i, p := range got {
		if p.Number != parts[i].Number || p.ETag != parts[i].ETag || p.Size != parts[i].Size {
			e.Errorf("ListParts: got %+v, want %+v", p, parts[i])
		}
		b := data[i*ps : min((i+1)*ps, len(data))]
		if a := p.Checksum.Algorithm; a != objstore.ChecksumNone && p.Checksum != Sum(a, b) {
			e.Errorf("ListParts: part %d has %+v, want %+v", p.Number, p.Checksum, Sum(a, b))
		}
	}
	// What ListParts says is enough to complete with: an upload resumed after a crash.
	o, err := e.s.CompleteMultipart(e.ctx, "d/f", id, got, objstore.PutOptions{})
	if err != nil {
		e.Fatal(err)
	}
	if o.Key != "d/f" || o.Size != int64(len(data)) || o.ETag == "" {
		e.Errorf("Complete: got %+v", o)
	}
	r := e.whole("d/f", data)
	if r.Object.ETag != o.ETag {
		e.Errorf("ETag: Complete says %q, Get %q", o.ETag, r.Object.ETag)
	}
	if a := r.Object.Checksum.Algorithm; a != objstore.ChecksumNone && r.Object.Checksum != Sum(a, data) {
		e.Errorf("Checksum of the whole: got %+v, want %+v", r.Object.Checksum, Sum(a, data))
	}
	if r.Object.ETagIsMD5 {
		e.Errorf("the ETag of several parts, %q, is said to be an MD5", o.ETag)
	}
	// Gaps between the numbers are allowed.
	id = e.create("gap", objstore.PutOptions{})
	p7 := e.putPart("gap", id, 7, data[:ps])
	p9 := e.putPart("gap", id, 9, data[ps:ps+10])
	if _, err := e.s.CompleteMultipart(e.ctx, "gap", id, []objstore.Part{p7, p9}, objstore.PutOptions{}); err != nil {
		e.Fatal(err)
	}
	e.whole("gap", data[:ps+10])
}

func testMultipartChecksum(e *env) {
	ps := e.partSize()
	data := Bytes(41, ps+5000)
	for _, a := range []objstore.ChecksumAlgorithm{objstore.CRC64NVME, objstore.CRC32C, objstore.CRC32} {
		for _, good := range []bool{true, false} {
			key := fmt.Sprintf("%v-%v", a, good)
			id := e.create(key, objstore.PutOptions{Checksum: objstore.Checksum{Algorithm: a}})
			var parts []objstore.Part
			for i, b := range [][]byte{data[:ps], data[ps:]} {
				bad := Sum(a, b)
				bad.Value ^= 2
				_, err := e.s.PutPart(e.ctx, key, id, i+1, NewSource(b), bad)
				e.wantKind(fmt.Sprintf("PutPart with a wrong %v", a), err, objstore.Corrupt)
				p, err := e.s.PutPart(e.ctx, key, id, i+1, NewSource(b), Sum(a, b))
				if err != nil {
					e.Fatalf("PutPart with %v: %v", a, err)
				}
				parts = append(parts, p)
			}
			sum := Sum(a, data)
			if !good {
				sum.Value ^= 1
				_, err := e.s.CompleteMultipart(e.ctx, key, id, parts, objstore.PutOptions{Checksum: sum})
				if err == nil {
					e.Errorf("Complete with a wrong %v: no error", a)
				} else if k := objstore.KindOf(err); k != objstore.Corrupt && k != objstore.BadRequest {
					e.Errorf("Complete with a wrong %v: %v", a, err)
				}
				_, err = e.s.Head(e.ctx, key, objstore.HeadOptions{})
				e.wantKind("Head of what was refused", err, objstore.NotFound)
				continue
			}
			if _, err := e.s.CompleteMultipart(e.ctx, key, id, parts, objstore.PutOptions{Checksum: sum}); err != nil {
				e.Errorf("Complete with %v: %v", a, err)
				continue
			}
			h := e.head(key)
			if h.Checksum.Algorithm == objstore.ChecksumNone || h.Checksum != Sum(h.Checksum.Algorithm, data) {
				e.Errorf("Head after %v: got %+v, want %+v", a, h.Checksum, sum)
			}
			e.whole(key, data)
		}
	}
}

func testMultipartConditions(e *env) {
	old := e.put("f", []byte("old")).ETag
	upload := func(key, data string, opt objstore.PutOptions) error {
		id := e.create(key, objstore.PutOptions{})
		p := e.putPart(key, id, 1, []byte(data))
		_, err := e.s.CompleteMultipart(e.ctx, key, id, []objstore.Part{p}, opt)
		if err != nil {
			if aerr := e.s.AbortMultipart(e.ctx, key, id); aerr != nil {
				e.Errorf("Abort: %v", aerr)
			}
		}
		return err
	}
	e.wantKind("IfNoneMatch over something", upload("f", "new", objstore.PutOptions{IfNoneMatch: true}), objstore.PreconditionFailed)
	e.whole("f", []byte("old"))
	if err := upload("g", "new", objstore.PutOptions{IfNoneMatch: true}); err != nil {
		e.Errorf("IfNoneMatch over nothing: %v", err)
	}
	if !e.s.Caps().PutIfMatch {
		return
	}
	e.wantKind("IfMatch of another ETag", upload("f", "new", objstore.PutOptions{IfMatch: "0123456789abcdef0123456789abcdef"}), objstore.PreconditionFailed)
	e.whole("f", []byte("old"))
	if err := upload("f", "new", objstore.PutOptions{IfMatch: old}); err != nil {
		e.Errorf("IfMatch: %v", err)
	}
	e.whole("f", []byte("new"))
	e.wantKind("IfMatch over nothing", upload("none", "new", objstore.PutOptions{IfMatch: old}), objstore.PreconditionFailed)
}

func testMultipartAbort(e *env) {
	id := e.create("f", objstore.PutOptions{})
	p := e.putPart("f", id, 1, []byte("x"))
	if err := e.s.AbortMultipart(e.ctx, "f", id); err != nil {
		e.Fatal(err)
	}
	if err := e.s.AbortMultipart(e.ctx, "f", id); err != nil {
		e.Errorf("second Abort: %v", err)
	}
	_, err := e.s.ListParts(e.ctx, "f", id)
	e.wantKind("ListParts", err, objstore.NotFound)
	_, err = e.s.PutPart(e.ctx, "f", id, 1, NewSource([]byte("x")), objstore.Checksum{})
	e.wantKind("PutPart", err, objstore.NotFound)
	_, err = e.s.CompleteMultipart(e.ctx, "f", id, []objstore.Part{p}, objstore.PutOptions{})
	e.wantKind("Complete", err, objstore.NotFound)
	_, err = e.s.Head(e.ctx, "f", objstore.HeadOptions{})
	e.wantKind("Head", err, objstore.NotFound)

	// Two uploads to one key know nothing of each other.
	a, b := e.create("two", objstore.PutOptions{}), e.create("two", objstore.PutOptions{})
	if a == b {
		e.Fatal("two uploads have one id")
	}
	pa, pb := e.putPart("two", a, 1, []byte("a")), e.putPart("two", b, 1, []byte("bb"))
	if _, err := e.s.CompleteMultipart(e.ctx, "two", b, []objstore.Part{pb}, objstore.PutOptions{}); err != nil {
		e.Fatal(err)
	}
	e.whole("two", []byte("bb"))
	if _, err := e.s.CompleteMultipart(e.ctx, "two", a, []objstore.Part{pa}, objstore.PutOptions{}); err != nil {
		e.Fatal(err)
	}
	e.whole("two", []byte("a"))
}

func testMultipartMetadata(e *env) {
	if e.f.NoMetadata {
		return
	}
	opt := objstore.PutOptions{Metadata: map[string]string{"token": "t1"}, ContentType: "image/jpeg"}
	id := e.create("f", opt)
	p := e.putPart("f", id, 1, []byte("x"))
	if _, err := e.s.CompleteMultipart(e.ctx, "f", id, []objstore.Part{p}, objstore.PutOptions{}); err != nil {
		e.Fatal(err)
	}
	if h := e.head("f"); h.Metadata["token"] != "t1" || h.ContentType != "image/jpeg" {
		e.Errorf("Head: got %q %q", h.Metadata, h.ContentType)
	}
}

func testMultipartErrors(e *env) {
	id := e.create("f", objstore.PutOptions{})
	p := e.putPart("f", id, 1, []byte("x"))
	for _, n := range []int{0, -1, e.s.Caps().MaxParts + 1} {
		_, err := e.s.PutPart(e.ctx, "f", id, n, NewSource([]byte("x")), objstore.Checksum{})
		e.wantKind(fmt.Sprintf("PutPart %d", n), err, objstore.BadRequest)
	}
	wrong := p
	wrong.ETag = "0123456789abcdef0123456789abcdef"
	for _, parts := range [][]objstore.Part{{wrong}, {p, {Number: 2, ETag: p.ETag, Size: 1}}} {
		if _, err := e.s.CompleteMultipart(e.ctx, "f", id, parts, objstore.PutOptions{}); err == nil {
			e.Errorf("Complete with %+v: no error", parts)
		}
		_, err := e.s.Head(e.ctx, "f", objstore.HeadOptions{})
		e.wantKind("Head", err, objstore.NotFound)
	}
	if _, err := e.s.CompleteMultipart(e.ctx, "f", id, []objstore.Part{p}, objstore.PutOptions{}); err != nil {
		e.Errorf("Complete after errors: %v", err)
	}
}

func testCopyPart(e *env) {
	ps := e.partSize()
	data := Bytes(42, 2*ps+1000)
	e.put("src", data)
	etag := e.head("src").ETag
	id := e.create("dst", objstore.PutOptions{})
	p1, err := e.s.CopyPart(e.ctx, "dst", id, 1, "src", 500, int64(ps), objstore.CopyOptions{SourceIfMatch: etag})
	if err != nil {
		e.Fatal(err)
	}
	if p1.Number != 1 || p1.Size != int64(ps) || p1.ETag == "" {
		e.Errorf("CopyPart: got %+v", p1)
	}
	if e.s.Caps().CopyIfMatch {
		_, err = e.s.CopyPart(e.ctx, "dst", id, 2, "src", 0, int64(ps), objstore.CopyOptions{SourceIfMatch: "0123456789abcdef0123456789abcdef"})
		e.wantKind("CopyPart of another ETag", err, objstore.PreconditionFailed)
	}
	_, err = e.s.CopyPart(e.ctx, "dst", id, 2, "none", 0, 1, objstore.CopyOptions{})
	e.wantKind("CopyPart of nothing", err, objstore.NotFound)
	p2 := e.putPart("dst", id, 2, []byte("tail"))
	o, err := e.s.CompleteMultipart(e.ctx, "dst", id, []objstore.Part{p1, p2}, objstore.PutOptions{})
	if err != nil {
		e.Fatal(err)
	}
	want := append(bytes.Clone(data[500:500+ps]), "tail"...)
	if o.Size != int64(len(want)) {
		e.Errorf("Complete: got size %d, want %d", o.Size, len(want))
	}
	e.whole("dst", want)
	if h := e.head("dst").Checksum; h.Algorithm != objstore.ChecksumNone && h != Sum(h.Algorithm, want) {
		e.Errorf("Checksum of the whole: got %+v, want %+v", h, Sum(h.Algorithm, want))
	}
}
