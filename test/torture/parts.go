package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leatfs/leatfs/test/load"
)

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1e3) }

// report prints what the processes saw, and notes what is wrong. all are the kills, kills those
// after which an answer was waited for.
func (w *world) report(rs []*load.Report, all, kills []load.Kill) {
	s := load.Add(rs)
	stalls := s.Stalls(kills)
	var answers []time.Duration
	for _, k := range kills {
		answers = append(answers, k.Answer)
	}
	load.Sorted(answers)
	worst := s.Longest()
	for _, row := range [][2]string{
		{"kills", fmt.Sprint(len(all))},
		{"processes", fmt.Sprint(s.Processes)},
		{"operations", fmt.Sprintf("%d, %d MiB compared", s.Ops, s.Bytes>>20)},
		{"errors", fmt.Sprint(s.Errors)},
		{"wrong bytes or names", fmt.Sprint(s.Wrong)},
		{"operation", fmt.Sprintf("p50 %s, p99 %s, max %s (%s)", ms(s.Quantile(0.5)), ms(s.Quantile(0.99)), ms(worst.Took), worst.Name)},
		{"stall by a kill", fmt.Sprintf("p50 %s, p99 %s, max %s", ms(load.Rank(stalls, 0.5)), ms(load.Rank(stalls, 0.99)), ms(load.Rank(stalls, 1)))},
		{"first answer after", fmt.Sprintf("p50 %s, p99 %s, max %s", ms(load.Rank(answers, 0.5)), ms(load.Rank(answers, 0.99)), ms(load.Rank(answers, 1)))},
		{"keeper", fmt.Sprintf("%.1f MiB resident at most", float64(w.rss)/(1<<20))},
	} {
		fmt.Printf("  %-22s %s\n", row[0], row[1])
	}
	for _, o := range s.Worst(5) {
		fmt.Printf("  %-22s %s: %s, over %d kills\n", "long", o.Name, ms(o.Took), over(all, o))
	}
	if s.Errors+s.Wrong > 0 {
		w.t.wrong("%s: %d errors, %d times wrong bytes or names: %v", w.part, s.Errors, s.Wrong, s.First)
	}
	for _, r := range rs {
		if r.Ops == 0 {
			w.t.wrong("%s: %s did nothing", w.part, r.Kind)
		}
	}
}

// free tells, at the end of a part, which files of the cache are still in use.
func (w *world) free() error {
	inUse, files, err := w.leaked()
	if err != nil {
		return err
	}
	fmt.Printf("  %-22s %d of %d\n", "leaked files", inUse, files)
	if inUse > 0 || files == 0 {
		w.t.wrong("%s: %d of %d files of the cache are in use when nobody uses them", w.part, inUse, files)
	}
	return nil
}

// campaign kills at random moments, some in bursts, at the rate that was asked for.
func (t *torture) campaign(ctx context.Context) error {
	fmt.Printf("campaign: %d kills in %v\n", t.kills, t.duration)
	return t.kill(ctx, "campaign", t.leatfs, t.duration, t.kills, "--cache-size=256MiB", "--ttl=5s")
}

// kill is a campaign with a binary.
func (t *torture) kill(ctx context.Context, part, binary string, duration time.Duration, n int, args ...string) error {
	data := load.Data{Large: 40, LargeSize: 16 << 20, Hot: 8, HotSize: 4 << 20, Dirs: 20, PerDir: 100}
	w, err := t.newWorld(ctx, part, binary, data, args...)
	if err != nil {
		return err
	}
	defer w.close()
	ps, err := load.StartAll(w.mount.Dir, data, load.Kinds, t.seed)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(t.seed, 1))
	every := duration / time.Duration(n)
	var all, kills []load.Kill
	began := time.Now()
	for len(all) < n && err == nil && ctx.Err() == nil {
		time.Sleep(time.Until(began.Add(time.Duration(len(all))*every + time.Duration(rng.Int64N(int64(every)+1)))))
		burst := 1
		if rng.IntN(10) == 0 {
			burst = min(3, n-len(all))
		}
		var k load.Kill
		for i := range burst {
			if k, err = w.kill(i == burst-1); err != nil {
				break
			}
			all = append(all, k)
			if i < burst-1 {
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
		}
		if err == nil {
			kills = append(kills, k)
		}
	}
	rs, perr := ps.Stop()
	w.report(rs, all, kills)
	for _, e := range []error{err, perr, ctx.Err()} {
		if e != nil {
			return e
		}
	}
	if err := w.free(); err != nil {
		return err
	}
	return w.finish()
}

// leaks restarts the worker very often under opens and closes.
func (t *torture) leaks(ctx context.Context) error {
	fmt.Printf("leaks: %d restarts\n", t.restarts)
	data := load.Data{Large: 4, LargeSize: 4 << 20, Hot: 8, HotSize: 1 << 20, Dirs: 10, PerDir: 100}
	w, err := t.newWorld(ctx, "leaks", t.leatfs, data, "--cache-size=256MiB")
	if err != nil {
		return err
	}
	defer w.close()
	ps, err := load.StartAll(w.mount.Dir, data, []string{"storm", "storm", "warm", "mmap", "hold"}, t.seed)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(t.seed, 2))
	var kills []load.Kill
	for len(kills) < t.restarts && err == nil && ctx.Err() == nil {
		var k load.Kill
		if k, err = w.kill(true); err == nil {
			kills = append(kills, k)
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
	rs, perr := ps.Stop()
	w.report(rs, kills, kills)
	for _, e := range []error{err, perr, ctx.Err()} {
		if e != nil {
			return e
		}
	}
	if err := w.free(); err != nil {
		return err
	}
	return w.finish()
}

// over counts the kills while an operation was under way.
func over(kills []load.Kill, o load.Op) (n int) {
	for _, k := range kills {
		if at := k.At.UnixNano(); at > o.Start && at < o.Start+int64(o.Took) {
			n++
		}
	}
	return n
}
