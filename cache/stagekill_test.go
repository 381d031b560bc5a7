package cache_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cache/cachetest"
	"github.com/leatfs/leatfs/fs/meta"
)

// stageProc is a process with a cache on the real index.
type stageProc struct {
	*cache.Cache
	dir    string
	index  *meta.DB
	store  *origin
	data   []byte
	ident  cache.Identity
	marker string // where the ID is noted
}

func openStageProc(dir string) *stageProc {
	p := &stageProc{dir: dir, store: newOrigin(), marker: filepath.Join(dir, "id")}
	index, err := meta.Open(meta.Options{Dir: filepath.Join(dir, "index")})
	p.must(err)
	p.index = index
	pool, err := buf.New(buf.Options{Cap: 16 << 20})
	p.must(err)
	p.Cache, err = cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: filepath.Join(dir, "cache"), Size: 64 << 20}},
		Index: index, Pool: pool, ReserveFree: -1, FlushEvery: 10 * time.Millisecond})
	p.must(err)
	p.data, p.ident = p.store.put("a", 3<<20+5)
	return p
}

func (p *stageProc) must(err error) {
	if err != nil {
		p.fail("%v", err)
	}
}

func (p *stageProc) fail(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	os.Exit(1)
}

func (p *stageProc) object() *cache.Object {
	o, err := p.Object(context.Background(), p.ident, p.store)
	p.must(err)
	return o
}

// act does what is to be killed at the step.
func (p *stageProc) act(what, step string) {
	cache.SetAtStep(p.Cache, func(s string) {
		if s == step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	})
	note := func(id cache.ID) { p.must(os.WriteFile(p.marker, []byte(formatID(id)), 0o600)) }
	switch what {
	case "take":
		o := p.object()
		p.must(o.Fetch(context.Background()))
		note(o.ID())
		for { // it is in the index
			if r, err := p.index.Record(o.ID()); err == nil && r.State.Complete() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		_, err := p.TakeStage(o, 0, label("a"))
		p.must(err)
	case "adopt":
		id, f, err := p.NewStage(label("a"))
		p.must(err)
		_, err = f.Write(p.data)
		p.must(err)
		p.must(f.Close())
		note(id)
		sum, blocks, checksum := sums(p.data)
		b, commit, err := p.AdoptStage(id, p.ident, sum, blocks, checksum)
		p.must(err)
		p.must(p.index.Apply(b))
		commit(true)
	}
	p.fail("was not killed")
}

// check looks at what the killed process left: the file is a staging file or an object file, as it
// should be, and stays so.
func (p *stageProc) check(staged bool) {
	var id cache.ID
	name, err := os.ReadFile(p.marker)
	p.must(err)
	_, err = fmt.Sscanf(string(name), "%x", &id)
	p.must(err)
	for round := range 2 {
		found := 0
		p.must(p.WalkStages(func(i cache.ID, l cache.StageLabel, err error) bool {
			if i != id || err != nil || l != label("a") {
				p.fail("staging file %x: %+v, %v", i, l, err)
			}
			found++
			return true
		}))
		if staged != (found == 1) {
			p.fail("round %d: %d staging files, want one: %v", round, found, staged)
		}
		if round == 0 {
			p.must(p.Maintain(context.Background()))
		}
	}
	path := filepath.Join(p.dir, "cache", "objects", formatID(id)[14:], formatID(id))
	if staged {
		path = filepath.Join(p.dir, "cache", "staging", formatID(id))
	}
	var st unix.Stat_t
	p.must(unix.Lstat(path, &st))
	if st.Nlink != 1 {
		p.fail("the file has %d names", st.Nlink)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, p.data) {
		p.fail("%s: %d bytes, %v", path, len(got), err)
	}
	if _, err := unix.Lgetxattr(path, "user.leatfs.object", nil); staged != (err == unix.ENODATA) {
		p.fail("the label of an object: %v", err)
	}
	o := p.object()
	if o.Complete() == staged {
		p.fail("the object is complete: %v", o.Complete())
	}
	if staged { // what is written to it is nothing of the object
		p.must(os.WriteFile(path, bytes.Repeat([]byte("x"), len(p.data)), 0o600))
		p.must(p.Reconcile(context.Background()))
	}
	p.must(o.Fetch(context.Background()))
	f, err := o.Lend()
	p.must(err)
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, p.data) || staged && o.ID() == id {
		p.fail("the object: %d bytes, %v, file %x", len(got), err, o.ID())
	}
	fmt.Println("checked")
}

