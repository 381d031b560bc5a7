package publish

import (
	"fmt"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// TestDelete: only the version meant goes, and a lost answer is not an error of its own.
func TestDelete(t *testing.T) {
	type have uint8
	const (
		nothing have = iota
		meant
		other
	)
	for caps, less := range conditions() {
		for _, v := range []Version{{}, {ETag: "e"}, {Token: "t"}, {ETag: "e", Token: "t"}, {ETag: "unknown", Token: "t"}} {
			for _, there := range []have{nothing, meant, other} {
				for _, f := range []fate{pass, lose, fail, unmet} {
					t.Run(fmt.Sprint(caps, v, there, f), func(t *testing.T) {
						w, v := newWorld(t, Options{}, less), v
						if there != nothing {
							token := map[bool]string{true: "t", false: "foreign"}[there == meant]
							o := w.publish(Job{Key: "k", Data: []byte(token), Token: token}).Object
							if v.ETag == "e" {
								v.ETag = o.ETag
								if there == other {
									v.ETag = "another"
								}
							}
						}
						w.does("DELETE", nth(1, f))
						gone, err := w.p.Delete(t.Context(), "k", v)
						_, herr := w.mem.Head(t.Context(), "k", objstore.HeadOptions{})
						absent := objstore.Is(herr, objstore.NotFound)
						_, conflict := err.(*Conflict)
						switch {
						case gone != (err == nil):
							t.Errorf("gone %v, %v", gone, err)
						case gone && !absent:
							t.Errorf("it is there, but %v", err)
						case there == other && v != (Version{}) && !conflict:
							t.Errorf("of another version: %v", err)
						case there == other && v != (Version{}) && absent:
							t.Error("another version was deleted")
						case there != other && conflict:
							t.Errorf("a conflict with itself: %v", err)
						}
						if !gone && !conflict { // a request that failed
							if f == pass {
								t.Errorf("got %v", err)
							}
							if gone, err = w.p.Delete(t.Context(), "k", v); !gone || err != nil {
								t.Errorf("again: %v, %v", gone, err)
							}
						}
					})
				}
			}
		}
	}
}

// TestDeleteRequests: where the store has the condition nothing is asked before.
func TestDeleteRequests(t *testing.T) {
	w := newWorld(t, Options{})
	o := w.mem.Set("k", nil)
	if gone, err := w.p.Delete(t.Context(), "k", Version{ETag: o.ETag}); !gone || err != nil {
		t.Errorf("%v, %v", gone, err)
	}
	w.wantTook("DELETE")
	w = newWorld(t, Options{}, func(c *objstore.Caps) { c.DeleteIfMatch = false })
	w.mem.Set("k", nil)
	if gone, err := w.p.Delete(t.Context(), "k", Version{ETag: o.ETag}); !gone || err != nil {
		t.Errorf("%v, %v", gone, err)
	}
	w.wantTook("HEAD, DELETE")
	w.does("DELETE", nth(1, deny))
	w.mem.Set("k", nil)
	if gone, err := w.p.Delete(t.Context(), "k", Version{ETag: o.ETag}); gone || !objstore.Is(err, objstore.AccessDenied) {
		t.Errorf("%v, %v", gone, err)
	}
}

// TestMarker: a marker is put once; one that is there does, and a file of its name is a conflict.
func TestMarker(t *testing.T) {
	w := newWorld(t, Options{})
	out, err := w.p.Marker(t.Context(), "d/", Metadata(0o40755, 1, 2, 3, 4, ""), "t")
	if err != nil || out.Object.ETag == "" {
		t.Fatal(err)
	}
	w.wantTook("PUT")
	o, err := w.mem.Head(t.Context(), "d/", objstore.HeadOptions{})
	if a := ParseMetadata(o.Metadata); err != nil || o.ContentType != markerType || a.Mode != 0o40755 || TokenOf(o) != "t" {
		t.Errorf("%+v, %v", o, err)
	}
	again, err := w.p.Marker(t.Context(), "d/", nil, "another")
	if err != nil || again.Object.ETag != out.Object.ETag || TokenOf(again.Object) != "t" {
		t.Errorf("%+v, %v", again, err)
	}
	w.mem.Set("f/", []byte("not empty"))
	if _, err := w.p.Marker(t.Context(), "f/", nil, "t"); err == nil {
		t.Error("over content: no error")
	} else if _, ok := err.(*Conflict); !ok {
		t.Errorf("over content: %v", err)
	}
}
