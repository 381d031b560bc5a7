package file_test

import (
	"testing"

	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/file"
	"github.com/leatfs/leatfs/objstore/storetest"
)

func open(t *testing.T, dir string) *file.Store {
	t.Helper()
	s, err := file.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store { return open(t, t.TempDir()) }, storetest.Features{
		OddKeys:     []string{"\x01ctl", "not\xffutf8", "back\\slash", "a/.leatfs-tmp/b", ".leatfs-tmp2"},
		RefusedKeys: []string{"a//b", "/a", "a/", ".", "..", "a/../b", "./a", "a/.", "nul\x00", ".leatfs-tmp", ".leatfs-tmp/x"},
	})
}
