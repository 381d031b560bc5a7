package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/s3test"
)

// Two nodes are two mounts of one bucket, each with a cache and a connection of its own. They know nothing of each
// other but what the bucket says.

// twoNodes runs a test on every server, with two nodes' worlds.
func twoNodes(t *testing.T, f func(t *testing.T, a, b *world)) {
	for _, kind := range s3test.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			a := newWorldOn(t, s3test.Options{Kind: kind})
			p, err := fault.Start(a.server.Endpoint, fault.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			f(t, a, &world{t: t, server: a.server, proxy: p, bucket: a.bucket})
		})
	}
}

// keys are the keys of the bucket that begin with a prefix; with slash, those of directories too.
func (w *world) keys(prefix string, slash bool) (keys []string) {
	w.t.Helper()
	out, err := w.server.Client().ListObjectsV2(context.Background(), &awss3.ListObjectsV2Input{Bucket: &w.bucket, Prefix: &prefix})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range out.Contents {
		if slash || !strings.HasSuffix(*o.Key, "/") {
			keys = append(keys, *o.Key)
		}
	}
	return keys
}

// uploads are the unfinished uploads of the bucket.
func (w *world) uploads(key string) (ids []string) {
	w.t.Helper()
	out, err := w.server.Client().ListMultipartUploads(context.Background(), &awss3.ListMultipartUploadsInput{Bucket: &w.bucket, Prefix: &key})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, u := range out.Uploads {
		ids = append(ids, *u.UploadId)
	}
	return ids
}

// writeSynced writes a file in pieces and closes it after fsync.
func writeSynced(file string, data []byte) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	for rest := data; len(rest) > 0; {
		n, err := f.Write(rest[:min(len(rest), 300_000)])
		if err != nil {
			return errors.Join(err, f.Close())
		}
		rest = rest[n:]
	}
	return errors.Join(f.Sync(), f.Close())
}

// negative is longer than a name may be said to be missing that is there.
const negative = 1100 * time.Millisecond

// TestTwoNodesCheckpoint: ranks of two nodes write a checkpoint into one directory; what fsync has returned from is in
// the bucket and seen by the other node; the file that says that all is there is never seen before all.
func TestTwoNodesCheckpoint(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		a := wa.mount("--fsync=remote")
		b := wb.mount("--policy=/ckpt/**:fsync=remote")
		const ranks = 8
		for step := range 3 {
			dir := fmt.Sprintf("ckpt/step-%d", step)
			shard := func(rank int) (string, []byte) {
				return fmt.Sprintf("%s/__%d_0.distcp", dir, rank), random(uint64(step*ranks+rank), 700_000+rank)
			}
			whole := func(read func(name string) ([]byte, error)) error {
				for rank := range ranks {
					name, want := shard(rank)
					if got, err := read(name); err != nil || !bytes.Equal(got, want) {
						return fmt.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
					}
				}
				return nil
			}
			mounted := func(m *mnt) func(string) ([]byte, error) {
				return func(name string) ([]byte, error) { return os.ReadFile(m.path(name)) }
			}
			// Two watch for the marker: one at the bucket, one on the other node.
			ctx, stop := context.WithCancel(context.Background())
			var watchers sync.WaitGroup
			watch := func(what string, there func() bool, read func(string) ([]byte, error)) {
				watchers.Go(func() {
					for !there() {
						if ctx.Err() != nil {
							t.Errorf("step %d: %s never saw the marker", step, what)
							return
						}
						time.Sleep(5 * time.Millisecond)
					}
					if err := whole(read); err != nil {
						t.Errorf("step %d: %s saw the marker before all data: %v", step, what, err)
					}
				})
			}
			watch("the bucket", func() bool { return slices.Contains(wa.keys(dir+"/.metadata", true), dir+"/.metadata") }, wa.object)
			watch("the other node", func() bool { _, err := os.Stat(b.path(dir + "/.metadata")); return err == nil }, mounted(b))

			var ranked sync.WaitGroup
			for rank := range ranks {
				m := a
				if rank >= ranks/2 {
					m = b
				}
				ranked.Go(func() {
					name, data := shard(rank)
					if err := os.MkdirAll(m.path(dir), 0o755); err != nil {
						t.Errorf("rank %d: %v", rank, err)
						return
					}
					if err := writeSynced(m.path(name), data); err != nil {
						t.Errorf("rank %d: %v", rank, err)
						return
					}
					if got, err := wa.object(name); err != nil || !bytes.Equal(got, data) {
						t.Errorf("rank %d: fsync has returned, and the bucket has %d bytes, %v", rank, len(got), err)
					}
				})
			}
			ranked.Wait() // the barrier
			ok(t, "write the marker", writeSynced(a.path(dir+"/.metadata.tmp"), random(99, 5000)))
			ok(t, "rename the marker", os.Rename(a.path(dir+"/.metadata.tmp"), a.path(dir+"/.metadata")))
			time.AfterFunc(time.Minute, stop)
			watchers.Wait()
			stop()
			time.Sleep(negative)
			for what, m := range map[string]*mnt{"node A": a, "node B": b} {
				if err := whole(mounted(m)); err != nil {
					t.Errorf("step %d: on %s: %v", step, what, err)
				}
				m.same(dir+"/.metadata", random(99, 5000))
			}
		}
		a.drained()
		b.drained()
		if n := a.others().Conflicts + b.others().Conflicts; n != 0 {
			t.Errorf("%d conflicts", n)
		}
	})
}

