package list_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/list"
	"github.com/leatfs/leatfs/objstore/memstore"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/objstore/storetest"
	"github.com/leatfs/leatfs/test/link"
	"github.com/leatfs/leatfs/test/s3test"
)

// open opens a new bucket of a server, by way of endpoint.
func open(t *testing.T, srv *s3test.Server, endpoint string) (*s3.Store, string) {
	t.Helper()
	for _, e := range srv.Env() {
		k, v, _ := strings.Cut(e, "=")
		t.Setenv(k, v)
	}
	none := t.TempDir() + "/none"
	t.Setenv("AWS_PROFILE", "")
	t.Setenv("AWS_SESSION_TOKEN", "")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	bucket := srv.BucketTB(t)
	store, err := s3.Open(t.Context(), s3.Config{Bucket: bucket, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store, bucket
}

// fill puts empty objects; into versitygw's directory by hand, which is quicker.
func fill(t *testing.T, srv *s3test.Server, store objstore.Store, bucket string, keys []string) {
	t.Helper()
	if srv.Kind == s3test.Versitygw {
		for _, k := range keys {
			p := filepath.Join(srv.Dir, bucket, filepath.FromSlash(k))
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, nil, 0o644); err != nil && !errors.Is(err, fs.ErrExist) {
				t.Fatal(err)
			}
		}
		return
	}
	var g errgroup.Group
	g.SetLimit(32)
	for _, k := range keys {
		g.Go(func() error {
			_, err := store.Put(t.Context(), k, storetest.NewSource(nil), objstore.PutOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// Names that stand in another order as paths than as keys, beside such as are cut well.
func oddNames() []string {
	rnd := rand.New(rand.NewPCG(3, 4))
	var keys []string
	for i := range 30 {
		for _, f := range []string{"d/dir%d/x", "d/dir%d-a", "d/dir%d.b", "d/dir%d!", "d/dir%d0/y/z", "d/dir%d~"} {
			keys = append(keys, fmt.Sprintf(f, 10+i))
		}
	}
	for i := range 300 {
		keys = append(keys, fmt.Sprintf("d/img_%05d.jpg", i), fmt.Sprintf("d/n%03d/a", i), fmt.Sprintf("d/n%03d/b", i),
			fmt.Sprintf("d/%08x", rnd.Uint32()), "d/"+string([]rune{'ä', rune(0x4e00 + rnd.IntN(2000)), rune(0x1F600 + rnd.IntN(50))}))
	}
	return keys
}

func TestRealServers(t *testing.T) {
	for _, kind := range s3test.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			srv := s3test.StartTB(t, kind)
			store, bucket := open(t, srv, srv.Endpoint)
			keys := oddNames()
			fill(t, srv, store, bucket, keys)
			for _, recursive := range []bool{false, true} {
				want := want(keys, "d/", recursive)
				for _, size := range []int{7, 50, 1000} {
					counting, requests := counted(store, 0)
					got := collect(t, counting, "d/", list.Options{MaxKeys: size, Recursive: recursive, Parallel: 8})
					if !slices.Equal(got, want) {
						t.Errorf("pages of %d: got %d names, want %d", size, len(got), len(want))
					}
					t.Logf("recursive %v, pages of %d: %d names, %d requests, %d would do serially", recursive, size, len(got), requests.Load(), (len(got)+size-1)/size)
				}
			}
		})
	}
}

// TestBehindLink: of 20 pages over a long link several are asked for at a time. What counts is how long all requests
// took together, over the time from the first to the last: it does not depend on how busy the processors are. The
// figure to reach, half of the serial time, is logged.
func TestBehindLink(t *testing.T) {
	srv := s3test.StartTB(t, s3test.Versitygw)
	l, err := link.Start(link.Options{Target: srv.Addr, FirstByte: 60 * time.Millisecond, PerConn: 90_000_000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	store, bucket := open(t, srv, "http://"+l.Addr())
	keys := layouts(4000)["numbers"]
	fill(t, srv, store, bucket, keys)
	for _, parallel := range []int{1, 16} {
		var requests, inFlight atomic.Int64
		timed := objstore.Around(store, func(ctx context.Context, _ objstore.Op, call func(context.Context) error) error {
			requests.Add(1)
			defer func(since time.Time) { inFlight.Add(int64(time.Since(since))) }(time.Now())
			return call(ctx)
		})
		start := time.Now()
		if got := collect(t, timed, "d/", list.Options{Parallel: parallel, MaxKeys: 200}); len(got) != len(keys) {
			t.Fatalf("%d names, want %d", len(got), len(keys))
		}
		took := time.Since(start)
		depth := float64(inFlight.Load()) / float64(took)
		t.Logf("parallel %d: %v, %d requests, %.1f at a time", parallel, took, requests.Load(), depth)
		if parallel == 1 && depth > 1.01 || parallel > 1 && depth < 2 {
			t.Errorf("%.1f requests at a time with Parallel %d", depth, parallel)
		}
		if n := requests.Load(); n > 30 {
			t.Errorf("%d requests for 20 pages", n)
		}
	}
}

// A directory of a million names is listed page by page: what is held does not grow with it.
func TestMillion(t *testing.T) {
	const n = 1_000_000
	store := million{memstore.New()}
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	names, pages, most := 0, 0, uint64(0)
	counting, requests := counted(store, 0)
	err := list.Dir(t.Context(), counting, "d/", list.Options{OnPage: func(p list.Page) error {
		names += len(p.Objects)
		if pages++; pages%200 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(now.HeapAlloc, before.HeapAlloc))
		}
		return nil
	}})
	if err != nil || names != n {
		t.Fatalf("%d names, %v", names, err)
	}
	t.Logf("%d requests, at most %d KiB held", requests.Load(), most>>10)
	if most > 32<<20 {
		t.Errorf("%d bytes held", most)
	}
	if requests.Load() > n/1000*11/10 {
		t.Errorf("%d requests, want about %d", requests.Load(), n/1000)
	}
}

// million has a million names in one directory, and stores none.
type million struct{ objstore.Store }

func (million) List(_ context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	after := max(opt.StartAfter, opt.Token)
	next := 0
	if after != "" {
		_, _ = fmt.Sscanf(after, "d/%08d", &next)
		next++
	}
	var p objstore.ListPage
	for ; next < 1_000_000 && len(p.Objects) < 1000; next++ {
		p.Objects = append(p.Objects, objstore.Object{Key: fmt.Sprintf("d/%08d", next), Size: 1, ETag: "0123456789abcdef0123456789abcdef"})
	}
	if next < 1_000_000 {
		p.Next = p.Objects[len(p.Objects)-1].Key
	}
	return p, nil
}
