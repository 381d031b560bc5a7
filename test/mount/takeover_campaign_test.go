package mount

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/load"
)

// The processes that put a load on a mount are this program, started again.
func init() { load.Main() }

// putAll stores what the load processes read.
func (w *world) putAll(d load.Data) {
	w.t.Helper()
	files := make(chan load.File)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for f := range files {
				w.put(f.Key, load.Content(f.Key, f.Size))
			}
		})
	}
	for _, f := range d.Files() {
		files <- f
	}
	close(files)
	wg.Wait()
}

// killWorker kills the worker, and waits until another one answers.
func (m *mnt) killWorker(keeper int) load.Kill {
	m.t.Helper()
	k, err := load.KillWorker(keeper, m.dir, true)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.logText())
	}
	return k
}

// campaign kills workers of a keeper for a time, at random moments: alone, in bursts, and at once
// after their start. It returns those kills after which an answer was waited for.
func (m *mnt) campaign(keeper int, d time.Duration, seed uint64) (all int, kills []load.Kill) {
	m.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	kill := func(answered bool) {
		k, err := load.KillWorker(keeper, m.dir, answered)
		if err != nil {
			m.t.Fatalf("%v\n%s", err, m.logText())
		}
		all++
		if answered {
			kills = append(kills, k)
		}
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Duration(200+rng.IntN(1300)) * time.Millisecond)
		switch rng.IntN(5) {
		case 0: // a burst
			kill(false)
			time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond)
			kill(false)
			time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond)
		case 1: // before it has done anything
			kill(false)
		}
		kill(true)
	}
	return all, kills
}

// TestTakeoverCampaign: eight processes use the mount while its worker is killed again and
// again, and none of them sees more than a pause.
func TestTakeoverCampaign(t *testing.T) {
	// More than the cache may hold: reads of the large ones stay cold, files are evicted.
	data := load.Data{Large: 16, LargeSize: 6 << 20, Hot: 6, HotSize: 2 << 20, Dirs: 8, PerDir: 100}
	w := newWorld(t)
	w.putAll(data)
	for _, c := range []struct {
		name string
		args []string
	}{
		{"passthrough", nil},
		{"passthrough no resend", []string{"--no-resend"}},
		{"daemon", []string{"--passthrough=off"}},
		{"daemon no resend", []string{"--passthrough=off", "--no-resend"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			m := w.mount(append(c.args, "--cache-size=64MiB", "--ttl=2s", "--cache-dir", t.TempDir())...)
			before := m.status()
			ps, err := load.StartAll(m.dir, data, load.Kinds, rand.Uint64())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // files are held before the first kill
			n, kills := m.campaign(before.Keeper.PID, 5*time.Second, rand.Uint64())
			rs, err := ps.Stop()
			if err != nil {
				t.Fatalf("%v\n%s", err, m.logText())
			}
			m.judge(rs, n, kills, longPause)
			after := m.status()
			if after.Keeper.PID != before.Keeper.PID || after.Keeper.Restarts < n/2 || after.WorkerPID == before.WorkerPID {
				t.Errorf("keeper %d then %d, worker %d then %d, %d restarts after %d kills", before.Keeper.PID, after.Keeper.PID,
					before.WorkerPID, after.WorkerPID, after.Keeper.Restarts, n)
			}
			if after.Keeper.GivenUp != 0 || after.State != "serving" {
				t.Errorf("state %q, given up: %d, %s", after.State, after.Keeper.GivenUp, after.Keeper.LastGivenUp)
			}
			m.stop()
			nothingLeft(t, "after umount", m.dir)
		})
	}
}

// longPause is what no operation may take while workers are killed, on a busy machine: less than a request that is lost
// or a worker that hangs for good would take, which is for ever.
const longPause = 30 * time.Second

