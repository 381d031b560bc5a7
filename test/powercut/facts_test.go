package powercut

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/fault"
)

// What a writer says of its files, as marks of the disk:
//
//	may NAME=I...     content(I) may be at each NAME from now on
//	fact ID NAME=I... it is so at one of the names, or more; replaces what the fact ID was before; without names: nothing is so any more
//	after A=I B=J     who finds content(I) at A in the bucket finds content(J) at B
//	dir NAME          there is a directory
//	gone NAME...      nothing is at these names from now on
//
// Whatever else is at a name in the bucket was never there as a whole, which must not be.

// teller writes files and says what is to be so of them.
type teller struct {
	d   *Disk
	dir string
}

// at is one content under one name.
type at struct {
	name string
	i    int
}

func (a at) String() string { return a.name + "=" + strconv.Itoa(a.i) }

func ats(i int, names ...string) (out []at) {
	for _, n := range names {
		out = append(out, at{n, i})
	}
	return out
}

func parseAts(words []string) (out []at, err error) {
	for _, w := range words {
		name, n, ok := strings.Cut(w, "=")
		i, err := strconv.Atoi(n)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q is no NAME=I", w)
		}
		out = append(out, at{name, i})
	}
	return out, nil
}

func (w *teller) say(kind string, as ...at) {
	for _, a := range as {
		kind += " " + a.String()
	}
	w.d.Ack("%s", kind)
}

func (w *teller) may(i int, names ...string)             { w.say("may", ats(i, names...)...) }
func (w *teller) fact(id string, i int, names ...string) { w.say("fact "+id, ats(i, names...)...) }
func (w *teller) after(marker string, i int, name string, j int) {
	w.say("after", at{marker, i}, at{name, j})
}

func (w *teller) path(name string) string { return filepath.Join(w.dir, name) }

// write writes content(i) to a name that is new or overwritten, in pieces, fsyncs it, and says that it is there.
func (w *teller) write(name string, i int) error {
	w.may(i, name)
	f, err := os.Create(w.path(name))
	if err != nil {
		return err
	}
	data := content(i)
	for len(data) > 0 && err == nil {
		n := min(len(data), 64<<10)
		_, err = f.Write(data[:n])
		data = data[n:]
	}
	if err = errors.Join(err, f.Sync()); err != nil {
		return errors.Join(err, f.Close())
	}
	w.fact(name, i, name)
	return f.Close()
}

// rename says that what the facts are of may be at another name, renames, fsyncs the directory of the new name if sync
// says so, and then says that it is so.
func (w *teller) rename(from, to string, sync bool, facts ...moved) error {
	for _, m := range facts {
		w.may(m.i, m.to)
		w.fact(m.id, m.i, m.from, m.to)
	}
	if err := os.Rename(w.path(from), w.path(to)); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	if err := syncDir(filepath.Dir(w.path(to))); err != nil {
		return err
	}
	for _, m := range facts {
		w.fact(m.id, m.i, m.to)
	}
	return nil
}

// moved is a fact that a rename changes.
type moved struct {
	id       string
	i        int
	from, to string
}

// facts are what was said until a cut.
type facts struct {
	must  map[string][]at // by ID
	may   map[string][]int
	after [][2]at
	gone  map[string]bool
	dirs  []string
}

