package meta

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

const md5 = "0123456789abcdef0123456789abcdef"

// The bytes of the format. A change here needs a new version in the codec.
func TestGolden(t *testing.T) {
	full := Inode{Ino: 300, Kind: KindFile, Flags: Archived | Local, Gen: 5, Mode: 0o644, UID: 1000, GID: 100,
		Checked: 1, Object: Object{Key: "k", Size: 1 << 20, ETag: md5 + "-17", VersionID: "v", MTime: 1_700_000_000_000_000_001, File: 9},
		Target: "t", Prefix: "p/", Parent: 16, Name: "n"}
	short := Inode{Ino: 17, Kind: KindFile, Object: Object{Size: 110_000, ETag: md5, MTime: 1_700_000_000e9}, Parent: 16, Name: "n"}
	dir := Inode{Ino: MaxIno, Kind: KindDir, Flags: Shadows, Prefix: "a/b/", Parent: 16, Name: "b"}
	odd := Inode{Ino: 18, Kind: KindSymlink, Object: Object{Size: -1, ETag: "W/\"x\"", MTime: -1}, Target: "../x"}
	local := Inode{Ino: 19, Kind: KindFIFO, Flags: Owned, Links: 1, Rdev: 2, MTime: -2, CTime: 2, ATime: 3, Stage: 4}
	rec := cache.Record{ID: 7, Dir: 1, Identity: cache.Identity{Origin: "s3://b", Key: "k", ETag: md5, VersionID: "v", Size: 5, Inode: 300},
		State: cache.Proven, Pinned: true, Checksum: objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: 1}, Sum: 1, Epoch: 3}
	ext := cache.Extent{CRC: []uint64{1, 2, 3}}
	ext.Present[0] = 5
	whole := cache.Extent{CRC: []uint64{1, 2}}
	whole.Present[0] = 3
	use := cache.Usage{ID: 7, Dir: 1, Bytes: 4096, Admitted: 2, LastUse: 3, Hits: 4}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"full", appendBody(nil, &full), "0201ac02ff7d0605a403e8076402808080010123456789abcdef0123456789abcdef1101768280d0e2c6bfce972f016b09017402702f"},
		{"short", appendBody(nil, &short), "020111d002e0b60d0123456789abcdef0123456789abcdef80c49fd50c"},
		{"directory", appendBody(nil, &dir), "0202ffffffffff1f81400804612f622f"},
		{"odd", appendBody(nil, &odd), "020312b0240105572f22782201042e2e2f78"},
		{"local", appendBody(nil, &local), "02041381803f20010203040604"},
		{"reference", encodeRef(300), "0200ac02"},
		{"dirty", encodeDirty(&Dirty{Ino: 1, Held: true, Seq: 2, Since: 3, Token: "t", Upload: Upload{Key: "k", ID: "u", PartSize: 4, Token: "w"}, Tries: 5, Next: 6, Error: "e"}), "010102060174016b0175080177050c65"},
		{"tomb", encodeTomb(&Tomb{Key: "k/", ETag: "x", VersionID: "v", Prefix: true, Needed: 1, Seq: 2, Done: 3, Token: "t", Tries: 4, Next: 5, Error: "e"}), "010101017801760102060174040a65"},
		{"parts", encodeParts(&Parts{Key: "k", ETag: md5 + "-1", VersionID: "v", Size: 6, PartSize: 7, At: 8, Sums: []PartSum{{CRC: 1, Hash: [32]byte{0: 2, 31: 3}}}}), "01030123456789abcdef0123456789abcdef0101760c0e100100000000000000010200000000000000000000000000000000000000000000000000000000000003"},
		{"times", encodeTimes(1, -1), "010201"},
		{"abort key", abortKey("k", "id"), "626b69640001"},
		{"name key", nameOf(1, 2, "n"), "6e000000000100000000026e"},
		{"attribute key", xattrKey(1, "n"), "7100000000016e"},
		{"place", encodePlace(16, "n"), "0100106e"},
		{"removed", encodeHere(&short, 5), "01010a10016e020111d002e0b60d0123456789abcdef0123456789abcdef80c49fd50c"},
		{"listing", encodeListing(Listing{Complete: 5, Entries: 6, Hidden: 7}), "010a0c0e"},
		{"record", encodeRecord(&rec), "010101010201ac020a0123456789abcdef0123456789abcdef017600000000000000010000000000000001030673333a2f2f626b"},
		{"extent", encodeExtent(&ext), "010301000000000000000500000000000000010000000000000003"},
		{"extent whole", encodeExtent(&whole), "01020000000000000000010000000000000002"},
		{"usage", encodeUsage(&use), "01018040020304"},
		{"marks", encodeSlot(3, 4096, 8192), "6c65617466730a00000000010000000000000003000000000000100000000000000020005b629705"},
		{"marks copy", encodeMarks(4096, 8192), "0180208040"},
		{"dentry key", dentryKey(0x0102030405, "n"), "6401020304056e"},
		{"inode key", inoKey(keyInode, 0x0102030405), "690102030405"},
		{"removed key", removedKey(1, 2), "6700000000000000010000000002"},
		{"kept key", keptKey(0x0102030405, 0x060708), "6b0102030405060708"},
		{"result", encodeResult(&Result{Op: 300, Ino: 300, Gen: 5, Data: []byte("x")}), "01ac02ac020578"},
		{"result key", resultKey(Request{Session: 1, Unique: 2}), "6100000000000000010000000000000002"},
		{"aged key", agedKey(1, 2, 3), "6500000000000000010000000002000003"},
		{"extent key", extentKey(1, 2), "78000000000000000100000002"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestVersion1 decodes what the version before wrote.
func TestVersion1(t *testing.T) {
	for v, want := range map[string]Inode{
		"0101ac02ff7d0605a403e8076402808080010123456789abcdef0123456789abcdef1101768280d0e2c6bfce972f016b09017402702f": {Ino: 300, Kind: KindFile,
			Flags: Archived | Local | Owned, Gen: 5, Mode: 0o644, UID: 1000, GID: 100, Checked: 1, Object: Object{Key: "k", Size: 1 << 20, ETag: md5 + "-17",
				VersionID: "v", MTime: 1_700_000_000_000_000_001, File: 9}, Target: "t", Prefix: "p/"},
		"010111d002e0b60d0123456789abcdef0123456789abcdef80c49fd50c": {Ino: 17, Kind: KindFile, Object: Object{Size: 110_000, ETag: md5, MTime: 1_700_000_000e9}},
		"0102ffffffffff1f81400804612f622f":                           {Ino: MaxIno, Kind: KindDir, Flags: Shadows, Prefix: "a/b/"},
	} {
		b, err := hex.DecodeString(v)
		if err != nil {
			t.Fatal(err)
		}
		var in Inode
		if want.Parent, want.Name = 16, "n"; decodeDentry(b, 16, "n", &in) != nil || in != want {
			t.Errorf("%s: got %+v, want %+v", v, in, want)
		}
		p, err := decodePlace(append([]byte{1, placeHere, 10, 16, 1, 'n'}, b...))
		if err != nil || p.since != 5 || *p.at != want {
			t.Errorf("%s: got %+v, %v, want %+v", v, p, err, want)
		}
	}
	for _, v := range []string{"0104110000", "010111808001", "0100ac02"} {
		b, _ := hex.DecodeString(v)
		var in Inode
		if err := decodeDentry(b, 1, "n", &in); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %+v, %v", v, in, err)
		}
	}
}

