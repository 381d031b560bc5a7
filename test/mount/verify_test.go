package mount

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/test/fault"
)

// verified is what "leatfs verify --json" tells.
type verified struct {
	Files []struct {
		Path   string `json:"path"`
		State  string `json:"state"`
		Detail string `json:"detail"`
		By     string `json:"by"`
		At     []struct{ Offset, Length int64 }
		Holes  []struct{ Offset, Length int64 }
	} `json:"files"`
	Summary struct {
		Files     int `json:"files"`
		Equal     int `json:"equal"`
		WithHoles int `json:"with_holes"`
	} `json:"summary"`
}

// of is the state of one file, by the end of its path, and what compared it.
func (v *verified) of(name string) string {
	for _, f := range v.Files {
		if strings.HasSuffix(f.Path, "/"+name) || f.Path == name {
			return strings.TrimSuffix(f.State+" "+f.By, " ")
		}
	}
	return "not there"
}

// verify runs "leatfs verify --json" and checks its exit code.
func (m *mnt) verify(wantCode int, args ...string) (v verified) {
	m.t.Helper()
	out, err := m.w.command(append([]string{"verify", "--json"}, args...)...).Output()
	code := 0
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		code = exit.ExitCode()
		m.t.Logf("%s", exit.Stderr)
	} else if err != nil {
		m.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &v); err != nil {
		m.t.Fatalf("verify %q: %v\n%s", args, err, out)
	}
	if code != wantCode {
		m.t.Errorf("verify %q: exit code %d, want %d\n%s", args, code, wantCode, out)
	}
	return v
}

// want checks the states of files, by name.
func (v *verified) want(t *testing.T, want map[string]string) {
	t.Helper()
	for name, state := range want {
		if got := v.of(name); got != state {
			t.Errorf("%s: %s, want %s", name, got, state)
		}
	}
}

// drained waits until all is in the bucket.
func (m *mnt) drained() {
	m.t.Helper()
	if out, err := m.w.command("sync", m.dir, "--timeout", "60s").CombinedOutput(); err != nil {
		m.t.Fatalf("sync: %v\n%s\n%s", err, out, m.logText())
	}
}

// cacheFile finds the file of the cache's disk that holds these bytes.
func (m *mnt) cacheFile(data []byte) string {
	m.t.Helper()
	found := ""
	err := filepath.WalkDir(filepath.Join(m.cache, "objects"), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if b, err := os.ReadFile(p); err == nil && bytes.Equal(b, data) {
			found = p
		}
		return nil
	})
	if err != nil || found == "" {
		m.t.Fatalf("no file of the cache holds these %d bytes: %v", len(data), err)
	}
	return found
}

