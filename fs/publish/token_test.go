package publish

import (
	"maps"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestNewToken(t *testing.T) {
	a, b := NewToken(), NewToken()
	if len(a) != 32 || a == b {
		t.Errorf("%q, %q", a, b)
	}
}

// TestMetadata pins what other programs read.
func TestMetadata(t *testing.T) {
	got := Metadata(0o100644, 1000, 4294967294, 1700000000_123456789, 1700000001_000000000, "tok")
	want := map[string]string{"mode": "33188", "uid": "1000", "gid": "4294967294",
		"mtime": "1700000000.123456789", "ctime": "1700000001", "leatfs-token": "tok"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if m := Metadata(0, 0, 0, 5, -1_500000000, ""); m["mtime"] != "0.000000005" || m["ctime"] != "-1.500000000" || len(m) != 5 {
		t.Errorf("got %q", m)
	}
}

func TestParseMetadata(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1e9, "1.5": 15e8, "1.000000001": 1e9 + 1, "1.0000000019": 1e9 + 1, "-0.5": -5e8, "-1.5": -15e8,
		"1700000000.123456789": 1700000000123456789,
	} {
		if a := ParseMetadata(map[string]string{"mtime": s}); !a.HasMTime || a.MTime != want || a.HasCTime || a.HasMode {
			t.Errorf("%q: %+v, want %d", s, a, want)
		}
	}
	for _, s := range []string{"", ".", ".5", "x", "1.x", "1.-5", "99999999999999", "1e9", "2024-01-02T03:04:05Z"} {
		if a := ParseMetadata(map[string]string{"mtime": s, "ctime": s, "mode": s}); a.HasMTime || a.HasCTime {
			t.Errorf("%q: %+v", s, a)
		}
	}
	if a := ParseMetadata(map[string]string{"mode": "4294967296", "uid": "-1", "gid": "0x1"}); a != (Attributes{}) {
		t.Errorf("%+v", a)
	}
}

// TestMetadataReturns: what is written is read as it was.
func TestMetadataReturns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const year = 31556952 * int64(1e9)
		w := Attributes{Mode: rapid.Uint32().Draw(t, "mode"), UID: rapid.Uint32().Draw(t, "uid"), GID: rapid.Uint32().Draw(t, "gid"),
			MTime: rapid.Int64Range(-290*year, math.MaxInt64-2e9).Draw(t, "mtime"), CTime: rapid.Int64Range(-3e9, 3e9).Draw(t, "ctime"),
			HasMode: true, HasUID: true, HasGID: true, HasMTime: true, HasCTime: true}
		if got := ParseMetadata(Metadata(w.Mode, w.UID, w.GID, w.MTime, w.CTime, "t")); got != w {
			t.Fatalf("got %+v, want %+v", got, w)
		}
	})
}

func TestNextToken(t *testing.T) {
	a := NewToken()
	b := NextToken(a)
	c := NextToken(b)
	if len(b) != 32 || b == a || c == b || !SameFamily(a, b) || !SameFamily(a, c) || !SameFamily(a, a) {
		t.Errorf("%q, %q, %q are to be different and of one family", a, b, c)
	}
	for _, other := range []string{"", "x", NewToken(), NextToken(""), NextToken("x"), a + ".copy", a[:31]} {
		if SameFamily(a, other) || SameFamily(other, a) {
			t.Errorf("%q is of the family of %q", other, a)
		}
	}
	if !SameFamily(a+".copy", b+".copy") || SameFamily(a+".copy", b+".other") || !SameFamily("x", "x") {
		t.Error("what was added to tokens is to be equal")
	}
	if d := NextToken(a + ".copy"); len(d) != 32 || !SameFamily(d, a) {
		t.Errorf("after %q comes %q", a+".copy", d)
	}
}