// TestStageKilled kills a process at each step on the way from an object file to a staging file
// and back.
func TestStageKilled(t *testing.T) {
	if args := os.Getenv("LEATFS_TEST_STAGE"); args != "" {
		f := strings.Split(args, "|")
		p := openStageProc(f[0])
		if f[1] == "check" {
			p.check(f[2] == "true")
			p.must(p.Close())
			p.must(p.index.Close())
			os.Exit(0)
		}
		p.act(f[1], f[2])
	}
	child := func(args ...string) (string, error) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStageKilled$")
		cmd.Env = append(os.Environ(), "LEATFS_TEST_STAGE="+strings.Join(args, "|"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, c := range []struct {
		what, step string
		staged     bool
	}{
		{"take", "take: labelled", false},
		{"take", "take: linked", false},
		{"take", "take: forgotten", true},
		{"take", "take: unlinked", true},
		{"take", "take: unlabelled", true},
		{"adopt", "adopt: labelled", true},
		{"adopt", "adopt: linked", true},
		{"adopt", "adopt: prepared", true},
		{"adopt", "adopt: indexed", false},
		{"adopt", "adopt: unlinked", false},
	} {
		t.Run(c.step, func(t *testing.T) {
			dir := t.TempDir()
			if out, err := child(dir, c.what, c.step); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("%v: %s", err, out)
			}
			if out, err := child(dir, "check", fmt.Sprint(c.staged)); err != nil || !strings.Contains(out, "checked") {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
}

// TestStagePowerLoss: the index may lose its last changes, with the machine; the labels tell.
func TestStagePowerLoss(t *testing.T) {
	write := func(e *env, id cache.ID, data []byte) {
		f, err := e.OpenStage(id, os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("taken", func(t *testing.T) {
		e := newEnv(t, 256<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
		data, ident := e.store.put("a", 3<<20)
		o := e.fetched(ident)
		id := o.ID()
		eventually(t, "indexed", func() bool { r, err := e.index.Record(id); return err == nil && r.State.Complete() })
		e.index.Freeze()
		if _, err := e.TakeStage(o, 0, label("a")); err != nil {
			t.Fatal(err)
		}
		o.Release()
		changed := bytes.Repeat([]byte("new"), 1<<20)
		write(e, id, changed)
		e.cfg.BootID = "boot-2"
		e.restart(true)
		if r, err := e.index.Record(id); err != nil || !r.State.Complete() {
			t.Fatalf("the index should know the file still: %v", err)
		}
		e.wantStage(id, changed)
		// It is published before anybody notices.
		now := ident
		now.ETag = "new"
		e.adopt(id, now, changed)
		o = e.object(now)
		if o.ID() != id {
			t.Errorf("file %x, want %x", o.ID(), id)
		}
		e.wantLent(o, changed)
		o.Release()
		o = e.object(ident)
		e.wantRead(o, data, 0, ident.Size)
		if o.ID() == id {
			t.Error("two versions in one file")
		}
		o.Release()
		if err := e.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		o = e.object(now)
		e.wantLent(o, changed)
		o.Release()
		e.wantNoLinks()
	})
	t.Run("taken and read", func(t *testing.T) {
		e := newEnv(t, 256<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
		data, ident := e.store.put("a", 3<<20)
		o := e.fetched(ident)
		id := o.ID()
		eventually(t, "indexed", func() bool { r, err := e.index.Record(id); return err == nil && r.State.Complete() })
		e.index.Freeze()
		if _, err := e.TakeStage(o, 0, label("a")); err != nil {
			t.Fatal(err)
		}
		o.Release()
		changed := bytes.Repeat([]byte("new"), 1<<20)
		write(e, id, changed)
		e.cfg.BootID = "boot-2"
		e.restart(true)
		o = e.object(ident)
		e.wantRead(o, data, 0, ident.Size)
		o.Release()
		if err := e.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.wantStage(id, changed)
	})
	t.Run("adopted", func(t *testing.T) {
		e := newEnv(t, 256<<20, 64, func(c *cache.Config) { c.BootID = "boot-1" })
		data, ident := e.store.put("a", 3<<20)
		id := e.stage("a", data)
		e.index.Freeze()
		e.adopt(id, ident, data)
		e.cfg.BootID = "boot-2"
		e.restart(true)
		if err := e.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		gets, _, _ := e.store.counts()
		o := e.object(ident)
		e.wantLent(o, data)
		o.Release()
		if g, _, _ := e.store.counts(); g != gets {
			t.Error("it was fetched")
		}
	})
	t.Run("the whole index", func(t *testing.T) {
		e := newEnv(t, 256<<20, 64)
		data, ident := e.store.put("a", 3<<20)
		var ids []cache.ID
		for i := range 40 {
			ids = append(ids, e.stage(keyOf(i), data[:1000*i]))
		}
		o := e.fetched(ident)
		o.Release()
		// One was on its way to become an object.
		half := e.stage("half", data)
		sum, blocks, checksum := sums(data)
		other := ident
		other.ETag = "other"
		if _, _, err := e.AdoptStage(half, other, sum, blocks, checksum); err != nil {
			t.Fatal(err)
		}
		e.close()
		e.index = newIndexOf(e)
		e.open()
		if got := e.LargestStage(); got != half {
			t.Errorf("the largest ID is %x, want %x", got, half)
		}
		write(e, half, []byte("changed"))
		if err := e.Maintain(t.Context()); err != nil {
			t.Fatal(err)
		}
		fresh := e.stage("fresh", []byte("fresh"))
		if fresh <= half {
			t.Errorf("ID %x was given out, up to %x are taken", fresh, half)
		}
		for i, id := range ids {
			e.wantStage(id, data[:1000*i])
		}
		e.wantStage(half, append([]byte("changed"), data[7:]...))
		e.wantNoLinks()
		o = e.object(other)
		if o.Complete() {
			t.Error("what was a staging file is taken for an object")
		}
		o.Release()
		o = e.object(ident)
		if !o.Complete() {
			t.Error("the object was not taken in")
		}
		e.wantLent(o, data)
		o.Release()
	})
}

// newIndexOf gives the cache, which is closed, an empty index.
func newIndexOf(e *env) *cachetest.Index {
	x := cachetest.NewIndex()
	e.cfg.Index = x
	return x
}
