package publish

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/test/s3test"
)

// BenchmarkReuse publishes a file of 512 MiB to a versitygw, sent whole and compared with an earlier version. CPU time is
// this process's alone; of what is sent the server's comes on top.
func BenchmarkReuse(b *testing.B) {
	const size = 512 * mib
	srv := s3test.StartTB(b, s3test.Versitygw)
	for _, e := range srv.Env() {
		name, v, _ := strings.Cut(e, "=")
		b.Setenv(name, v)
	}
	bucket := srv.BucketTB(b)
	st, err := s3.Open(b.Context(), s3.Config{Bucket: bucket, Endpoint: srv.Endpoint})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	caps := st.Caps()
	caps.PartCopy = true
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for i := range int64(size / mib) {
		writeAt(b, f, random(uint64(i), mib), i*mib)
	}
	publish := func(b *testing.B, on bool, key string, with ...Reuse) Outcome {
		p := New(withCaps{st, caps}, Options{Reuse: on, Scratch: b.TempDir()})
		defer p.Close()
		out, err := p.Publish(b.Context(), Job{Key: key, File: f, Token: NewToken(), Reuse: with})
		if err != nil {
			b.Fatal(err)
		}
		return out
	}
	first := publish(b, true, "first")
	if err := unix.Removexattr(filepath.Join(srv.Dir, bucket, "first"), "user.checksums"); err != nil {
		b.Fatal(err)
	}
	r := Reuse{Key: "first", ETag: first.Object.ETag, Size: size, PartSize: first.PartSize, Parts: first.Parts}
	for _, bc := range []struct {
		name    string
		on      bool
		with    []Reuse
		changed int // parts
	}{{"off", false, nil, 0}, {"nothing to compare with", true, nil, 0}, {"all changed", true, []Reuse{r}, 32}, {"a quarter changed", true, []Reuse{r}, 8}, {"nothing changed", true, []Reuse{r}, 0}} {
		b.Run(bc.name, func(b *testing.B) {
			for i := range 32 {
				mark := random(uint64(i*16), mib)[:7] // as it was
				if i < bc.changed {
					mark = []byte("changed")
				}
				writeAt(b, f, mark, int64(i)*16*mib)
			}
			var cpu, sent, reused int64
			for i := range b.N {
				var before, after unix.Rusage
				_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
				key := fmt.Sprint("k", i)
				out := publish(b, bc.on, key, bc.with...)
				_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
				cpu += after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
				sent, reused = out.Requests.Sent, out.Reused
				if err := st.Delete(b.Context(), key, objstore.DeleteOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu)/1e9/float64(b.N)/(float64(size)/1e9), "cpu-s/GB")
			b.ReportMetric(float64(sent)/mib, "MiB-sent")
			b.ReportMetric(float64(reused)/mib, "MiB-copied")
		})
	}
}
