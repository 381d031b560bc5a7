package fs

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestManifest: a manifest is read as it was written, whatever the names, and sha256sum finds the
// files equal; after a change it does not.
func TestManifest(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b c", "d/e.distcp", "back\\slash", "new\nline", "car\rriage", "# not a comment", " leading", "*star", "\\", "ü"}
	var files []ManifestFile
	for i, name := range names {
		data := bytes.Repeat([]byte{byte(i)}, i*100)
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		f := ManifestFile{Path: name, SHA256: sha256.Sum256(data), Size: int64(len(data))}
		if i%2 == 0 {
			f.ETag = "0123-2"
		}
		files = append(files, f)
	}
	var b bytes.Buffer
	if err := WriteManifest(&b, files); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	got, err := ReadManifest(&b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(files, got); d != "" { // WriteManifest has sorted them
		t.Errorf("written and read (-want +got):\n%s", d)
	}
	check := func() error {
		c := exec.Command("sha256sum", "-c", "--strict", "--quiet", "-")
		c.Dir, c.Stdin = dir, strings.NewReader(text)
		out, err := c.CombinedOutput()
		t.Logf("sha256sum: %v %s", err, out)
		return err
	}
	if err := check(); err != nil {
		t.Errorf("sha256sum does not accept what was written: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new\nline"), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if check() == nil {
		t.Error("sha256sum does not see a change")
	}

	c := exec.Command("sha256sum", "--", "a", "b c", "back\\slash")
	c.Dir = dir
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	got, err = ReadManifest(bytes.NewReader(out))
	if err != nil || len(got) != 3 || got[2].Path != "back\\slash" || got[2].Size != -1 || got[0].SHA256 != sha256.Sum256(nil) {
		t.Errorf("what sha256sum wrote: %+v, %v", got, err)
	}
}

// TestManifestRefused: what is no manifest, or leads out of the directory.
func TestManifestRefused(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for _, text := range []string{
		"# leatfs manifest 2\n",
		manifestHead + "\n# twelve -\n" + sum + "  a\n",
		manifestHead + "\n# 12\n" + sum + "  a\n",
		sum + " a\n",
		sum[:62] + "  a\n",
		sum + "  ../a\n",
		sum + "  /etc/passwd\n",
		sum + "  a\n" + sum + "  ./a\n",
		strings.Repeat("x", maxManifestLine+1),
	} {
		if got, err := ReadManifest(strings.NewReader(text)); err == nil {
			t.Errorf("%.80q: read as %+v", text, got)
		}
	}
}
