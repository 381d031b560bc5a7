// Package list lists one directory of an origin with several requests at once.
//
// S3 answers a thousand names a request, and the next request needs the last name of the
// one before. But it also lists from any name on, so once the first page has shown what
// names look like, the names still to come can be guessed and the key space be cut into
// ranges, each listed by itself. Ranges that turn out long are cut again. A wrong guess
// costs one request that brings nothing, never a name: the ranges always cover the
// directory exactly once, wherever they are cut.
package list

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leatfs/leatfs/objstore"
)

// Options shape a listing; zero means the default.
type Options struct {
	// Parallel is the most requests in flight. Default 16; 1 lists serially.
	Parallel int
	// Recursive lists all keys under the prefix, not one level.
	Recursive bool
	// MaxKeys is the size of a page; 0 means the store's.
	MaxKeys int
	// OnPage gets every page. It is never called concurrently, and while it runs no more
	// than Parallel pages are held, so a slow OnPage slows the listing. An error ends the
	// listing and is returned as it is. It must be set.
	OnPage func(Page) error
}

// Page is all that lies in the range (From, To] of the key space. From "" is the beginning,
// To "" the end of the listing, both are whole keys otherwise. A common prefix lies where
// its own name does.
//
// The pages of one listing cover the key space exactly once, in any order, empty ranges
// included. Where the store does not list in order (objstore.Caps.ListOrdered) From and To
// are always "", and the directory is covered when Dir has returned.
type Page struct {
	From, To string
	// Objects and Prefixes are each in byte order (in the store's where it has none).
	Objects  []objstore.Object
	Prefixes []string
}

const (
	defaultParallel = 16
	// firstSplit is how many ranges are tried on the first guess; each that pays allows
	// one more, each that does not halves them.
	firstSplit = 4
	// slow is how many times longer than the quickest answer may take and not count as slow.
	slow = 2
)

// Dir lists what is directly under prefix, which is "" or ends in "/" (or all that begins
// with it, if Recursive), in parallel where the store lists in order. The first page is
// handed over as soon as it has come. The error is the first one met; what was handed over
// by then is right, but not all.
//
// Names that come or go meanwhile may or may not be seen.
func Dir(ctx context.Context, store objstore.Store, prefix string, opt Options) error {
	l := &listing{store: store, prefix: prefix, opt: opt, allow: firstSplit, out: make(chan struct{}, 1)}
	if l.opt.Parallel <= 0 {
		l.opt.Parallel = defaultParallel
	}
	most := store.Caps().MaxListKeys
	if most <= 0 {
		most = 1000
	}
	if l.opt.MaxKeys <= 0 || l.opt.MaxKeys > most {
		l.opt.MaxKeys = most
	}
	if !store.Caps().ListOrdered {
		return l.serial(ctx)
	}
	sub, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.ctx, l.cancel = sub, cancel
	l.mu.Lock()
	l.start(&run{proven: true})
	l.mu.Unlock()
	l.workers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// OnPage is called by whoever has put something into out, never under mu.

// listing is one call of Dir.
type listing struct {
	store   objstore.Store
	prefix  string
	opt     Options
	ctx     context.Context
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup

	out chan struct{} // holds one while OnPage runs

	mu       sync.Mutex
	runs     []*run        // under way
	live     int           // goroutines: the runs, and those that hand over their last page
	origin   string        // the first name of all
	began    bool          // origin is known
	ended    bool          // the end of the listing was seen
	fastest  time.Duration // the quickest answer
	unproven int           // runs that have not answered yet, but for the first
	allow    int           // the most unproven
	// Ranges cut by extrapolating numbers that held nothing, less those that did.
	numericLoss int
	err         error
}

// run is a range of names being listed, by one goroutine. All names are relative to the
// prefix. The fields are guarded by listing.mu.
type run struct {
	from    string // all up to here was listed, or is another's
	begun   bool   // false with from "": at the beginning, the name "" not yet listed
	to      string // "" is the end of the listing
	first   string // the first name that came
	total   int    // names that came
	guess   guess
	parent  *run
	numeric bool // cut by extrapolating a number
	proven  bool // has answered

	// After a cut that brought nothing a run is left alone for pause pages, twice as many
	// each time.
	pause, backoff int
}

func (l *listing) delimiter() string {
	if l.opt.Recursive {
		return ""
	}
	return "/"
}

// serial lists page by page.
func (l *listing) serial(ctx context.Context) error {
	opt := objstore.ListOptions{Prefix: l.prefix, Delimiter: l.delimiter(), MaxKeys: l.opt.MaxKeys}
	for {
		p, err := l.store.List(ctx, opt)
		if err != nil {
			return err
		}
		if err := l.opt.OnPage(Page{Objects: p.Objects, Prefixes: p.Prefixes}); err != nil {
			return err
		}
		if p.Next == "" {
			return nil
		}
		opt.Token = p.Next
	}
}

// start gives a run its goroutine, under mu.
func (l *listing) start(r *run) {
	l.runs = append(l.runs, r)
	l.live++
	if !r.proven {
		l.unproven++
	}
	l.workers.Go(func() {
		l.end(l.list(r))
	})
}

// end notes that a run's goroutine ends, with what error.
func (l *listing) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live--
	if err != nil && l.err == nil {
		l.err = err
		l.cancel(err)
	}
	l.grow()
}