// others is what the status says that others did to what was published here.
func (m *mnt) others() (s struct{ Replaced, Removed, Conflicts int64 }) {
	m.t.Helper()
	out, err := m.w.command("status", m.dir, "--json").Output()
	if err != nil {
		m.t.Fatalf("status: %v\n%s", err, m.logText())
	}
	var all struct {
		Writes struct {
			Replaced  int64 `json:"replaced_by_others"`
			Removed   int64 `json:"removed_by_others"`
			Conflicts int64 `json:"conflicts"`
		} `json:"writes"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		m.t.Fatalf("status: %v\n%s", err, out)
	}
	s.Replaced, s.Removed, s.Conflicts = all.Writes.Replaced, all.Writes.Removed, all.Writes.Conflicts
	return s
}

// TestVerify: every state that a file can have against the bucket.
func TestVerify(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		w.put("d/remote", random(1, 300_000))
		m := w.mount(flag, "--ttl=1h")
		a, small := random(2, 3<<20+17), random(3, 1000)
		ok(t, "write", os.WriteFile(m.path("d/a"), a, 0o644))
		ok(t, "write", os.WriteFile(m.path("d/small"), small, 0o644))
		ok(t, "write", os.WriteFile(m.path("d/empty"), nil, 0o644))
		ok(t, "symlink", os.Symlink("a", m.path("d/l")))
		ok(t, "mkfifo", unix.Mkfifo(m.path("d/fifo"), 0o600))
		m.drained()
		m.expect = []string{"by somebody else"} // see the end
		want := map[string]string{"a": "equal CRC64NVME", "small": "equal CRC64NVME", "empty": "equal CRC64NVME", "l": "equal CRC64NVME", "remote": "remote", "fifo": "local"}
		v := m.verify(0, m.path("d"))
		v.want(t, want)
		if len(v.Files) != len(want) || v.Summary.Files != len(want) || v.Summary.Equal != 4 {
			t.Errorf("%d files, summary %+v", len(v.Files), v.Summary)
		}
		deep := m.verify(0, "--deep", m.path("d"))
		deep.want(t, map[string]string{"a": "equal bytes", "small": "equal bytes", "empty": "equal bytes", "l": "equal bytes", "remote": "remote CRC64NVME"})
		one := m.verify(0, m.path("d/a"), m.path("d/l"))
		one.want(t, map[string]string{"a": "equal CRC64NVME", "l": "equal CRC64NVME"})

		f, err := os.Create(m.path("d/open"))
		ok(t, "create", err)
		_, err = f.Write(a[:100_000])
		ok(t, "write", err)
		v = m.verify(1, m.path("d"))
		v.want(t, map[string]string{"open": "unpublished", "a": "equal CRC64NVME"})
		ok(t, "close", f.Close())
		m.drained()
		v = m.verify(0, m.path("d"))
		v.want(t, map[string]string{"open": "equal CRC64NVME"})

		// Bytes of the cache's disk that are not the object's.
		file := m.cacheFile(a)
		bad, err := os.OpenFile(file, os.O_RDWR, 0)
		ok(t, "open the cache's file", err)
		wrong := bytes.Clone(a[1<<20+5:][:10])
		for i := range wrong {
			wrong[i] ^= 0xff
		}
		_, err = bad.WriteAt(wrong, 1<<20+5)
		ok(t, "damage", err)
		v = m.verify(1, m.path("d"))
		v.want(t, map[string]string{"a": "differs bytes", "small": "equal CRC64NVME"})
		for _, x := range v.Files {
			if strings.HasSuffix(x.Path, "/a") && (len(x.At) != 1 || x.At[0].Offset != 1<<20+5 || x.At[0].Length != 10) {
				t.Errorf("it differs at %+v, want 10 bytes at %d", x.At, 1<<20+5)
			}
		}
		_, err = bad.WriteAt(a[1<<20+5:][:10], 1<<20+5)
		ok(t, "mend", err)
		ok(t, "close", bad.Close())

		// What others did, within the TTL: the mount does not know yet.
		w.put("d/small", random(4, 1000))
		w.del("d/open")
		v = m.verify(1, m.path("d"))
		v.want(t, map[string]string{"a": "equal CRC64NVME", "small": "differs", "open": "differs"})

		text, _ := w.command("verify", m.path("d")).Output() // the exit code is checked above
		for _, line := range []string{"differs       " + m.path("d/small") + "  the bucket has another version", "the bucket has no such object; this node had published", "7 files, 3.4MiB: 3 equal, 1 only in the bucket, 2 DIFFER, 1 only here\n"} {
			if !strings.Contains(string(text), line) {
				t.Errorf("for people it does not say %q:\n%s", line, text)
			}
		}
		m.verify2(t)
	})
}

// verify2 is what cannot be checked: exit code 2.
func (m *mnt) verify2(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{m.path("d/none")}, {t.TempDir()}, {"--manifest", m.path("none"), m.path("d")}, {"--write", m.path("d")}} {
		out, err := m.w.command(append([]string{"verify"}, args...)...).CombinedOutput()
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Errorf("verify %q: %v, want exit code 2\n%s", args, err, out)
		}
	}
}

// putParts stores an object in two parts.
func (w *world) putParts(key string, data []byte) {
	w.t.Helper()
	c, ctx := w.server.Client(), context.Background()
	u, err := c.CreateMultipartUpload(ctx, &awss3.CreateMultipartUploadInput{Bucket: &w.bucket, Key: &key})
	ok(w.t, "begin", err)
	var parts []types.CompletedPart
	for i, part := range [][]byte{data[:len(data)/2], data[len(data)/2:]} {
		p, err := c.UploadPart(ctx, &awss3.UploadPartInput{Bucket: &w.bucket, Key: &key, UploadId: u.UploadId, PartNumber: aws.Int32(int32(i + 1)), Body: bytes.NewReader(part)})
		ok(w.t, "part", err)
		parts = append(parts, types.CompletedPart{ETag: p.ETag, PartNumber: aws.Int32(int32(i + 1)), ChecksumCRC64NVME: p.ChecksumCRC64NVME, ChecksumCRC32: p.ChecksumCRC32})
	}
	_, err = c.CompleteMultipartUpload(ctx, &awss3.CompleteMultipartUploadInput{Bucket: &w.bucket, Key: &key, UploadId: u.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}})
	ok(w.t, "complete", err)
}

// TestVerifyUnverifiable: an object of which the bucket has no checksum, and a bucket that cannot be asked.
func TestVerifyUnverifiable(t *testing.T) {
	w := newWorld(t)
	data := random(1, 20<<20)
	w.putParts("large", data) // its ETag is not the MD5 of its bytes
	for _, class := range []string{"GET", "HEAD"} {
		w.proxy.Add(fault.Rule{Class: class, Key: "large", Do: fault.Header("X-Amz-Checksum-Crc64nvme", "")})
		w.proxy.Add(fault.Rule{Class: class, Key: "large", Do: fault.Header("X-Amz-Checksum-Crc32", "")})
	}
	m := w.mount("--origin-timeout=1s")
	m.same("large", data)
	v := m.verify(2, m.path("large"))
	v.want(t, map[string]string{"large": "unverifiable"})
	v = m.verify(0, "--deep", m.path("large"))
	v.want(t, map[string]string{"large": "equal bytes"})

	w.proxy.Clear()
	m.expect = []string{"level=WARN", "level=ERROR"}
	ok(t, "server down", w.proxy.SetDown(true))
	v = m.verify(2, m.path("large"))
	v.want(t, map[string]string{"large": "unverifiable"})
	ok(t, "server up", w.proxy.SetDown(false))
	m.eventually("it can be verified again", func() error {
		if out, err := w.command("verify", m.path("large")).CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		return nil
	})
}

// TestVerifyHoles: ranges that were never written are told, before and after publication; zeros that were
// written are none.
func TestVerifyHoles(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		m := w.mount(flag)
		ok(t, "write", os.WriteFile(m.path("zeros"), make([]byte, 1<<20), 0o644))
		f, err := os.Create(m.path("shard"))
		ok(t, "create", err)
		ok(t, "truncate", f.Truncate(3<<20))
		_, err = f.WriteAt(random(1, 1<<20), 1<<20)
		ok(t, "write", err)
		check := func(v verified) {
			t.Helper()
			for _, x := range v.Files {
				switch {
				case strings.HasSuffix(x.Path, "/zeros"):
					if len(x.Holes) != 0 {
						t.Errorf("zeros that were written: %+v", x.Holes)
					}
				case len(x.Holes) != 2 || x.Holes[0].Offset != 0 || x.Holes[0].Length != 1<<20 || x.Holes[1].Offset != 2<<20 || x.Holes[1].Length != 1<<20:
					t.Errorf("holes %+v of %s, want the first and the last MiB", x.Holes, x.Path)
				}
			}
			if v.Summary.WithHoles != 1 {
				t.Errorf("summary %+v", v.Summary)
			}
		}
		check(m.verify(1, m.dir)) // not published
		ok(t, "close", f.Close())
		m.drained()
		check(m.verify(0, m.dir))
		check(m.verify(1, "--strict", m.dir))
	})
}

// TestVerifyManifest: a manifest is written from a mount and compared there, on another file system, and by
// sha256sum.
func TestVerifyManifest(t *testing.T) {
	w := newWorld(t)
	w.put("step-1/remote", random(1, 300_000))
	m := w.mount()
	ok(t, "write", os.WriteFile(m.path("step-1/shard 0"), random(2, 5<<20), 0o644))
	ok(t, "mkdir", os.Mkdir(m.path("step-1/sub"), 0o755))
	ok(t, "write", os.WriteFile(m.path("step-1/sub/shard\n1"), random(3, 70_000), 0o644))
	ok(t, "write", os.WriteFile(m.path("step-1/empty"), nil, 0o644))
	ok(t, "symlink", os.Symlink("empty", m.path("step-1/link")))
	m.drained()
	list := filepath.Join(t.TempDir(), "step-1.sha256")
	m.verify(0, "--manifest", list, "--write", m.path("step-1"))
	text, err := os.ReadFile(list)
	ok(t, "read the manifest", err)
	if n := strings.Count(string(text), "\n# "); n != 4 {
		t.Errorf("%d files in the manifest, want 4:\n%s", n, text)
	}
	sums := func(dir string) error {
		c := exec.Command("sh", "-c", `cd "$1" && exec sha256sum --strict --quiet -c "$2"`, "sh", dir, list)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Logf("sha256sum: %s", out)
		}
		return err
	}
	ok(t, "sha256sum in the mount", sums(m.path("step-1")))
	v := m.verify(0, "--manifest", list, m.path("step-1"))
	v.want(t, map[string]string{"shard 0": "equal CRC64NVME", "empty": "equal CRC64NVME", "link": "not there"})

	copied := filepath.Join(t.TempDir(), "copy")
	ok(t, "copy", os.CopyFS(copied, os.DirFS(m.path("step-1"))))
	ok(t, "sha256sum of a copy", sums(copied))
	m.verify(0, "--manifest", list, copied)
	ok(t, "damage", os.WriteFile(filepath.Join(copied, "empty"), []byte("x"), 0o644))
	v = m.verify(1, "--manifest", list, copied)
	v.want(t, map[string]string{"empty": "differs SHA-256", "shard 0": "equal SHA-256"})

	f, err := os.OpenFile(m.path("step-1/shard 0"), os.O_RDWR, 0)
	ok(t, "open", err)
	_, err = f.WriteAt([]byte("changed"), 1<<20)
	ok(t, "change", err)
	ok(t, "close", f.Close())
	ok(t, "unlink", os.Remove(m.path("step-1/empty")))
	ok(t, "write", os.WriteFile(m.path("step-1/new"), []byte("new"), 0o644))
	m.drained()
	m.verify(0, m.path("step-1")) // the bucket has just that
	v = m.verify(1, "--manifest", list, m.path("step-1"))
	v.want(t, map[string]string{"shard 0": "differs CRC64NVME", "empty": "differs", "new": "extra CRC64NVME", "sub/shard\n1": "equal CRC64NVME"})
}

// TestReplacedIsTold: what was published here and somebody else replaced or removed is counted and logged, once;
// what this mount itself replaced and removed is not.
func TestReplacedIsTold(t *testing.T) {
	w := newWorld(t)
	m := w.mount("--ttl=1s")
	for _, name := range []string{"d/a", "d/b", "d/c"} {
		ok(t, "mkdir", os.MkdirAll(m.path("d"), 0o755))
		ok(t, "write", os.WriteFile(m.path(name), []byte(name), 0o644))
	}
	m.drained()
	ok(t, "rewrite", os.WriteFile(m.path("d/c"), []byte("again"), 0o644))
	ok(t, "rename", os.Rename(m.path("d/c"), m.path("d/c2")))
	m.drained()
	ok(t, "unlink", os.Remove(m.path("d/c2")))
	m.drained()
	m.expect = []string{"has been replaced by somebody else", "has been deleted by somebody else"}
	if s := m.others(); s.Replaced+s.Removed != 0 {
		t.Errorf("before anybody did anything: %+v", s)
	}
	w.put("d/a", []byte("theirs"))
	w.del("d/b")
	m.eventually("both are noticed", func() error {
		_, _ = os.ReadDir(m.path("d"))
		if s := m.others(); s.Replaced != 1 || s.Removed != 1 {
			return errors.New("not yet")
		}
		if !strings.Contains(m.logText(), "by somebody else") {
			return errors.New("the log does not say it")
		}
		return nil
	})
	m.same("d/a", []byte("theirs"))
	w.put("d/a", []byte("theirs again")) // which was never published here
	m.eventually("the new version is seen", func() error {
		if b, err := os.ReadFile(m.path("d/a")); err != nil || string(b) != "theirs again" {
			return errors.New("not yet")
		}
		return nil
	})
	if s := m.others(); s.Replaced != 1 || s.Removed != 1 {
		t.Errorf("at the end: %+v", s)
	}
}