func told(acked []string) (f facts, err error) {
	f = facts{must: map[string][]at{}, may: map[string][]int{}, gone: map[string]bool{}}
	for _, line := range acked {
		w := strings.Fields(line)
		var as []at
		switch {
		case len(w) > 1 && w[0] == "may":
			as, err = parseAts(w[1:])
			for _, a := range as {
				f.may[a.name] = append(f.may[a.name], a.i)
				delete(f.gone, a.name)
			}
		case len(w) > 1 && w[0] == "fact":
			f.must[w[1]], err = parseAts(w[2:])
		case len(w) == 2 && w[0] == "dir":
			f.dirs = append(f.dirs, w[1])
		case len(w) > 1 && w[0] == "gone":
			for _, name := range w[1:] {
				f.gone[name] = true
			}
		case len(w) == 3 && w[0] == "after":
			if as, err = parseAts(w[1:]); err == nil {
				f.after = append(f.after, [2]at{as[0], as[1]})
			}
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

// missing looks for each fact with read.
func (f *facts) missing(read func(name string) ([]byte, error)) error {
	var bad []error
	for id, as := range f.must {
		var errs []error
		ok := len(as) == 0
		for _, a := range as {
			b, err := read(a.name)
			if ok = err == nil && bytes.Equal(b, content(a.i)); ok {
				break
			}
			if err == nil {
				err = fmt.Errorf("%d bytes, want %d others", len(b), len(content(a.i)))
			}
			errs = append(errs, fmt.Errorf("%v: %w", a, err))
		}
		if !ok {
			bad = append(bad, fmt.Errorf("%s: %w", id, errors.Join(errs...)))
		}
	}
	for name := range f.gone {
		if b, err := read(name); !errors.Is(err, os.ErrNotExist) {
			bad = append(bad, fmt.Errorf("%s was removed: %d bytes there, %w", name, len(b), err))
		}
	}
	return errors.Join(bad...)
}

// half looks for what is in the bucket and never was a whole file under its name.
func (f *facts) half(bucket map[string][]byte) error {
	var bad []error
	for key, b := range bucket {
		name, replaced, _ := strings.Cut(key, ".replaced-")
		switch {
		case strings.HasSuffix(key, "/"):
		case strings.Contains(key, ".conflict-"):
			bad = append(bad, fmt.Errorf("%s: nobody else writes here", key))
		case !slices.ContainsFunc(f.may[name], func(i int) bool { return bytes.Equal(b, content(i)) }):
			bad = append(bad, fmt.Errorf("%s is in the bucket with %d bytes; there was never such a file (%v); %s", key, len(b), f.may[name], replaced))
		}
	}
	return errors.Join(bad...)
}

// tooEarly looks for markers that came to the bucket before what they stand for.
func (f *facts) tooEarly(bucket map[string][]byte, log []fault.Request) error {
	last := map[string]fault.Request{}
	for _, r := range log {
		if r.Method == "PUT" && r.Status == 200 && len(r.Query["partNumber"]) == 0 {
			last[r.Key] = r
		}
	}
	var bad []error
	for _, a := range f.after {
		marker, data := a[0], a[1]
		if !bytes.Equal(bucket[marker.name], content(marker.i)) {
			continue
		}
		m, ok := last[marker.name]
		if !ok {
			continue // it was there before
		}
		if !bytes.Equal(bucket[data.name], content(data.i)) {
			bad = append(bad, fmt.Errorf("%v is in the bucket, %v is not: %d bytes there", marker, data, len(bucket[data.name])))
		} else if d, ok := last[data.name]; ok && d.Time.Add(d.Took).After(m.Time) {
			bad = append(bad, fmt.Errorf("%v was put at %v, %v was there at %v", marker, m.Time, data, d.Time.Add(d.Took)))
		}
	}
	return errors.Join(bad...)
}

// settled is what checkFacts looks at when all that can be published is.
type settled struct {
	x      *daemon
	facts  facts
	bucket map[string][]byte
	held   []string
}

// checkFacts starts leatfs on what a cut left, as after the boot number boot, and looks whether all that was said is so: in
// the mount, then, when all that is not held is published, in the bucket.
func (m *machine) checkFacts(dir string, acked []string, boot int, more func(s *settled) error) (err error) {
	f, err := told(acked)
	if err != nil {
		return err
	}
	m.proxy.Forget()
	x, err := m.start(dir, boot)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, x.kill()); err != nil {
			err = fmt.Errorf("%w\nleatfs said:\n%s", err, x.log)
		}
	}()
	if err := f.missing(func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(x.Dir, name)) }); err != nil {
		return fmt.Errorf("in the mount: %w", err)
	}
	for _, name := range f.dirs {
		if st, err := os.Stat(filepath.Join(x.Dir, name)); err != nil || !st.IsDir() {
			return fmt.Errorf("there was a directory %s: %w", name, err)
		}
	}
	s := settled{x: x, facts: f}
	if s.held, err = m.sync(x); err != nil {
		return err
	}
	if s.bucket, err = m.bucketNow(); err != nil {
		return err
	}
	if err := f.missing(func(name string) ([]byte, error) {
		if b, ok := s.bucket[name]; ok {
			return b, nil
		}
		return nil, os.ErrNotExist
	}); err != nil {
		return fmt.Errorf("in the bucket: %w", err)
	}
	for _, name := range f.dirs {
		if _, ok := s.bucket[name+"/"]; !ok {
			return fmt.Errorf("the directory %s is not in the bucket", name)
		}
	}
	m.t.Logf("%d facts hold; %d objects, %d files held", len(f.must), len(s.bucket), len(s.held))
	if err := errors.Join(f.half(s.bucket), f.tooEarly(s.bucket, m.proxy.Requests())); err != nil || more == nil {
		return err
	}
	return more(&s)
}

// run runs a command of leatfs, or with name another program, where the mount is.
func (m *machine) run(x *daemon, name string, args ...string) (string, error) {
	all := append([]string{"-t", strconv.Itoa(x.cmd.Process.Pid), "-m", "--", name}, args...)
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", all...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %v: %w: %s", name, args, err, strings.TrimSpace(errs.String()+out.String()))
	}
	return out.String(), nil
}

// sync waits until all is published that is not held, and returns what is held.
func (m *machine) sync(x *daemon) (held []string, err error) {
	out, err := m.run(x, m.binary, "sync", m.mnt, "--timeout=30s", "--json")
	if err == nil {
		return nil, nil
	}
	var left struct {
		Entries []struct{ Path, State, Error string }
	}
	if jerr := json.Unmarshal([]byte(out), &left); jerr != nil {
		return nil, errors.Join(err, jerr)
	}
	for _, e := range left.Entries {
		if e.State != "held" {
			return nil, fmt.Errorf("%s is %s and not published: %s", e.Path, e.State, e.Error)
		}
		if e.Error == "" {
			return nil, fmt.Errorf("%s is held, and not why", e.Path)
		}
		held = append(held, strings.TrimPrefix(e.Path, "/"))
	}
	return held, nil
}

// bucketNow is what is in the bucket.
func (m *machine) bucketNow() (map[string][]byte, error) {
	out := map[string][]byte{}
	p := awss3.NewListObjectsV2Paginator(m.server.Client(), &awss3.ListObjectsV2Input{Bucket: &m.bucket})
	for p.HasMorePages() {
		page, err := p.NextPage(context.Background())
		if err != nil {
			return nil, err
		}
		for _, o := range page.Contents {
			r, err := m.server.Client().GetObject(context.Background(), &awss3.GetObjectInput{Bucket: &m.bucket, Key: o.Key})
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(r.Body)
			if err = errors.Join(err, r.Body.Close()); err != nil {
				return nil, err
			}
			out[*o.Key] = b
		}
	}
	return out, nil
}

// away makes the bucket take nothing, until it is removed.
func (m *machine) away() *fault.Rule {
	return m.proxy.Add(fault.Rule{Match: func(r fault.Request) bool { return r.Method != "GET" && r.Method != "HEAD" }, Do: fault.ServiceUnavailable()})
}
