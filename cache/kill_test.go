package cache_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/fs/meta"
	"github.com/leatfs/leatfs/objstore"
)

// TestKill9 lets a process read through a cache, on the real index, and kills it at any moment,
// again and again. Each next one checks all bytes that are there, by the cache and by the
// files themselves, and must find no block that is not what the index says.
func TestKill9(t *testing.T) {
	if dir := os.Getenv("LEATFS_TEST_KILL"); dir != "" {
		killed(t, dir)
		return
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 8 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill9$")
		cmd.Env = append(os.Environ(), "LEATFS_TEST_KILL="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said []string
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			said = append(said, lines.Text())
			if lines.Text() == "checked" {
				break
			}
		}
		if len(said) == 0 || said[len(said)-1] != "checked" {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("round %d: %s", round, strings.Join(said, "\n"))
		}
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out)
		_ = cmd.Wait()
		if len(rest) > 0 {
			t.Fatalf("round %d: %s", round, rest)
		}
	}
}

// killed is the process that gets killed. It says "checked" when what it found was right.
func killed(t *testing.T, dir string) {
	fail := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	index, err := meta.Open(meta.Options{Dir: filepath.Join(dir, "index"), Log: log})
	if err != nil {
		fail("%v", err)
	}
	pool, err := buf.New(buf.Options{Cap: 16 << 20})
	if err != nil {
		fail("%v", err)
	}
	c, err := cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: filepath.Join(dir, "cache"), Size: 48 << 20}},
		Index: index, Pool: pool, Log: log, ReserveFree: -1, FlushEvery: 10 * time.Millisecond})
	if err != nil {
		fail("%v", err)
	}
	store := newOrigin()
	var idents []cache.Identity
	var datas [][]byte
	for i, n := range []int{100_000, 3 << 20, 9 << 20, 20<<20 + 5, 60 << 20, 300_000, 5 << 20} {
		data, ident := store.put(keyOf(i), n)
		idents, datas = append(idents, ident), append(datas, data)
	}
	object := func(i int) *cache.Object {
		o, err := c.Object(context.Background(), idents[i], store)
		if err != nil {
			fail("%v", err)
		}
		return o
	}
	lent := func(o *cache.Object, i int) {
		f, err := o.Lend()
		if err != nil {
			return
		}
		got, err := io.ReadAll(f)
		if err != nil || string(got) != string(datas[i]) {
			fail("object %d: the lent file is wrong", i)
		}
		f.Close()
		o.Return()
	}
	check := func(i int, off, n int64) {
		o := object(i)
		got, err := read(o, off, n)
		if err != nil || string(got) != string(datas[i][off:min(off+n, int64(len(datas[i])))]) {
			fail("object %d: wrong bytes at %d (%v)", i, off, err)
		}
		o.Release()
	}
	for i := range idents {
		o := object(i)
		lent(o, i)
		for off := int64(0); off < idents[i].Size; off += block {
			if !o.Missing(off, block) {
				check(i, off, block)
			}
		}
		o.Release()
	}
	if s := c.Stats(); s.CRCMismatches != 0 {
		fail("%d blocks were not what the index said", s.CRCMismatches)
	}
	if err := c.Maintain(context.Background()); err != nil {
		fail("%v", err)
	}
	fmt.Println("checked")
	for w := range 4 {
		go func() {
			r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
			for {
				i := r.IntN(len(idents))
				off := r.Int64N(idents[i].Size)
				o := object(i)
				switch r.IntN(4) {
				case 0:
					o.Prefetch(off, 4<<20, objstore.Prefetch)
				case 1:
					_ = o.Fetch(context.Background())
					lent(o, i)
				}
				o.Release()
				check(i, off, 2<<20)
			}
		}()
	}
	select {}
}
