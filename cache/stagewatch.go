package cache

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Whoever writes to a staging file by himself, through the kernel, asks nobody for space. So
// stageWatch looks at the disks often while there are staging files, and keeps so much of them
// free as will be written in the next seconds: first by having data of the cache evicted, which
// the bucket has too, then by giving up the ballast. Only when both are gone the disk is full.

// How often the disks are looked at: while the writing goes on or the space is short, while there
// are staging files, and else.
const (
	watchBusy = 20 * time.Millisecond
	watchSlow = 100 * time.Millisecond
	watchIdle = 250 * time.Millisecond
)

// What is kept free for writers: as much as they write in aheadFor at their recent speed. When
// less than shrinkFor is left the ballast shrinks.
const (
	aheadFor  = 3.0 // seconds
	shrinkFor = 0.5
	calmAfter = 2.0 // in which the speed that is remembered falls to a third
)

// scanEvery is how often the bytes of staging files are counted; less often when that takes long.
const scanEvery = 2 * time.Second

// fullBelow is how many free bytes are called a full disk, when nothing can be freed.
const fullBelow = 1 << 20

// stageSpace is what the watch knows of a directory.
type stageSpace struct {
	files atomic.Int64 // staging files
	bytes atomic.Int64 // that they take on disk, when last counted
	ahead atomic.Int64 // bytes to keep free beside the reserve
	asked atomic.Int64 // bytes that somebody waits for, see StageSpace
	full  atomic.Bool  // nothing is left that could be freed
}

// keepFree is how many bytes of the disk data of the cache must leave free.
func (d *dir) keepFree() int64 { return d.reserve + d.stage.ahead.Load() }

// dirWatch is what stageWatch remembers of a directory.
type dirWatch struct {
	d     *dir
	at    time.Time // of the last look
	free  int64     // then
	rate  float64   // bytes per second that the disk loses, the recent maximum
	short bool      // little is left
	scan  time.Time // when to count next
	sick  bool      // an error was logged
}

// wakeStage tells the watch that there is a staging file, or that somebody waits for space.
func (c *Cache) wakeStage() {
	select {
	case c.stageKick <- struct{}{}:
	default:
	}
}

// stageWatch runs until the cache closes.
func (c *Cache) stageWatch() {
	watches := make([]*dirWatch, len(c.dirs))
	for i, d := range c.dirs {
		watches[i] = &dirWatch{d: d, free: d.free.Load(), at: time.Now()}
	}
	for {
		next := watchIdle
		for _, w := range watches {
			next = min(next, w.look(c))
		}
		kick := c.stageKick
		if next < watchIdle {
			kick = nil // it looks often enough
		}
		t := time.NewTimer(next)
		select {
		case <-c.stop:
			t.Stop()
			return
		case <-t.C:
		case <-kick:
			t.Stop()
		}
	}
}

// look looks at the disk once, does what is needed, and tells when to look again.
func (w *dirWatch) look(c *Cache) time.Duration {
	d, now := w.d, time.Now()
	if now.After(w.scan) {
		w.count(c)
		w.scan = now.Add(max(scanEvery, 20*time.Since(now)))
	}
	if err := d.statfs(); err != nil {
		w.say(c, err)
		return watchSlow
	}
	free := d.free.Load()
	staged := d.stage.files.Load() > 0
	dt := max(now.Sub(w.at).Seconds(), 1e-3)
	w.rate = max(w.rate*math.Exp(-dt/calmAfter), float64(w.free-free)/dt)
	ahead := int64(0)
	if staged {
		ahead = min(int64(w.rate*aheadFor), d.size/2)
	}
	d.stage.ahead.Store(ahead + d.ballast.missing())
	if free < d.keepFree()+d.margin/2 {
		c.wantSpace(d)
	}
	freed := w.shift(c, free, ahead, staged)
	w.at, w.free = now, free+freed
	w.fullness(c, free+freed, staged)
	switch {
	case staged && (w.short || w.rate > 1<<20):
		return watchBusy
	case staged:
		return watchSlow
	case d.ballast.missing() > 0 && freed != 0:
		return watchBusy
	}
	return watchIdle
}

