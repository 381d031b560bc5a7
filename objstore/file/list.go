package file

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// windowNames is how many names of one directory are held while it is listed: the
// smallest ones not yet listed. A directory of more names is read once per window.
const windowNames = 32 << 10

// statters is how many files of a page are described at once: a parallel filesystem
// answers each from another machine.
const statters = 16

// List implements objstore.Store. An empty directory is listed as a prefix. A directory
// that may not be read is an error, not an empty one.
func (s *Store) List(ctx context.Context, opt objstore.ListOptions) (objstore.ListPage, error) {
	var page objstore.ListPage
	if opt.Delimiter != "" && opt.Delimiter != "/" {
		return page, &objstore.Error{Op: opList, Key: opt.Prefix, Kind: objstore.BadRequest, Hint: `the delimiter is "/" or ""`}
	}
	max := s.Caps().MaxListKeys
	if opt.MaxKeys > 0 {
		max = min(max, opt.MaxKeys)
	}
	c, err := s.cursor(opt)
	if err != nil {
		return page, err
	}
	for {
		// Files may vanish between their directory and their description: ask until
		// the page is full.
		var entries []string
		for len(entries) < max-len(page.Objects)-len(page.Prefixes) {
			if err := canceled(ctx, opList, opt.Prefix); err != nil {
				return objstore.ListPage{}, err
			}
			name, err := c.next(s)
			if err != nil {
				return objstore.ListPage{}, wrap(opList, opt.Prefix, err)
			}
			if name == "" {
				break
			}
			entries = append(entries, name)
		}
		if len(entries) == 0 {
			return page, nil
		}
		if err := s.describe(ctx, entries, &page); err != nil {
			return objstore.ListPage{}, wrap(opList, opt.Prefix, err)
		}
		if len(page.Objects)+len(page.Prefixes) == max {
			page.Next = s.cursors.keep(c)
			return page, nil
		}
	}
}

// cursor finds the cursor that a token names, or makes one.
func (s *Store) cursor(opt objstore.ListOptions) (*cursor, error) {
	after := opt.StartAfter
	if opt.Token != "" {
		kind, last, ok := strings.Cut(opt.Token, ":")
		id, last, ok2 := strings.Cut(last, ":")
		if !ok || !ok2 || kind != "leatfs" {
			return nil, &objstore.Error{Op: opList, Key: opt.Prefix, Kind: objstore.BadRequest, Hint: "the token is not of this store"}
		}
		if c := s.cursors.take(id, last); c != nil && c.prefix == opt.Prefix && c.delimiter == opt.Delimiter {
			return c, nil
		}
		after = last
	}
	return newCursor(opt.Prefix, opt.Delimiter, after), nil
}

