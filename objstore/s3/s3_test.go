package s3_test

import (
	"context"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/s3"
	"github.com/leatfs/leatfs/objstore/storetest"
	"github.com/leatfs/leatfs/test/s3test"
)

// useServer makes the test's environment that of the server and nothing else.
func useServer(t *testing.T, s *s3test.Server) {
	t.Helper()
	clearEnv(t)
	for _, e := range s.Env() {
		k, v, _ := strings.Cut(e, "=")
		t.Setenv(k, v)
	}
}

// clearEnv keeps the tests away from the credentials and settings of who runs them.
func clearEnv(t *testing.T) {
	t.Helper()
	none := t.TempDir() + "/none"
	for k, v := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "",
		"AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(k, v)
	}
}

func mustOpen(t *testing.T, cfg s3.Config) *s3.Store {
	t.Helper()
	st, err := s3.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// features is what each server holds. versitygw takes keys with "//" and ".." but makes
// them clean paths, so that "a//b" is "a/b": nothing that can be tested.
func features(k s3test.Kind) storetest.Features {
	switch k {
	case s3test.Versitygw:
		return storetest.Features{DeletedShows: true, DeletedExists: true}
	case s3test.MinIO:
		return storetest.Features{
			KeyBesidePrefix: true, KeyHidesPrefix: true, DeletedShows: true,
			OddKeys:     []string{"\x01ctl"},
			RefusedKeys: []string{"x/../y", "./z", "a//b"},
		}
	}
	return storetest.Features{}
}

func TestStore(t *testing.T) {
	for _, k := range s3test.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			srv := s3test.StartTB(t, k)
			useServer(t, srv)
			storetest.Run(t, func(t *testing.T) objstore.Store {
				return mustOpen(t, s3.Config{Bucket: srv.BucketTB(t)})
			}, features(k))
		})
	}
}

func TestStoreVersions(t *testing.T) {
	for _, k := range s3test.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			srv := s3test.StartOptionsTB(t, s3test.Options{Kind: k, Dir: t.TempDir(), Versioning: true})
			useServer(t, srv)
			storetest.Run(t, func(t *testing.T) objstore.Store {
				b := srv.BucketTB(t)
				if err := srv.EnableVersioning(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				st := mustOpen(t, s3.Config{Bucket: b})
				if !st.Caps().Versions {
					t.Error("Caps.Versions is false on a bucket that keeps versions")
				}
				return st
			}, features(k))
		})
	}
}

// TestKnown: what Open found out serves a later Open, which asks nothing, and is the same store.
func TestKnown(t *testing.T) {
	srv := s3test.StartOptionsTB(t, s3test.Options{Kind: s3test.MinIO, Dir: t.TempDir(), Versioning: true})
	useServer(t, srv)
	b := srv.BucketTB(t)
	if err := srv.EnableVersioning(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	first := mustOpen(t, s3.Config{Bucket: b})
	known := first.Known()
	none, cancel := context.WithCancel(t.Context())
	cancel() // no request can be made
	second, err := s3.Open(none, s3.Config{Bucket: b, Known: &known})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if second.String() != first.String() || second.Caps() != first.Caps() || second.Region() != first.Region() || second.Known() != known {
		t.Errorf("got %v %+v %q, want %v %+v %q", second, second.Caps(), second.Region(), first, first.Caps(), first.Region())
	}
	if _, err := second.Put(t.Context(), "k", storetest.NewSource([]byte("x")), objstore.PutOptions{}); err != nil {
		t.Errorf("put: %v", err)
	}
	// Of another bucket it says nothing.
	if _, err := s3.Open(none, s3.Config{Bucket: "another", Known: &known}); err == nil {
		t.Error("a bucket that nothing is known of was not asked")
	}
}
