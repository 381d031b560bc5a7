package buf

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapArena reserves n bytes of address space, without memory. The kernel may back it with
// huge pages: buffers that go to O_DIRECT are then pinned page by page far more cheaply.
func mapArena(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // an optimisation; kernels without it say EINVAL
	_ = unix.Madvise(b, unix.MADV_DONTDUMP) // a core dump must not hold user data
	return b, nil
}

func unmapArena(b []byte) error { return unix.Munmap(b) }

// populate gives b memory now, so that no copy into it faults later.
func populate(b []byte) {
	if unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil {
		return
	}
	for i := 0; i < len(b); i += os.Getpagesize() { // before Linux 5.14
		b[i] = 0
	}
}

// unpopulate takes the memory of b away; its content is lost.
func unpopulate(b []byte) { _ = unix.Madvise(b, unix.MADV_DONTNEED) }
