package s3_test

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/objstore/storetest"
	"github.com/leatfs/leatfs/test/s3test"
)

// BenchmarkGet reads ranges into buffers of 128 KiB as the cache does, and reports this
// process's processor time, which does not depend on how fast the server is.
func BenchmarkGet(b *testing.B) {
	srv := s3test.StartTB(b, s3test.Versitygw)
	for _, e := range srv.Env() {
		k, v, _ := strings.Cut(e, "=")
		b.Setenv(k, v)
	}
	bucket := srv.BucketTB(b)
	const size = 64 << 20
	data := storetest.Bytes(1, size)
	for _, n := range []int64{128 << 10, 8 << 20} {
		for _, rb := range []int{4 << 10, 64 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("length=%dKiB/buffer=%dKiB", n>>10, rb>>10), func(b *testing.B) {
				st, err := s3.Open(b.Context(), s3.Config{Bucket: bucket, Transport: s3.Transport{ReadBufferSize: rb}})
				if err != nil {
					b.Fatal(err)
				}
				defer st.Close()
				if _, err := st.Put(b.Context(), "k", storetest.NewSource(data), objstore.PutOptions{}); err != nil {
					b.Fatal(err)
				}
				buf := make([]byte, 128<<10)
				b.SetBytes(n)
				b.ReportAllocs()
				start := cpu(b)
				var off int64
				for b.Loop() {
					r, err := st.Get(b.Context(), "k", objstore.GetOptions{Offset: off, Length: n})
					if err != nil {
						b.Fatal(err)
					}
					for {
						if _, err = io.ReadFull(r.Body, buf); err != nil {
							break
						}
					}
					if err != io.EOF {
						b.Fatal(err)
					}
					r.Body.Close()
					off = (off + n) % size
				}
				b.ReportMetric((cpu(b)-start).Seconds()/(float64(b.N)*float64(n)/1e9), "cpu-s/GB")
			})
		}
	}
}

// cpu is the processor time that this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