func TestETags(t *testing.T) {
	for _, s := range []string{"", "x", md5, md5 + "-1", md5 + "-10000", md5 + "-2147483647", md5 + "-2147483648",
		md5 + "-0", md5 + "-01", md5 + "-", md5 + "-x", md5 + "-99999999999", md5 + "-12345678901234567890",
		strings.ToUpper(md5), md5[:31], md5 + "0", md5[:31] + "g", strings.Repeat("é", 40)} {
		in := Inode{Ino: 1, Kind: KindFile, Object: Object{ETag: s}}
		var out Inode
		if err := decodeDentry(appendBody(nil, &in), 0, "", &out); err != nil || out != in {
			t.Errorf("%q: got %q, %v", s, out.Object.ETag, err)
		}
	}
}

func anyInode() *rapid.Generator[Inode] {
	return rapid.Custom(func(t *rapid.T) Inode {
		etag := rapid.OneOf(rapid.String(), rapid.StringMatching(`[0-9a-f]{32}(-[0-9]{1,11})?`))
		return Inode{
			Ino:    Ino(rapid.Uint64Range(1, uint64(MaxIno)).Draw(t, "ino")),
			Kind:   Kind(rapid.Uint8Range(1, uint8(lastKind)).Draw(t, "kind")),
			Flags:  Flags(rapid.Uint32().Draw(t, "flags")),
			Parent: Ino(rapid.Uint64Range(0, uint64(MaxIno)).Draw(t, "parent")),
			Name:   rapid.String().Draw(t, "name"),
			Gen:    rapid.Uint32Range(0, maxGen).Draw(t, "gen"),
			Mode:   rapid.Uint32().Draw(t, "mode"), UID: rapid.Uint32().Draw(t, "uid"), GID: rapid.Uint32().Draw(t, "gid"),
			Checked: rapid.Int64().Draw(t, "checked"),
			Object: Object{Key: rapid.String().Draw(t, "key"), Size: rapid.Int64().Draw(t, "size"), ETag: etag.Draw(t, "etag"),
				VersionID: rapid.String().Draw(t, "version"), MTime: rapid.Int64().Draw(t, "mtime"),
				File: cache.ID(rapid.Uint64().Draw(t, "file"))},
			Links: rapid.Uint32().Draw(t, "links"), Rdev: rapid.Uint32().Draw(t, "rdev"), Stage: cache.ID(rapid.Uint64().Draw(t, "stage")),
			MTime: rapid.Int64().Draw(t, "local mtime"), CTime: rapid.Int64().Draw(t, "ctime"), ATime: rapid.Int64().Draw(t, "atime"),
			Target: rapid.String().Draw(t, "target"), Prefix: rapid.String().Draw(t, "prefix"),
		}
	})
}

func TestInodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := anyInode().Draw(t, "inode")
		var out Inode
		if err := decodeDentry(appendBody(nil, &in), in.Parent, in.Name, &out); err != nil || out != in {
			t.Fatalf("got %+v, %v, want %+v", out, err, in)
		}
		since := rapid.Int64().Draw(t, "since")
		p, err := decodePlace(encodeHere(&in, since))
		if err != nil || p.at == nil || *p.at != in || p.since != since {
			t.Fatalf("got %+v, %v, want %+v", p, err, in)
		}
		p, err = decodePlace(encodePlace(in.Parent, in.Name))
		if err != nil || p.at != nil || p.parent != in.Parent || p.name != in.Name {
			t.Fatalf("got %+v, %v", p, err)
		}
	})
}

func TestCacheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := cache.Record{ID: 3, Dir: rapid.Uint32().Draw(t, "dir"), State: cache.State(rapid.Uint8Range(0, 2).Draw(t, "state")),
			Pinned: rapid.Bool().Draw(t, "pinned"), Epoch: rapid.Uint64().Draw(t, "epoch"),
			Identity: cache.Identity{Origin: rapid.String().Draw(t, "origin"), Key: rapid.String().Draw(t, "key"),
				ETag: rapid.String().Draw(t, "etag"), VersionID: rapid.String().Draw(t, "version"),
				Size: rapid.Int64().Draw(t, "size"), Inode: rapid.Uint64().Draw(t, "inode")}}
		if r.State.Complete() {
			r.Sum = rapid.Uint64().Draw(t, "sum")
		}
		if r.Checksum.Algorithm = objstore.ChecksumAlgorithm(rapid.Uint8Range(0, 3).Draw(t, "alg")); r.Checksum.Algorithm != 0 {
			r.Checksum.Value = rapid.Uint64().Draw(t, "value")
		}
		if got, err := decodeRecord(3, encodeRecord(&r)); err != nil || got != r {
			t.Fatalf("got %+v, %v, want %+v", got, err, r)
		}
		n := rapid.IntRange(0, cache.ExtentBlocks).Draw(t, "n")
		e := cache.Extent{CRC: make([]uint64, n)}
		for i := range n {
			if rapid.Bool().Draw(t, "present") {
				e.Present[i/64] |= 1 << (i % 64)
				e.CRC[i] = uint64(i) * math.MaxUint32
			}
		}
		if !validExtent(&e) {
			t.Fatal("not valid")
		}
		got, err := decodeExtent(encodeExtent(&e))
		if err != nil || got.Present != e.Present || len(got.CRC) != n {
			t.Fatalf("got %+v, %v", got, err)
		}
		for i := range n {
			if got.CRC[i] != e.CRC[i] {
				t.Fatalf("block %d: got %d, want %d", i, got.CRC[i], e.CRC[i])
			}
		}
		if n < cache.ExtentBlocks {
			e.Present[n/64] |= 1 << (n % 64)
			if validExtent(&e) {
				t.Fatal("a block beyond the end is valid")
			}
		}
	})
}