// judge looks at what load processes saw while workers were killed.
func (m *mnt) judge(rs []*load.Report, n int, kills []load.Kill, stall time.Duration) {
	m.t.Helper()
	for _, r := range rs {
		if r.Ops == 0 {
			m.t.Errorf("%s did nothing", r.Kind)
		}
	}
	s := load.Add(rs)
	stalls := s.Stalls(kills)
	worst := s.Longest()
	m.t.Logf("%d kills, %d processes, %d operations, %d MiB compared; stall p50 %v, p99 %v; longest operation %v (%s); first answer p50 %v, max %v",
		n, s.Processes, s.Ops, s.Bytes>>20, ms(load.Rank(stalls, 0.5)), ms(load.Rank(stalls, 0.99)), ms(worst.Took), worst.Name,
		ms(load.Rank(answers(kills), 0.5)), ms(load.Rank(answers(kills), 1)))
	if s.Errors+s.Wrong > 0 {
		m.t.Errorf("%d errors, %d times wrong bytes or names:", s.Errors, s.Wrong)
		for _, e := range s.First {
			m.t.Error("  " + e)
		}
		m.t.Logf("%s", m.logText())
	}
	if worst.Took > stall {
		m.t.Errorf("%s took %v", worst.Name, worst.Took)
	}
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// answers are the times to the first answers, sorted.
func answers(kills []load.Kill) (out []time.Duration) {
	for _, k := range kills {
		out = append(out, k.Answer)
	}
	return load.Sorted(out)
}

// TestTakeoverFork: while nobody serves, a process with files of the mount may fork and exit.
func TestTakeoverFork(t *testing.T) {
	w := newWorld(t)
	data := load.Data{Hot: 1, HotSize: 1 << 20}
	w.putAll(data)
	m := w.mount()
	f := mustOpen(t, m.path("hot/0000"))
	keeper := m.status().Keeper.PID
	for i := range 10 {
		k, err := load.KillWorker(keeper, m.dir, false)
		if err != nil {
			t.Fatal(err)
		}
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil, f}})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := p.Wait(); err != nil || !s.Success() {
			t.Errorf("%d: %v %v", i, s, err)
		}
		if d := time.Since(k.At); d > longPause {
			t.Errorf("a child with an inherited file took %v", d)
		}
	}
	b := make([]byte, data.HotSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := load.Check("hot/0000", 0, b); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestTakeoverLeaks: after many kills under opens and closes, every file of the cache can be
// used for something else, and its space comes back.
func TestTakeoverLeaks(t *testing.T) {
	w := newWorld(t)
	data := load.Data{Large: 2, LargeSize: 1 << 20, Hot: 8, HotSize: 300_000, Dirs: 8, PerDir: 60}
	w.putAll(data)
	for _, c := range []struct{ name, flag string }{{"passthrough", "--passthrough=auto"}, {"no resend", "--no-resend"}} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.t = t
			m := w.mount(c.flag)
			keeper := m.status().Keeper.PID
			ps, err := load.StartAll(m.dir, data, []string{"storm", "storm", "warm", "mmap"}, rand.Uint64())
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(rand.Uint64(), 3))
			var kills []load.Kill
			for range 50 {
				kills = append(kills, m.killWorker(keeper))
				time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
			}
			rs, err := ps.Stop()
			if err != nil {
				t.Fatal(err)
			}
			m.judge(rs, len(kills), kills, longPause)
			m.killWorker(keeper) // what the last one merely kept is given back by the next
			m.eventually("every file of the cache can be reused", func() error {
				inUse, files, err := load.InUse(m.cache)
				if err == nil && (len(inUse) > 0 || files == 0) {
					err = fmt.Errorf("%d of %d files are in use: %v", len(inUse), files, inUse)
				}
				return err
			})
			m.quiet()
		})
	}
}

// TestTakeoverSpace: what the cache removes after restarts is freed, with nobody left that holds
// the removed files.
func TestTakeoverSpace(t *testing.T) {
	w := newWorld(t)
	data := load.Data{Large: 24, LargeSize: 8 << 20}
	w.putAll(data)
	disk := ext4(t, 1<<30, "rw")
	m := w.mount("--cache-dir", disk+"/cache", "--cache-size=64MiB")
	keeper := m.status().Keeper.PID
	for _, f := range data.Files() {
		m.same(f.Key, load.Content(f.Key, f.Size)) // passes through the kernel the second time
		m.same(f.Key, load.Content(f.Key, f.Size))
		m.killWorker(keeper)
	}
	m.eventually("the space of removed files is free", func() error {
		var st syscall.Statfs_t
		if err := syscall.Statfs(disk, &st); err != nil {
			return err
		}
		if used := int64(st.Blocks-st.Bfree) * st.Bsize; used > 200<<20 {
			return fmt.Errorf("%d MiB are used on the disk, with 64 MiB of cache", used>>20)
		}
		return nil
	})
}

// TestTakeoverNotification: a worker that tells the kernel to forget pages that a read under way
// is to fill can be killed, and is replaced, though the read goes on for a long time.
func TestTakeoverNotification(t *testing.T) {
	modes(t, func(t *testing.T, flag string) {
		w := newWorld(t)
		data := load.Content("f", 12<<20)
		w.put("f", data)
		m := w.mount(flag)
		f := mustOpen(t, m.path("f"))
		b := make([]byte, len(data))
		if _, err := f.ReadAt(b[:4096], 0); err != nil {
			t.Fatal(err)
		}
		held := w.proxy.Add(fault.Rule{Class: "GET", Do: fault.Stall(0, 90*time.Second)})
		read := make(chan error, 1)
		go func() {
			_, err := f.ReadAt(b, 0)
			read <- err
		}()
		m.eventually("the read is under way", func() error {
			if held.Fired() == 0 {
				return errors.New("the bucket is not asked")
			}
			return nil
		})
		keeper := m.status().Keeper.PID
		for range 3 {
			// The next one finds the file open, and tells the kernel to read it anew.
			if k := m.killWorker(keeper); k.Answer > longPause {
				t.Errorf("the mount answered %v after the worker was killed", k.Answer)
			}
			time.Sleep(300 * time.Millisecond)
		}
		held.Remove()
		w.proxy.CutAll()
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		if err := load.Check("f", 0, b); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		m.expect = []string{"retr", "connection reset", "EOF"}
	})
}
