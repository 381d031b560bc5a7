package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// budget divides --memory: what is capped is the RssAnon and RssShmem of the daemon.
type budget struct {
	total, pool, index, heap int64 // bytes
}

const (
	minMemory     = 160 << 20
	defaultMemory = 512 << 20
)

// divide gives the index its fixed share, a quarter (at least 72 MiB) to Go's heap and what
// it does not return at once, and the rest to the pool of block buffers.
func divide(total int64) (budget, error) {
	if total < minMemory {
		return budget{}, fmt.Errorf("--memory %s is too little: at least %s", humanBytes(total), humanBytes(minMemory))
	}
	b := budget{total: total, index: 48 << 20}
	// Stacks, the runtime and the kernel's request buffers are counted in the heap's share.
	b.heap = max(72<<20, total/4)
	b.pool = total - b.index - b.heap
	return b, nil
}

// apply tells Go's collector its limit: the index keeps its tables on the heap too.
func (b budget) apply() { debug.SetMemoryLimit(b.heap + b.index) }

// memoryDefault is the smaller of 512 MiB and an eighth of the memory there is.
func memoryDefault() int64 {
	return max(minMemory, min(defaultMemory, memoryAvailable()/8))
}

// memoryAvailable is the machine's memory or the cgroup's limit, in bytes.
func memoryAvailable() int64 {
	total := int64(1) << 62
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if kb := field(b, "MemTotal:"); kb > 0 {
			total = kb << 10
		}
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return total
	}
	for line := range strings.Lines(string(b)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for dir := filepath.Join("/sys/fs/cgroup", group); strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = filepath.Dir(dir) {
			v, err := os.ReadFile(filepath.Join(dir, "memory.max"))
			if err != nil {
				continue
			}
			if n, err := strconv.ParseInt(strings.TrimSpace(string(v)), 10, 64); err == nil {
				total = min(total, n)
			}
		}
	}
	return total
}

// rss returns what counts against the budget, in bytes, and the mapped files beside it.
func rss() (counted, files int64) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	return (field(b, "RssAnon:") + field(b, "RssShmem:")) << 10, field(b, "RssFile:") << 10
}

// field reads the number behind a name in a file of /proc.
func field(b []byte, name string) int64 {
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if rest, ok := strings.CutPrefix(s.Text(), name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, _ := strconv.ParseInt(f[0], 10, 64)
				return n
			}
		}
	}
	return 0
}
