package cache_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
)

func label(name string) cache.StageLabel {
	return cache.StageLabel{Origin: "test://bucket", Ino: 7, Parent: 1, Name: name, Dir: "k/", Base: "etag", Mode: 0o100644, UID: 1, GID: 2, Seq: 3}
}

// stage makes a staging file with content.
func (e *env) stage(name string, data []byte) cache.ID {
	e.Helper()
	id, f, err := e.NewStage(label(name))
	if err != nil {
		e.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		e.Fatal(err)
	}
	return id
}

func (e *env) wantStage(id cache.ID, data []byte) {
	e.Helper()
	f, err := e.OpenStage(id, os.O_RDONLY)
	if err != nil {
		e.Fatal(err)
	}
	defer f.Close()
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, data) {
		e.Fatalf("staging file %x: %d bytes (%v), want %d others", id, len(got), err, len(data))
	}
}

// sums are what AdoptStage needs to know of data.
func sums(data []byte) (sum uint64, blocks []uint64, checksum objstore.Checksum) {
	for off := 0; off < len(data); off += block {
		blocks = append(blocks, crc64nvme.Checksum(data[off:min(off+block, len(data))]))
	}
	sum = crc64nvme.Checksum(data)
	return sum, blocks, objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: sum}
}

// adopt makes a staging file the object that it was published as.
func (e *env) adopt(id cache.ID, ident cache.Identity, data []byte) {
	e.Helper()
	sum, blocks, checksum := sums(data)
	b, commit, err := e.AdoptStage(id, ident, sum, blocks, checksum)
	if err != nil {
		e.Fatal(err)
	}
	if err := e.index.Apply(b); err != nil {
		e.Fatal(err)
	}
	commit(true)
}

func (e *env) fetched(ident cache.Identity) *cache.Object {
	e.Helper()
	o := e.object(ident)
	if err := o.Fetch(e.Context()); err != nil {
		e.Fatal(err)
	}
	return o
}