// TestTwoNodesRename: a directory is renamed by one node, what the other has published into it goes along, also what the
// first had not seen.
func TestTwoNodesRename(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		a, b := wa.mount(), wb.mount("--ttl=1s")
		b.expect = append(b.expect, "deleted by somebody else")
		ok(t, "mkdir", os.Mkdir(a.path("run"), 0o755))
		ok(t, "write", os.WriteFile(a.path("run/a1"), []byte("a1"), 0o644))
		a.drained()
		if got := a.names("run"); !slices.Equal(got, []string{"a1"}) {
			t.Errorf("names %q", got)
		}
		time.Sleep(negative)
		ok(t, "write", os.WriteFile(b.path("run/b1"), []byte("b1"), 0o644))
		ok(t, "mkdir", os.Mkdir(b.path("run/sub"), 0o755))
		ok(t, "write", os.WriteFile(b.path("run/sub/b2"), random(2, 100_000), 0o644))
		b.drained()
		late, err := os.Create(b.path("run/late"))
		ok(t, "create", err)

		ok(t, "rename", os.Rename(a.path("run"), a.path("done")))
		if got := a.names("done"); !slices.Equal(got, []string{"a1", "b1", "sub/"}) {
			t.Errorf("on node A, at once: %q", got)
		}
		a.same("done/sub/b2", random(2, 100_000))
		a.drained()
		if got := wa.keys("", false); !slices.Equal(got, []string{"done/a1", "done/b1", "done/sub/b2"}) {
			t.Errorf("in the bucket: %q", got)
		}
		b.eventually("node B sees the new name and not the old one", func() error {
			if _, err := os.Stat(b.path("run/b1")); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the old one: %v", err)
			}
			got, err := os.ReadFile(b.path("done/b1"))
			if err != nil || string(got) != "b1" {
				return fmt.Errorf("%q %v", got, err)
			}
			return nil
		})
		b.same("done/sub/b2", random(2, 100_000))

		// What comes under the old name after that stays there.
		_, err = late.WriteString("late")
		ok(t, "write", err)
		ok(t, "close", late.Close())
		b.published("run/late", []byte("late"))
		b.drained()
		if got := wa.keys("", false); !slices.Equal(got, []string{"done/a1", "done/b1", "done/sub/b2", "run/late"}) {
			t.Errorf("in the bucket: %q", got)
		}
		time.Sleep(negative)
		a.same("run/late", []byte("late"))
		b.same("run/late", []byte("late"))
	})
}