// list lists a run to its end.
func (l *listing) list(r *run) error {
	opt := objstore.ListOptions{Prefix: l.prefix, Delimiter: l.delimiter(), MaxKeys: l.opt.MaxKeys}
	if r.from != "" {
		opt.StartAfter = l.prefix + r.from
	}
	for {
		start := time.Now()
		p, err := l.store.List(l.ctx, opt)
		if err != nil {
			return err
		}
		page, done, err := l.take(r, p, time.Since(start))
		if err != nil {
			return err
		}
		// A page that is truncated and yet empty covers nothing.
		if done || len(page.Objects)+len(page.Prefixes) > 0 {
			if err := l.deliver(page); err != nil {
				return err
			}
		} else if p.Next == opt.Token {
			return &objstore.Error{Op: "LIST", Key: l.prefix, Kind: objstore.Unavailable,
				Err: errors.New("the listing does not advance")}
		}
		if done {
			return nil
		}
		opt.Token, opt.StartAfter = p.Next, ""
	}
}

func (l *listing) deliver(p Page) error {
	select {
	case l.out <- struct{}{}:
		defer func() { <-l.out }()
	case <-l.ctx.Done():
	}
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	return l.opt.OnPage(p)
}

// take notes an answer for a run, cuts off what lies behind the run's end, learns from it,
// and starts more runs where that promises to pay.
func (l *listing) take(r *run, p objstore.ListPage, took time.Duration) (Page, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fastest == 0 || took < l.fastest {
		l.fastest = took
	}
	full, err := l.check(r, &p)
	if err != nil {
		return Page{}, false, err
	}
	if !l.began && len(full.names) > 0 {
		l.began, l.origin = true, strings.Clone(full.first())
	}
	objects, prefixes, clipped := l.clip(p, r.to)
	got := len(objects) + len(prefixes)
	out := Page{From: l.fromKey(r), Objects: objects, Prefixes: prefixes}
	if p.Next == "" {
		l.ended = true
	}
	l.judge(r, got, took)
	done := p.Next == "" || clipped || r.to != "" && len(full.names) > 0 && full.last() == r.to
	if done {
		if r.to != "" {
			out.To = l.prefix + r.to
		}
		i := slices.Index(l.runs, r)
		l.runs = slices.Delete(l.runs, i, i+1)
	} else if len(full.names) > 0 {
		r.from, r.begun = strings.Clone(full.last()), true
		out.To = l.fromKey(r)
		full.origin = l.origin
		if r.total += full.count; r.first == "" {
			r.first = strings.Clone(full.first())
		}
		full.began, full.total = r.first, r.total
		r.guess = learn(full, l.numericLoss < firstSplit)
		r.pause = max(0, r.pause-1)
	}
	l.grow()
	return out, done, nil
}

// fromKey is the key that a run's next page begins behind; "" is the beginning.
func (l *listing) fromKey(r *run) string {
	if r.from == "" && !r.begun {
		return ""
	}
	return l.prefix + r.from
}

