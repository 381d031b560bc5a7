package cache

import "math/rand/v2"

// place chooses the directory for a new file: the one with most room, and among full ones
// by chance in proportion to their capacity.
func (c *Cache) place(size int64) (best *dir) {
	var top float64
	for _, d := range c.dirs {
		if !d.usable() {
			continue
		}
		room := max(min(d.low-d.used.Load(), d.free.Load()-d.keepFree()), 0)
		score := float64(room) + rand.Float64()*float64(d.size)/64
		if size > d.low { // it will be read through
			score /= 1024
		}
		if best == nil || score > top {
			best, top = d, score
		}
	}
	return best
}