func TestNewerVersion(t *testing.T) {
	for name, decode := range decoders() {
		newer := byte(codecVersion + 1)
		if name == "inode" {
			newer = bodyVersion + 1
		}
		if err := decode([]byte{newer, 1, 2, 3}); !errors.Is(err, ErrNewer) {
			t.Errorf("%s: got %v, want ErrNewer", name, err)
		}
		if err := decode(nil); err == nil || errors.Is(err, ErrNewer) {
			t.Errorf("%s: got %v for nothing", name, err)
		}
	}
}

func decoders() map[string]func([]byte) error {
	return map[string]func([]byte) error{
		"inode":   func(b []byte) error { var in Inode; return decodeDentry(b, 1, "n", &in) },
		"place":   func(b []byte) error { return second(decodePlace(b)) },
		"listing": func(b []byte) error { return second(decodeListing(b)) },
		"record":  func(b []byte) error { return second(decodeRecord(1, b)) },
		"extent":  func(b []byte) error { return second(decodeExtent(b)) },
		"usage":   func(b []byte) error { return second(decodeUsage(1, b)) },
		"dirty":   func(b []byte) error { return second(decodeDirty(1, b)) },
		"tomb":    func(b []byte) error { return second(decodeTomb("k", b)) },
		"times":   func(b []byte) error { _, _, err := decodeTimes(b); return err },
		"result":  func(b []byte) error { return second(decodeResult(b)) },
		"marks":   func(b []byte) error { _, _, err := decodeMarks(b); return err },
	}
}

// FuzzDecode feeds all decoders anything. What decodes must encode to something that decodes to
// the same.
func FuzzDecode(f *testing.F) {
	in := Inode{Ino: 300, Kind: KindFile, Object: Object{Size: 3, ETag: md5 + "-17", MTime: 1e9, File: 9}}
	f.Add(appendBody(nil, &in))
	f.Add(encodeHere(&in, 7))
	f.Add(encodePlace(16, "name"))
	f.Add(encodeRecord(&cache.Record{ID: 1, State: cache.Proven}))
	f.Add(encodeExtent(&cache.Extent{CRC: make([]uint64, 100)}))
	f.Add(encodeUsage(&cache.Usage{Bytes: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decode := range decoders() {
			_ = decode(b)
		}
		var in, again Inode
		if decodeDentry(b, 1, "n", &in) == nil && isRef(&in) {
			if err := decodeDentry(encodeRef(in.Ino), 1, "n", &again); err != nil || again != in {
				t.Fatalf("got %+v, %v, want %+v", again, err, in)
			}
		} else if !isRef(&in) && decodeDentry(b, 1, "n", &in) == nil {
			if err := decodeDentry(appendBody(nil, &in), 1, "n", &again); err != nil || again != in {
				t.Fatalf("got %+v, %v, want %+v", again, err, in)
			}
		}
		if p, err := decodePlace(b); err == nil && p.at != nil {
			q, err := decodePlace(encodeHere(p.at, p.since))
			if err != nil || *q.at != *p.at || q.since != p.since {
				t.Fatalf("got %+v, %v, want %+v", q, err, p)
			}
		}
		if r, err := decodeRecord(1, b); err == nil {
			if again, err := decodeRecord(1, encodeRecord(&r)); err != nil || again != r {
				t.Fatalf("got %+v, %v, want %+v", again, err, r)
			}
		}
		if d, err := decodeDirty(1, b); err == nil {
			if again, err := decodeDirty(1, encodeDirty(&d)); err != nil || again != d {
				t.Fatalf("got %+v, %v, want %+v", again, err, d)
			}
		}
		if tomb, err := decodeTomb("k", b); err == nil {
			if again, err := decodeTomb("k", encodeTomb(&tomb)); err != nil || again != tomb {
				t.Fatalf("got %+v, %v, want %+v", again, err, tomb)
			}
		}
		if e, err := decodeExtent(b); err == nil {
			if !validExtent(&e) {
				t.Fatalf("decoded an extent that is not valid")
			}
			if again := encodeExtent(&e); !bytes.Equal(again, encodeExtent(&e)) {
				t.Fatal("unstable")
			}
		}
	})
}