// TestStageRound: an object is fetched, taken, changed, and adopted as what it was published as;
// all the time it is the same file.
func TestStageRound(t *testing.T) {
	for _, size := range []int{1, 300_000, 9<<20 + 17} {
		e := newEnv(t, 256<<20, 64)
		data, ident := e.store.put("a", size)
		o := e.fetched(ident)
		id := o.ID()
		loan, err := o.Lend()
		if err != nil {
			t.Fatal(err)
		}
		defer loan.Close()
		got, err := e.TakeStage(o, 1, label("a"))
		if err != nil || got != id {
			t.Fatalf("TakeStage: %x, %v; want %x", got, err, id)
		}
		if _, err := e.index.Record(id); !errors.Is(err, cache.ErrNoRecord) {
			t.Errorf("the index knows the file still: %v", err)
		}
		if o.Complete() || o.ID() != 0 || o.ResidentBytes() != 0 {
			t.Errorf("the object has a file still: %x", o.ID())
		}
		if l, err := e.StageLabel(id); err != nil || l != label("a") {
			t.Errorf("label %+v, %v", l, err)
		}
		o.Return()
		e.wantStage(id, data)
		f, err := e.OpenStage(id, os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Clone(data)
		changed[size/2] ^= 0x55
		if _, err := f.WriteAt(changed, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		wantFile(t, loan, changed) // it is the same file
		e.wantRead(o, data, 0, ident.Size)
		if err := o.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o.ID() == id {
			t.Error("fetched into the staging file")
		}
		o.Release()
		e.wantStage(id, changed)

		now := ident
		now.ETag = "changed"
		e.adopt(id, now, changed)
		if _, err := e.StatStage(id); !errors.Is(err, cache.ErrNoStage) {
			t.Errorf("the staging file is still there: %v", err)
		}
		gets, _, _ := e.store.counts()
		for range 2 {
			o = e.object(now)
			if o.ID() != id || o.State() != cache.Proven {
				t.Fatalf("file %x in state %v, want %x, proven", o.ID(), o.State(), id)
			}
			e.wantLent(o, changed)
			e.wantRead(o, changed, 0, now.Size)
			o.Release()
			e.restart(false)
		}
		if g, _, _ := e.store.counts(); g != gets {
			t.Error("it was fetched")
		}
		if left, _ := filepath.Glob(filepath.Join(e.dir, "staging", "*")); len(left) > 0 {
			t.Errorf("left in staging: %v", left)
		}
		if err := e.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, disk := e.Stats().Dirs[0].Used, e.diskUse(e.dir); got < disk || got > disk+1<<20 {
			t.Errorf("used %d, on disk %d", got, disk)
		}
	}
}

// wantNoLinks checks that no file has two names, but for those in lost directories.
func (e *env) wantNoLinks() {
	e.Helper()
	for _, p := range []string{"objects/*/*", "staging/*"} {
		names, _ := filepath.Glob(filepath.Join(e.dir, p))
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Lstat(name, &st); err != nil || st.Nlink != 1 {
				e.Errorf("%s has %d names (%v)", name, st.Nlink, err)
			}
		}
	}
}

func TestStageFiles(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	l := label("näme\n" + strings.Repeat("x", 240))
	l.Source = cache.Identity{Origin: "other://", Key: "k/a", ETag: "e", VersionID: "v", Size: 77, Inode: 9}
	l.Removed = true
	id, f, err := e.NewStage(l)
	if err != nil {
		t.Fatal(err)
	}
	if fl, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("not close-on-exec: %x %v", fl, err)
	}
	if _, err := f.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got, err := e.StageLabel(id); err != nil || got != l {
		t.Errorf("label %+v (%v), want %+v", got, err, l)
	}
	if st, err := e.StatStage(id); err != nil || st.Size != 5 {
		t.Errorf("size %d, %v", st.Size, err)
	}
	l.Name, l.Removed, l.Source.Origin = "b", false, l.Origin
	if err := e.RelabelStage(id, l); err != nil {
		t.Fatal(err)
	}
	for _, dataOnly := range []bool{true, false} {
		if err := e.SyncStage(id, dataOnly); err != nil {
			t.Error(err)
		}
	}
	if err := e.SyncStaging(); err != nil {
		t.Error(err)
	}
	long := l
	long.Dir = strings.Repeat("d", 4000)
	if err := e.RelabelStage(id, long); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("a label of 4000 bytes: %v", err)
	}
	if _, err := e.OpenStage(id+100, os.O_RDWR|os.O_CREATE); !errors.Is(err, cache.ErrNoStage) {
		t.Errorf("OpenStage of none: %v", err)
	}
	for name, err := range map[string]error{"Relabel": e.RelabelStage(id+1, l), "Sync": e.SyncStage(id+1, false)} {
		if !errors.Is(err, cache.ErrNoStage) {
			t.Errorf("%s of none: %v", name, err)
		}
	}
	if err := e.StageSpace(id, 1<<20); err != nil {
		t.Error(err)
	}
	if err := e.StageSpace(id, 1<<60); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("room for an exabyte: %v", err)
	}
	bad := e.stage("bad", []byte("x"))
	if err := unix.Setxattr(filepath.Join(e.dir, "staging", formatID(bad)), "user.leatfs.stage", []byte("junk"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(e.dir, "staging", "new-0000000000000099"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n := 0
		err := e.WalkStages(func(i cache.ID, got cache.StageLabel, err error) bool {
			n++
			if i == bad && err == nil || i == id && (err != nil || got != l) || i != id && i != bad {
				t.Errorf("%x: %+v, %v", i, got, err)
			}
			return true
		})
		if err != nil || n != 2 {
			t.Errorf("%d staging files (%v), want 2", n, err)
		}
		e.restart(true)
		if err := e.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	e.wantStage(id, []byte("hello"))
	eventually(t, "counted", func() bool { d := e.Stats().Dirs[0]; return d.StagedFiles == 2 && d.Staged > 0 })
	for range 2 {
		if err := e.RemoveStage(id); err != nil {
			t.Error(err)
		}
	}
	if got := e.Stats().Dirs[0].StagedFiles; got != 1 {
		t.Errorf("%d staging files, want 1", got)
	}
}

func TestDirLabels(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	want := map[uint64]cache.StageLabel{}
	for ino := range uint64(300) {
		l := label("d")
		l.Ino = ino + 1
		if err := e.LabelDir(ino+1, l); err != nil {
			t.Fatal(err)
		}
		if ino%3 == 0 { // renamed
			l.Name = "other"
			if err := e.LabelDir(ino+1, l); err != nil {
				t.Fatal(err)
			}
		}
		want[l.Ino] = l
	}
	delete(want, 7)
	for range 2 {
		if err := e.RemoveDirLabel(7); err != nil {
			t.Fatal(err)
		}
	}
	e.restart(true)
	got := map[uint64]cache.StageLabel{}
	if err := e.WalkDirLabels(func(l cache.StageLabel) bool { got[l.Ino] = l; return true }); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d labels, want %d", len(got), len(want))
	}
	if err := e.WalkStages(func(id cache.ID, _ cache.StageLabel, _ error) bool { t.Errorf("a file %x", id); return true }); err != nil {
		t.Error(err)
	}
}

func TestStageBusy(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	id := e.stage("a", make([]byte, 8192))
	want := func(what string, writers, users bool) {
		t.Helper()
		w, u, err := e.StageBusy(id)
		if err != nil || w != writers || u != users {
			t.Errorf("%s: writers %v, users %v (%v); want %v, %v", what, w, u, err, writers, users)
		}
	}
	want("closed", false, false)
	f, err := e.OpenStage(id, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	want("open for writing", true, true)
	if _, _, err := cache.FileBusy(f); !errors.Is(err, unix.EBADF) {
		t.Errorf("asked by a descriptor for writing: %v", err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	want("mapped", true, true)
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	want("unmapped", false, false)
	r, err := e.OpenStage(id, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want("open for reading", false, true)
	if w, u, err := cache.FileBusy(r); w || u || err != nil {
		t.Errorf("by the only descriptor: %v, %v, %v", w, u, err)
	}
	if _, _, err := e.StageBusy(id + 1); !errors.Is(err, cache.ErrNoStage) {
		t.Errorf("of none: %v", err)
	}
}

func TestTakeRefused(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("a", 9<<20)
	o := e.object(ident)
	e.wantRead(o, data, 0, 1<<20)
	if _, err := e.TakeStage(o, 0, label("a")); !errors.Is(err, cache.ErrIncomplete) {
		t.Errorf("a part: %v", err)
	}
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	o2 := e.object(ident)
	if _, err := e.TakeStage(o, 0, label("a")); !errors.Is(err, cache.ErrInUse) {
		t.Errorf("with another reference: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, o2.Release) // one who holds it for a moment is waited for
	f, err := o.Lend()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := e.TakeStage(o, 0, label("a")); !errors.Is(err, cache.ErrInUse) {
		t.Errorf("lent: %v", err)
	}
	id := o.ID()
	e.wantLent(o, data) // it is as it was
	e.index.Fail(errTest)
	if _, err := e.TakeStage(o, 1, label("a")); !errors.Is(err, errTest) {
		t.Errorf("while the index cannot be written: %v", err)
	}
	if _, err := e.StatStage(id); !errors.Is(err, cache.ErrNoStage) {
		t.Errorf("a staging file is left: %v", err)
	}
	e.index.Fail(nil)
	o.Return()
	eventually(t, "removed", func() bool { return len(e.files()) == 0 })
	eventually(t, "fetched", func() bool { return o.Fetch(t.Context()) == nil })
	if got, err := e.TakeStage(o, 0, label("a")); err != nil || got != o.ID() && got == id {
		t.Errorf("at last: %x, %v", got, err)
	}
	o.Release()
	e.wantNoLinks()
}

func TestAdoptRefused(t *testing.T) {
	e := newEnv(t, 256<<20, 64)
	data, ident := e.store.put("a", 300_000)
	id := e.stage("a", data)
	sum, blocks, checksum := sums(data)
	try := func(what string, want error, id cache.ID, ident cache.Identity, sum uint64, blocks []uint64, checksum objstore.Checksum) {
		t.Helper()
		if _, _, err := e.AdoptStage(id, ident, sum, blocks, checksum); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	longer := ident
	longer.Size++
	other := checksum
	other.Value++
	try("none", cache.ErrNoStage, id+1, ident, sum, blocks, checksum)
	try("another size", cache.ErrChanged, id, longer, sum, blocks, checksum)
	try("another sum", cache.ErrChanged, id, ident, sum+1, blocks, checksum)
	try("a block less", cache.ErrChanged, id, ident, sum, blocks[1:], checksum)
	try("another at the origin", cache.ErrChanged, id, ident, sum, blocks, other)
	_, commit, err := e.AdoptStage(id, ident, sum, blocks, checksum)
	if err != nil {
		t.Fatal(err)
	}
	try("twice", cache.ErrInUse, id, ident, sum, blocks, checksum)
	commit(false)
	e.wantNoLinks()
	e.wantStage(id, data)
	o := e.object(ident)
	if o.Complete() {
		t.Error("known though it was undone")
	}
	// Somebody fetches the version meanwhile: that file is superseded.
	b, commit, err := e.AdoptStage(id, ident, sum, blocks, objstore.Checksum{})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.index.Apply(b); err != nil {
		t.Fatal(err)
	}
	commit(true)
	if o.ID() != id || o.State() != cache.Unverifiable {
		t.Errorf("file %x in state %v", o.ID(), o.State())
	}
	e.wantLent(o, data)
	e.wantRead(o, data, 0, ident.Size)
	o.Release()
	eventually(t, "the other file removed", func() bool { return len(e.files()) == 1 })
	e.restart(false)
	o = e.object(ident)
	if o.ID() != id || !o.Complete() {
		t.Errorf("file %x, complete %v after a restart", o.ID(), o.Complete())
	}
	o.Release()

	empty := e.stage("empty", nil)
	_, eident := e.store.put("empty", 0)
	e.adopt(empty, eident, nil)
	if _, err := e.StatStage(empty); !errors.Is(err, cache.ErrNoStage) {
		t.Errorf("an empty file: %v", err)
	}
}