// TestTwoNodesConflict: both write one name at the same time: nothing is lost.
func TestTwoNodesConflict(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		for _, before := range []string{"", "what was there before"} {
			name := "new"
			if before != "" {
				name = "old"
				wa.put("d/"+name, []byte(before))
			}
			a, b := wa.mount("--ttl=1s"), wb.mount("--ttl=1s")
			var open []*os.File
			for m, data := range map[*mnt]string{a: "from A", b: "from B, longer"} {
				m.expect = append(m.expect, "somebody else has changed the object", "replaced by somebody else")
				ok(t, "mkdir", os.MkdirAll(m.path("d"), 0o755))
				f, err := os.OpenFile(m.path("d/"+name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
				ok(t, "open", err)
				_, err = f.WriteString(data)
				ok(t, "write", err)
				open = append(open, f)
			}
			var closing sync.WaitGroup
			for _, f := range open {
				closing.Go(func() {
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			closing.Wait()
			a.drained()
			b.drained()
			keys := wa.keys("d/"+name, false)
			if len(keys) != 2 || keys[0] != "d/"+name || !strings.HasPrefix(keys[1], "d/"+name+".conflict-") {
				t.Fatalf("%s: keys %q, want the name and one beside it", name, keys)
			}
			var have []string
			for _, k := range keys {
				data, err := wa.object(k)
				ok(t, "read", err)
				have = append(have, string(data))
			}
			winner, loser := have[0], have[1]
			slices.Sort(have)
			if !slices.Equal(have, []string{"from A", "from B, longer"}) {
				t.Errorf("%s: the bucket has %q", name, have)
			}
			if n := a.others().Conflicts + b.others().Conflicts; n != 1 {
				t.Errorf("%s: %d conflicts are counted, want 1", name, n)
			}
			time.Sleep(negative)
			for _, m := range []*mnt{a, b} {
				m.same("d/"+name, []byte(winner))
				m.same(keys[1], []byte(loser))
			}
			a.stop()
			b.stop()
		}
	})
}

// TestTwoNodesLastWins: with --conflicts=last-wins what comes to the bucket last stays, and nothing is beside it.
func TestTwoNodesLastWins(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		wa.put("f", []byte("before"))
		a, b := wa.mount("--ttl=1s", "--conflicts=last-wins"), wb.mount("--ttl=1s", "--conflicts=last-wins")
		for _, m := range []*mnt{a, b} {
			m.expect = append(m.expect, "last-wins", "replaced by somebody else")
			m.same("f", []byte("before"))
		}
		f, err := os.OpenFile(b.path("f"), os.O_WRONLY|os.O_TRUNC, 0)
		ok(t, "open", err)
		_, err = f.WriteString("from B, the last")
		ok(t, "write", err)
		ok(t, "write", os.WriteFile(a.path("f"), []byte("from A"), 0o644))
		a.published("f", []byte("from A"))
		ok(t, "close", f.Close())
		b.published("f", []byte("from B, the last"))
		b.drained()
		a.drained()
		if keys := wa.keys("", true); !slices.Equal(keys, []string{"f"}) {
			t.Errorf("keys %q", keys)
		}
		time.Sleep(negative)
		a.same("f", []byte("from B, the last"))
		if n := a.others(); n.Replaced != 1 {
			t.Errorf("node A does not say that its version was replaced: %+v", n)
		}
	})
}

// TestTwoNodesDelete: one node removes a file that the other rewrites. Whichever comes to the bucket first, the new
// content is there at the end: only the version that was meant is deleted.
func TestTwoNodesDelete(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		wa.put("f", []byte("before"))
		wa.put("g", []byte("before"))
		a, b := wa.mount("--ttl=1s"), wb.mount("--ttl=1s")
		a.expect = append(a.expect, "level=WARN")
		b.expect = append(b.expect, "by somebody else")
		for _, m := range []*mnt{a, b} {
			m.same("f", []byte("before"))
			m.same("g", []byte("before"))
		}
		// f: the rewriting comes first.
		wa.proxy.Add(fault.Rule{Class: "DELETE", Do: fault.ServiceUnavailable()})
		ok(t, "unlink", os.Remove(a.path("f")))
		_, err := os.Stat(a.path("f"))
		wantErrno(t, "on node A", err, syscall.ENOENT)
		ok(t, "rewrite", os.WriteFile(b.path("f"), []byte("rewritten by B"), 0o644))
		b.published("f", []byte("rewritten by B"))
		wa.proxy.Clear()
		a.drained()
		b.drained()
		if got, err := wa.object("f"); err != nil || string(got) != "rewritten by B" {
			t.Errorf("the bucket has %q, %v", got, err)
		}
		a.eventually("node A sees it", func() error {
			got, err := os.ReadFile(a.path("f"))
			if err != nil || string(got) != "rewritten by B" {
				return fmt.Errorf("%q %v", got, err)
			}
			return nil
		})

		// g: the deletion comes first.
		f, err := os.OpenFile(b.path("g"), os.O_RDWR, 0)
		ok(t, "open", err)
		_, err = f.WriteAt([]byte("BEF"), 0)
		ok(t, "write", err)
		ok(t, "unlink", os.Remove(a.path("g")))
		a.unpublished("g")
		ok(t, "close", f.Close())
		b.published("g", []byte("BEFore"))
		b.drained()
		if keys := wa.keys("", true); !slices.Equal(keys, []string{"f", "g"}) {
			t.Errorf("keys %q", keys)
		}
	})
}