// judge notes what the first answer of a run brought. Where answers have become slow, the
// store, or this machine, has more requests than it can do at a time: no more are tried.
func (l *listing) judge(r *run, got int, took time.Duration) {
	if r.proven {
		return
	}
	r.proven = true
	l.unproven--
	parent := r.parent
	r.parent = nil // else all runs there ever were stay in memory
	switch {
	case got == 0:
		l.allow = max(1, l.allow/2)
		if parent.pause == 0 {
			parent.backoff = min(2*parent.backoff+1, 64)
			parent.pause = parent.backoff
		}
		if r.numeric {
			l.numericLoss++
		}
	case got >= l.opt.MaxKeys/4:
		if took <= slow*l.fastest {
			l.allow = min(l.allow+1, l.opt.Parallel)
		}
		parent.backoff = 0
		if r.numeric {
			l.numericLoss = max(0, l.numericLoss-1)
		}
	}
}

// grow starts runs while that promises to pay.
func (l *listing) grow() {
	if l.err != nil {
		return
	}
	for {
		want := min(l.opt.Parallel-l.live, l.allow-l.unproven)
		if want <= 0 {
			return
		}
		var best *run
		most := 0.0
		for _, r := range l.runs {
			if r.pause > 0 || r.to == "" && l.ended {
				continue
			}
			if n := r.guess.pages(r.from, r.to, l.opt.MaxKeys, want); n > most {
				best, most = r, n
			}
		}
		if best == nil || !l.split(best, want) {
			return
		}
	}
}

// split cuts a run and starts a run for each part but the first.
func (l *listing) split(r *run, want int) bool {
	names := r.guess.cuts(r.from, r.to, l.opt.MaxKeys, want)
	if len(names) == 0 {
		return false
	}
	to := r.to
	r.to = names[0]
	for i, from := range names {
		n := &run{from: from, to: to, parent: r, guess: r.guess, numeric: r.guess.scale.width > 0}
		if i+1 < len(names) {
			n.to = names[i+1]
		}
		l.start(n)
	}
	return true
}

// check holds an answer against what was asked: names that are in order, behind the run's
// beginning. It drops the common prefix in which the beginning lies, which S3 shows again,
// and returns what there is to learn from.
func (l *listing) check(r *run, p *objstore.ListPage) (sample, error) {
	if from := l.fromKey(r); from != "" {
		for len(p.Prefixes) > 0 && p.Prefixes[0] <= from && strings.HasPrefix(from, p.Prefixes[0]) {
			p.Prefixes = p.Prefixes[1:]
		}
	}
	s := sample{count: len(p.Objects) + len(p.Prefixes)}
	every := max(1, s.count/sampled)
	prev, i, j := l.prefix+r.from, 0, 0
	for k := range s.count {
		var key string
		if j == len(p.Prefixes) || i < len(p.Objects) && p.Objects[i].Key < p.Prefixes[j] {
			key = p.Objects[i].Key
			i++
		} else {
			key = p.Prefixes[j]
			j++
		}
		// Only the object that is the prefix itself may be equal, at the very beginning.
		if key < prev || key == prev && (k > 0 || r.begun || r.from != "") || !strings.HasPrefix(key, l.prefix) {
			return s, &objstore.Error{Op: "LIST", Key: l.prefix, Kind: objstore.Unsupported,
				Err: fmt.Errorf("the store listed %q after %q", key, prev), Hint: "it does not list in byte order"}
		}
		prev = key
		if k%every == 0 || k == s.count-1 {
			s.names = append(s.names, key[len(l.prefix):])
		}
	}
	return s, nil
}

// clip drops what lies behind the name to, and tells whether there was anything.
func (l *listing) clip(p objstore.ListPage, to string) (objects []objstore.Object, prefixes []string, clipped bool) {
	objects, prefixes = p.Objects, p.Prefixes
	if to == "" {
		return objects, prefixes, false
	}
	end := l.prefix + to
	i, _ := slices.BinarySearchFunc(objects, end, func(o objstore.Object, end string) int {
		if o.Key <= end {
			return -1
		}
		return 1
	})
	j, _ := slices.BinarySearchFunc(prefixes, end, func(p, end string) int {
		if p <= end {
			return -1
		}
		return 1
	})
	clipped = i < len(objects) || j < len(prefixes)
	return objects[:i], prefixes[:j], clipped
}
