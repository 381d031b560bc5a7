package storetest

import (
	"bytes"

	"github.com/leatfs/leatfs/objstore"
)

func copyTests() []test {
	return []test{
		{"Copy", nil, testCopy},
		{"CopyConditions", nil, testCopyConditions},
	}
}

func versionTests() []test {
	return []test{
		{"Versions", func(c objstore.Caps) bool { return c.Versions }, testVersions},
	}
}

func testCopy(e *env) {
	data := Bytes(50, 200_000)
	e.put("a/src", data)
	src := e.head("a/src")
	o, err := e.s.Copy(e.ctx, "a/src", "b/dst", objstore.CopyOptions{})
	if err != nil {
		e.Fatal(err)
	}
	h := e.head("b/dst")
	if o.Key != "b/dst" || o.Size != int64(len(data)) || o.ETag == "" || o.ETag != h.ETag {
		e.Errorf("Copy: got %+v, Head %+v", o, h)
	}
	if a := h.Checksum.Algorithm; a != objstore.ChecksumNone && h.Checksum != Sum(a, data) {
		e.Errorf("checksum of a copy: got %+v, want %+v", h.Checksum, Sum(a, data))
	}
	e.whole("b/dst", data)
	e.whole("a/src", data)
	if now := e.head("a/src").ETag; now != src.ETag {
		e.Errorf("the source's ETag changed from %q to %q", src.ETag, now)
	}
	// The copy is a copy: a change of the source does not change it.
	e.put("a/src", []byte("new"))
	e.whole("b/dst", data)
	// Over something.
	if _, err := e.s.Copy(e.ctx, "a/src", "b/dst", objstore.CopyOptions{}); err != nil {
		e.Fatal(err)
	}
	e.whole("b/dst", []byte("new"))
	_, err = e.s.Copy(e.ctx, "none", "c", objstore.CopyOptions{})
	e.wantKind("Copy of nothing", err, objstore.NotFound)
	e.put("empty", nil)
	if _, err := e.s.Copy(e.ctx, "empty", "empty2", objstore.CopyOptions{}); err != nil {
		e.Errorf("Copy of an empty object: %v", err)
	}
	e.whole("empty2", nil)
}

func testCopyConditions(e *env) {
	old := e.put("src", []byte("old")).ETag
	now := e.put("src", []byte("now!")).ETag
	e.put("there", []byte("there"))
	if e.s.Caps().CopyIfMatch {
		_, err := e.s.Copy(e.ctx, "src", "dst", objstore.CopyOptions{SourceIfMatch: old})
		e.wantKind("Copy of an ETag that is gone", err, objstore.PreconditionFailed)
		_, err = e.s.Head(e.ctx, "dst", objstore.HeadOptions{})
		e.wantKind("Head", err, objstore.NotFound)
		if _, err := e.s.Copy(e.ctx, "src", "dst", objstore.CopyOptions{SourceIfMatch: now}); err != nil {
			e.Errorf("Copy: %v", err)
		}
	}
	_, err := e.s.Copy(e.ctx, "src", "there", objstore.CopyOptions{IfNoneMatch: true})
	if !objstore.Is(err, objstore.Unsupported) {
		e.wantKind("Copy over something", err, objstore.PreconditionFailed)
		if _, err := e.s.Copy(e.ctx, "src", "free", objstore.CopyOptions{IfNoneMatch: true}); err != nil {
			e.Errorf("Copy over nothing: %v", err)
		}
	}
	e.whole("there", []byte("there"))
}

func testVersions(e *env) {
	v1 := e.put("f", []byte("one"))
	v2 := e.put("f", []byte("two!"))
	if v1.VersionID == "" || v2.VersionID == "" || v1.VersionID == v2.VersionID {
		e.Fatalf("versions %q and %q", v1.VersionID, v2.VersionID)
	}
	for _, c := range []struct {
		v    objstore.Object
		want string
	}{{v1, "one"}, {v2, "two!"}} {
		b, r, err := e.read("f", objstore.GetOptions{Length: -1, VersionID: c.v.VersionID, IfMatch: c.v.ETag})
		if err != nil || !bytes.Equal(b, []byte(c.want)) {
			e.Fatalf("Get of version %q: %q, %v", c.v.VersionID, b, err)
		}
		if r.Object.VersionID != c.v.VersionID {
			e.Errorf("Get of version %q describes %+v", c.v.VersionID, r.Object)
		}
		b, _, err = e.read("f", objstore.GetOptions{Offset: 1, Length: 2, VersionID: c.v.VersionID})
		if err != nil || string(b) != c.want[1:3] {
			e.Errorf("range of version %q: %q, %v", c.v.VersionID, b, err)
		}
		h, err := e.s.Head(e.ctx, "f", objstore.HeadOptions{VersionID: c.v.VersionID})
		if err != nil || h.ETag != c.v.ETag || h.VersionID != c.v.VersionID {
			e.Errorf("Head of version %q: %+v, %v", c.v.VersionID, h, err)
		}
	}
	if h := e.head("f"); h.VersionID != v2.VersionID {
		e.Errorf("Head: version %q, want %q", h.VersionID, v2.VersionID)
	}
	if _, err := e.s.Copy(e.ctx, "f", "g", objstore.CopyOptions{SourceVersionID: v1.VersionID}); err != nil {
		e.Errorf("Copy of a version: %v", err)
	} else {
		e.whole("g", []byte("one"))
	}
	if err := e.s.Delete(e.ctx, "f", objstore.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
	_, err := e.s.Head(e.ctx, "f", objstore.HeadOptions{})
	e.wantKind("Head after Delete", err, objstore.NotFound)
	if b, _, err := e.read("f", objstore.GetOptions{Length: -1, VersionID: v1.VersionID}); err != nil || string(b) != "one" {
		e.Errorf("a version of a deleted key: %q, %v", b, err)
	}
	if keys, _, _ := e.list(objstore.ListOptions{Prefix: "f"}); len(keys) > 0 {
		e.Errorf("a deleted key is listed: %q", keys)
	}
}
