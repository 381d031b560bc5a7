package cache_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/cache/buf"
	"github.com/leatfs/leatfs/cache/cachetest"
	"github.com/leatfs/leatfs/objstore"
)

// endless is a store whose objects are all the same bytes, so that what is measured is the cache.
type endless struct {
	objstore.Store
	data []byte
}

func (s *endless) Head(context.Context, string, objstore.HeadOptions) (objstore.Object, error) {
	return objstore.Object{Size: int64(len(s.data))}, nil
}

func (s *endless) Get(_ context.Context, _ string, opt objstore.GetOptions) (*objstore.Reader, error) {
	n := opt.Length
	if n < 0 {
		n = int64(len(s.data))
	}
	return &objstore.Reader{Object: objstore.Object{Size: int64(len(s.data))}, Offset: opt.Offset, Length: n,
		Body: io.NopCloser(bytes.NewReader(s.data[opt.Offset : opt.Offset+n]))}, nil
}

func benchCache(b *testing.B, size int64) *cache.Cache {
	pool, err := buf.New(buf.Options{Cap: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	pool.Check(b)
	c, err := cache.Open(cache.Config{Dirs: []cache.DirConfig{{Path: b.TempDir(), Size: size}}, Index: cachetest.NewIndex(), Pool: pool,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	return data
}

// cpu returns the processor time used so far, in seconds.
func cpu() float64 {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

// BenchmarkFill reads an object from end to end, prefetching, and waits until it is complete.
func BenchmarkFill(b *testing.B) {
	const size = 512 << 20
	c := benchCache(b, 8<<30)
	s := &endless{data: randomBytes(size)}
	b.SetBytes(size)
	start := cpu()
	i := 0
	for b.Loop() {
		i++
		o, err := c.Object(context.Background(), cache.Identity{Key: keyOf(i), Size: size}, s)
		if err != nil {
			b.Fatal(err)
		}
		for off := int64(0); off < size; off += 1 << 20 {
			if off%(8<<20) == 0 {
				o.Prefetch(off, 32<<20, objstore.Prefetch)
			}
			d, err := o.Read(context.Background(), off, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			d.Release()
		}
		if err := o.Fetch(context.Background()); err != nil {
			b.Fatal(err)
		}
		o.Doom()
		o.Release()
	}
	b.ReportMetric((cpu()-start)/float64(b.N)/(size/1e9), "cpu-s/GB")
}

// BenchmarkReadMemory reads 128 KiB that are in memory.
func BenchmarkReadMemory(b *testing.B) {
	c := benchCache(b, 8<<30)
	s := &endless{data: randomBytes(64 << 20)}
	o, err := c.Object(context.Background(), cache.Identity{Key: "x", Size: 64 << 20}, s)
	if err != nil {
		b.Fatal(err)
	}
	defer o.Release()
	b.ReportAllocs()
	b.SetBytes(cache.BlockSize - 1)
	d, err := o.Read(context.Background(), 0, cache.BlockSize-1)
	if err != nil {
		b.Fatal(err)
	}
	d.Release()
	for b.Loop() { // not to its end: it stays
		d, err := o.Read(context.Background(), 0, cache.BlockSize-1)
		if err != nil {
			b.Fatal(err)
		}
		d.Release()
	}
}

// BenchmarkReadDisk reads 1 MiB that is on disk, past the page cache.
func BenchmarkReadDisk(b *testing.B) {
	const size = 256 << 20
	c := benchCache(b, 8<<30)
	s := &endless{data: randomBytes(size)}
	o, err := c.Object(context.Background(), cache.Identity{Key: "x", Size: size}, s)
	if err != nil {
		b.Fatal(err)
	}
	defer o.Release()
	if err := o.Fetch(context.Background()); err != nil {
		b.Fatal(err)
	}
	for off := int64(0); off < size; off += 1 << 20 { // empties the memory
		d, err := o.Read(context.Background(), off, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		d.Release()
	}
	b.SetBytes(1 << 20)
	start := cpu()
	i := int64(0)
	for b.Loop() {
		d, err := o.Read(context.Background(), i<<20%size, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		d.Release()
		i++
	}
	b.ReportMetric((cpu()-start)/float64(b.N)/(1<<20/1e9), "cpu-s/GB")
}

// BenchmarkSmall opens, fetches and lends small files that are new.
func BenchmarkSmall(b *testing.B) {
	c := benchCache(b, 8<<30)
	s := &endless{data: randomBytes(110_000)}
	b.SetBytes(110_000)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		o, err := c.Object(context.Background(), cache.Identity{Key: keyOf(i), Size: 110_000}, s)
		if err != nil {
			b.Fatal(err)
		}
		if err := o.Fetch(context.Background()); err != nil {
			b.Fatal(err)
		}
		f, err := o.Lend()
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
		o.Return()
		o.Release()
	}
}

// BenchmarkOpenWarm opens and lends a small file that is complete.
func BenchmarkOpenWarm(b *testing.B) {
	c := benchCache(b, 8<<30)
	s := &endless{data: randomBytes(110_000)}
	ident := cache.Identity{Key: "x", Size: 110_000}
	b.ReportAllocs()
	for b.Loop() {
		o, err := c.Object(context.Background(), ident, s)
		if err != nil {
			b.Fatal(err)
		}
		if !o.Complete() {
			if err := o.Fetch(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
		f, err := o.Lend()
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
		o.Return()
		o.Release()
	}
}
