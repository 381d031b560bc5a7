package s3test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

func TestServers(t *testing.T) {
	for _, k := range Kinds() {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			s := StartOptionsTB(t, Options{Kind: k, Dir: t.TempDir(), Versioning: true})
			b := s.BucketTB(t)
			ctx := t.Context()
			key := "dir/name"
			put := func(v string) {
				t.Helper()
				_, err := s.Client().PutObject(ctx, &s3.PutObjectInput{Bucket: &b, Key: &key, Body: strings.NewReader(v)})
				if err != nil {
					t.Fatal(err)
				}
			}
			get := func(version *string) string {
				t.Helper()
				out, err := s.Client().GetObject(ctx, &s3.GetObjectInput{Bucket: &b, Key: &key, VersionId: version})
				if err != nil {
					t.Fatal(err)
				}
				defer out.Body.Close()
				data, err := io.ReadAll(out.Body)
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			}
			if err := s.EnableVersioning(ctx, b); err != nil {
				t.Fatal(err)
			}
			put("one")
			head, err := s.Client().HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b, Key: &key})
			if err != nil {
				t.Fatal(err)
			}
			put("two")
			s.Kill()
			if s.Pid() != 0 {
				t.Error("a killed server has a process")
			}
			if err := s.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if got := get(nil); got != "two" {
				t.Errorf("after a restart: got %q, want %q", got, "two")
			}
			if got := get(head.VersionId); got != "one" {
				t.Errorf("old version: got %q, want %q", got, "one")
			}
			s.Stop()
			s.Stop()
		})
	}
}

func TestStartErrors(t *testing.T) {
	s := StartTB(t, Versitygw)
	if _, err := Start(context.Background(), Options{Kind: Versitygw, Dir: t.TempDir(), Addr: s.Addr}); err == nil {
		t.Error("two servers on one address")
	}
	t.Setenv("LEATFS_TOOLS", t.TempDir())
	if _, err := Start(context.Background(), Options{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "make tools") {
		t.Errorf("missing binary: got %v", err)
	}
}