// TestTwoNodesLost: a node is lost with its disk. The other sees what had been published, whole, and nothing else; an
// upload that the lost node had begun is seen by nobody, and left alone.
func TestTwoNodesLost(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		a, b := wa.mount("--policy=/d/synced*:fsync=remote"), wb.mount("--ttl=1s")
		ok(t, "mkdir", os.Mkdir(a.path("d"), 0o755))
		want := map[string][]byte{}
		for i := range 5 {
			name := fmt.Sprintf("d/synced-%d", i)
			want[name] = random(uint64(i), 200_000+i)
			ok(t, "write", writeSynced(a.path(name), want[name]))
		}
		// Still open, large enough that its parts are sent while it grows.
		large, err := os.Create(a.path("d/large"))
		ok(t, "create", err)
		defer large.Close()
		for range 9 {
			_, err := large.Write(random(7, 8<<20))
			ok(t, "write", err)
		}
		a.eventually("its upload has begun", func() error {
			if len(wa.uploads("d/large")) != 1 {
				return fmt.Errorf("uploads %q", wa.uploads("d/large"))
			}
			return nil
		})
		// Complete here, and never taken by the bucket.
		wa.proxy.Add(fault.Rule{Class: "PUT", Key: "local", Do: fault.ServiceUnavailable()})
		ok(t, "write", os.WriteFile(a.path("d/local"), random(8, 1000), 0o644))
		a.kill()
		ok(t, "the disk is gone", os.RemoveAll(a.cache))

		time.Sleep(negative)
		var names []string
		for name := range want {
			b.same(name, want[name])
			names = append(names, filepath.Base(name))
		}
		slices.Sort(names)
		if got := b.names("d"); !slices.Equal(got, names) {
			t.Errorf("node B sees %q, want %q", got, names)
		}
		ids := wa.uploads("d/large")
		if len(ids) != 1 {
			t.Errorf("uploads of the lost node: %q", ids)
		}
		// The names are free for others, who do not touch its upload.
		ok(t, "write", os.WriteFile(b.path("d/large"), random(9, 20<<20), 0o644))
		ok(t, "write", os.WriteFile(b.path("d/local"), []byte("B's"), 0o644))
		b.drained()
		if got, err := wa.object("d/large"); err != nil || !bytes.Equal(got, random(9, 20<<20)) {
			t.Errorf("the bucket has %d bytes of d/large, %v", len(got), err)
		}
		if got := wa.uploads("d/large"); !slices.Equal(got, ids) {
			t.Errorf("unfinished uploads %q, want that of the lost node alone: %q", got, ids)
		}
		if n := b.others().Conflicts; n != 0 {
			t.Errorf("%d conflicts", n)
		}
	})
}
