package cache_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/cache"
)

// TestStageFullDiskOfItsOwnSize: a cache that was not told how much it may hold is opened again on a disk that is full: by
// itself, or by somebody else. What is staged there may be all that there is.
func TestStageFullDiskOfItsOwnSize(t *testing.T) {
	for _, what := range []string{"ours", "another's"} {
		t.Run(what, func(t *testing.T) {
			disk := smallDisk(t, 64)
			e := newEnv(t, 0, 64, func(c *cache.Config) {
				c.Dirs = []cache.DirConfig{{Path: filepath.Join(disk, "cache")}}
				c.Ballast = -1
			})
			defer e.close() // before the disk goes
			e.dir = filepath.Join(disk, "cache")
			kept := bytes.Repeat([]byte("kept"), 1<<16)
			id := e.stage("kept", kept)
			full := filepath.Join(disk, "another's")
			if what == "ours" {
				full = filepath.Join(e.dir, "staging", formatID(e.stage("large", nil)))
			}
			f, err := os.OpenFile(full, os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			for n := int64(1 << 20); n >= 4096; {
				st, err := f.Stat()
				if err != nil {
					t.Fatal(err)
				}
				if unix.Fallocate(int(f.Fd()), 0, st.Size(), n) != nil {
					n /= 2
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			e.restart(true)
			e.wantStage(id, kept)
			size := e.Stats().Dirs[0].Size
			if what == "ours" && size < 30<<20 {
				t.Errorf("it takes %d bytes of the disk from now on", size)
			}
		})
	}
}
