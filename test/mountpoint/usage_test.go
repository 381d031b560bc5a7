package mountpoint

import (
	"os"
	"testing"
	"time"
)

func TestProcessUsage(t *testing.T) {
	ballast := make([]byte, 64<<20)
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	for start := time.Now(); time.Since(start) < 50*time.Millisecond; { // use some CPU
		ballast[0]++
	}
	u, err := ProcessUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if u.Memory < int64(len(ballast)) || u.Memory > 16*int64(len(ballast)) {
		t.Errorf("memory %d, with %d in use", u.Memory, len(ballast))
	}
	if u.CPU < 30*time.Millisecond || u.CPU > time.Minute {
		t.Errorf("CPU %v", u.CPU)
	}
	ballast[0] = 0
}