// describe puts names onto a page: prefixes as they are, keys with size and ETag. Names
// that are no regular files (any more) are left out.
func (s *Store) describe(ctx context.Context, names []string, page *objstore.ListPage) error {
	objects := make([]objstore.Object, len(names))
	errs := make([]error, statters)
	one := func(w, i int) {
		st, err := s.stat(names[i])
		switch {
		case err == nil:
			objects[i] = s.object(names[i], &st)
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		default:
			errs[w] = errors.Join(errs[w], wrap(opList, names[i], err))
		}
	}
	var wg sync.WaitGroup
	workers := min(statters, (len(names)+31)/32)
	for w := range workers {
		work := func() {
			for i := w; i < len(names) && errs[w] == nil && ctx.Err() == nil; i += workers {
				if !strings.HasSuffix(names[i], "/") {
					one(w, i)
				}
			}
		}
		if workers == 1 {
			work()
		} else {
			wg.Go(work)
		}
	}
	wg.Wait()
	if err := canceled(ctx, opList, ""); err != nil {
		return err
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	for i, n := range names {
		if strings.HasSuffix(n, "/") {
			page.Prefixes = append(page.Prefixes, n)
		} else if objects[i].Key != "" {
			page.Objects = append(page.Objects, objects[i])
		}
	}
	return nil
}

// cursor walks keys in byte order. A directory stands among its siblings as its name with
// a slash, which is where its keys are in that order.
type cursor struct {
	prefix, delimiter string
	after             string // names up to it are behind the cursor
	last              string // the last name given out
	stack             []frame
	started           bool
}

// frame is a directory that is being walked.
type frame struct {
	dir   string   // its prefix of keys, "" or "a/b/"
	names []string // the window, in order; directories end in "/"
	pos   int      // the next of names
	more  bool     // there are names after the window
}

func newCursor(prefix, delimiter, after string) *cursor {
	return &cursor{prefix: prefix, delimiter: delimiter, after: after, last: after}
}

// next returns the next key, or common prefix, "" at the end.
func (c *cursor) next(s *Store) (string, error) {
	if !c.started {
		c.started = true
		dir := c.prefix[:strings.LastIndexByte(c.prefix, '/')+1]
		if dir != "" && checkKey(opList, dir[:len(dir)-1]) != nil {
			return "", nil // no file has such a name
		}
		if err := c.push(s, dir); err != nil {
			return "", err
		}
	}
	for len(c.stack) > 0 {
		f := &c.stack[len(c.stack)-1]
		if f.pos == len(f.names) {
			if !f.more {
				c.stack = c.stack[:len(c.stack)-1]
				continue
			}
			last := f.names[len(f.names)-1]
			if err := c.load(s, f, last); err != nil {
				return "", err
			}
			continue
		}
		name := f.dir + f.names[f.pos]
		f.pos++
		if !strings.HasSuffix(name, "/") || c.delimiter != "" {
			c.last = name
			return name, nil
		}
		if err := c.push(s, name); err != nil {
			return "", err
		}
	}
	return "", nil
}

// push begins to walk a directory. One that is not there, or no directory, is empty.
func (c *cursor) push(s *Store, dir string) error {
	f := frame{dir: dir}
	err := c.load(s, &f, "")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
		return nil
	}
	if err != nil {
		return wrap(opList, dir, err)
	}
	c.stack = append(c.stack, f)
	return nil
}

// load fills a frame's window with the smallest names greater than behind that the listing wants.
func (c *cursor) load(s *Store, f *frame, behind string) error {
	fd, err := s.openDir(f.dir, unix.O_RDONLY)
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), f.dir)
	defer d.Close()
	w := window{max: s.window}
	for {
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			name := e.Name()
			switch t := e.Type(); {
			case t.IsDir():
				if f.dir == "" && name == tmpDir {
					continue
				}
				name += "/"
			case t.IsRegular(), t&os.ModeSymlink != 0:
			default:
				continue // no file that can be read
			}
			if name > behind && c.wants(f.dir+name) {
				w.add(name)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	f.names, f.more = w.sorted()
	f.pos = 0
	return nil
}

// wants tells whether a name, or something below it, belongs to the listing and lies
// ahead.
func (c *cursor) wants(name string) bool {
	dir := strings.HasSuffix(name, "/")
	if !strings.HasPrefix(name, c.prefix) && !(dir && strings.HasPrefix(c.prefix, name)) {
		return false
	}
	if !dir || c.delimiter != "" {
		return name > c.after && !(dir && strings.HasPrefix(c.after, name))
	}
	return name > c.after || strings.HasPrefix(c.after, name)
}

// window keeps the max smallest of the names added.
type window struct {
	max   int
	names []string
	cut   bool // names were dropped
}

// add adds a name. The names are cut back when twice max are held, so that adding n names
// costs n log max comparisons.
func (w *window) add(name string) {
	w.names = append(w.names, name)
	if len(w.names) >= 2*w.max {
		slices.Sort(w.names)
		clear(w.names[w.max:])
		w.names, w.cut = w.names[:w.max], true
	}
}

func (w *window) sorted() (names []string, more bool) {
	slices.Sort(w.names)
	if len(w.names) > w.max {
		clear(w.names[w.max:])
		w.names, w.cut = w.names[:w.max], true
	}
	return slices.Clip(w.names), w.cut
}