// shift moves space between the ballast and what is free; it returns how much became free.
func (w *dirWatch) shift(c *Cache, free, ahead int64, staged bool) int64 {
	d, b := w.d, &w.d.ballast
	step := b.step()
	floor := max(int64(w.rate*shrinkFor), fullBelow, min(step, d.margin)) + d.stage.asked.Load()
	w.short = free < 4*floor
	have := b.bytes.Load()
	n := have
	switch {
	case have > b.want:
		n = b.want
	case staged && free < floor:
		n = max(have-(floor-free+step-1)/step*step, 0)
	case b.missing() > 0 && free-step > max(d.reserve+ahead+d.margin/4, 2*floor):
		n = min(have+step, b.want)
	}
	if n == have {
		return 0
	}
	if err := b.resize(n); err != nil && !b.refused {
		w.say(c, err)
	} else if b.refused {
		c.log.Info("the file system cannot keep space for what is not published yet", "dir", d.path)
	} else {
		w.sick = false
	}
	if have > n {
		if err := d.statfs(); err != nil {
			w.say(c, err)
		}
	}
	return have - b.bytes.Load()
}

// fullness notes, and logs once, that the disk is full or no longer.
func (w *dirWatch) fullness(c *Cache, free int64, staged bool) {
	d := w.d
	switch full := d.stage.full.Load(); {
	case !full && staged && free < fullBelow && d.ballast.bytes.Load() == 0 && d.exhausted(c.cfg.Now()):
		d.stage.full.Store(true)
		c.log.Error("the disk of the cache directory is full of data that is not in the bucket yet; writes get ENOSPC until some is published or space is freed",
			"dir", d.path, "staged_bytes", d.stage.bytes.Load(), "staged_files", d.stage.files.Load(), "free_bytes", free)
	case full && free >= 4*fullBelow:
		d.stage.full.Store(false)
		c.log.Info("the disk of the cache directory has room again", "dir", d.path, "free_bytes", free)
	}
}

// exhausted tells whether the evictor found nothing more to evict just now.
func (d *dir) exhausted(now time.Time) bool {
	d.space.Lock()
	defer d.space.Unlock()
	return now.Sub(d.space.stuck) < spaceWait
}

// count counts the staging files and what they take.
func (w *dirWatch) count(c *Cache) {
	d := w.d
	before := d.stage.files.Load()
	ids, err := d.stages()
	if err != nil {
		w.say(c, err)
		return
	}
	total, files := int64(0), int64(0)
	for _, id := range ids {
		var st unix.Stat_t
		if unix.Lstat(d.stagePath(id), &st) == nil {
			total += st.Blocks * 512
			files++
		}
	}
	d.stage.files.Add(files - before)
	d.stage.bytes.Store(total)
}

// say logs an error, once until things go well again.
func (w *dirWatch) say(c *Cache, err error) {
	if !w.sick && !errors.Is(err, unix.ENOSPC) {
		c.log.Error("the space for what is not published yet cannot be looked after", "dir", w.d.path, "err", err)
	}
	w.sick = true
}

// StageSpace waits until n bytes can be written to a staging file, for a moment, while data of the
// cache is evicted and the ballast given up for it. It is for writes that the daemon itself is
// about to make. An error wraps ENOSPC when there is no room.
func (c *Cache) StageSpace(id ID, n int64) error {
	var d *dir
	err := c.onStage(id, func(at *dir, path string) error {
		d = at
		var st unix.Stat_t
		return unix.Lstat(path, &st)
	})
	if err != nil {
		return err
	}
	if d.free.Load()-n >= fullBelow {
		return nil
	}
	d.stage.asked.Add(n)
	defer d.stage.asked.Add(-n)
	for deadline := time.Now().Add(spaceWait); ; time.Sleep(watchBusy) {
		c.wakeStage()
		c.wantSpace(d)
		if err := d.statfs(); err == nil && d.free.Load()-n >= 0 {
			return nil
		}
		if time.Now().After(deadline) || d.stage.full.Load() {
			return fmt.Errorf("staging file %s: the disk has no room for %d bytes more, and nothing to evict: %w", stageName(id), n, unix.ENOSPC)
		}
	}
}
