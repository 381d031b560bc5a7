package mount

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTwoNodesMetadata: symbolic links, modes and times that one node made are so on another with --read-metadata,
// after a listing and without: a script runs, and rsync finds nothing to do. Without the option there are
// files that hold the targets.
func TestTwoNodesMetadata(t *testing.T) {
	twoNodes(t, func(t *testing.T, wa, wb *world) {
		src := t.TempDir()
		old := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
		for name, mode := range map[string]os.FileMode{"script": 0o755, "data": 0o640} {
			if err := os.WriteFile(src+"/"+name, []byte("#!/bin/sh\necho it runs\n"), mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(src+"/"+name, old, old); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("script", src+"/link"); err != nil {
			t.Fatal(err)
		}
		a := wa.mount()
		if out, err := exec.Command("rsync", "-a", src+"/", a.path("d")+"/").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		a.ends(0, "sync", a.dir)
		b := wb.mount("--read-metadata")
		// By a shell: until a program has been started this process stands still, and it serves the store.
		if out, err := exec.Command("/bin/sh", "-c", "exec "+b.path("d/link")).Output(); err != nil || string(out) != "it runs\n" {
			t.Errorf("the script by its link, not listed before: %q, %v", out, err)
		}
		if target, err := os.Readlink(b.path("d/link")); err != nil || target != "script" {
			t.Errorf("the link: %q, %v", target, err)
		}
		c := wb.mount("--read-metadata")
		// Times of links and directories are not read back, nor owners.
		out, err := exec.Command("rsync", "-a", "-n", "-i", "--omit-dir-times", "--omit-link-times", "--no-owner", "--no-group", c.path("d")+"/", src+"/").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, l := range strings.Split(strings.TrimSpace(string(out)), "\n") {
			if l != "" && !strings.HasPrefix(l, ".d") {
				t.Errorf("rsync would do: %s", l)
			}
		}
	})
}
