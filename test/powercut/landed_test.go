package powercut

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leatfs/leatfs/test/fault"
	"github.com/leatfs/leatfs/test/powercut/record"
)

// object is one version of an object as the bucket had it.
type object struct {
	body []byte
	meta map[string]string
}

// landing is a machine whose bucket takes what is written, and what the bucket had:
//
//	put KEY           a PUT of this key begins
//	landed NAME=I     the bucket has it
//	delete KEY        a DELETE begins
type landing struct {
	*machine
	objects map[at]object
}

// landed waits until the bucket has content(i) at a name, keeps it, and says so.
func (l *landing) landed(w *teller, i int, name string) error {
	err := eventually(time.Minute, func() error {
		r, err := l.server.Client().GetObject(context.Background(), &awss3.GetObjectInput{Bucket: &l.bucket, Key: &name})
		if err != nil {
			return err
		}
		b, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err == nil && !bytes.Equal(b, content(i)) {
			err = fmt.Errorf("%s has %d bytes in the bucket", name, len(b))
		}
		if err == nil {
			l.objects[at{name, i}] = object{b, r.Metadata}
			w.say("landed", at{name, i})
		}
		return err
	})
	return err
}

// bucketAt makes the bucket what it was at a cut. Of a request that had begun and was not known to be carried out, taken
// says whether it was.
func (l *landing) bucketAt(acked []string, taken bool) error {
	if err := l.emptyBucket(); err != nil {
		return err
	}
	next := map[string]at{} // what is written to a name, and not known to have landed
	have := map[string]at{}
	for _, line := range acked {
		w := strings.Fields(line)
		switch w[0] {
		case "fact": // one file each
			if as, err := parseAts(w[2:]); err == nil && len(as) > 0 {
				next[as[len(as)-1].name] = as[len(as)-1]
			}
		case "put":
			if a, ok := next[w[1]]; ok && taken {
				have[w[1]] = a
			}
		case "delete":
			if taken {
				delete(have, w[1])
			}
		case "landed":
			as, err := parseAts(w[1:])
			if err != nil {
				return err
			}
			have[as[0].name] = as[0]
		case "deleted":
			delete(have, w[1])
		}
	}
	for name, a := range have {
		o, ok := l.objects[a]
		if !ok {
			continue // it never landed in the end
		}
		if _, err := l.server.Client().PutObject(context.Background(), &awss3.PutObjectInput{Bucket: &l.bucket, Key: &name, Body: bytes.NewReader(o.body), Metadata: o.meta}); err != nil {
			return err
		}
	}
	return nil
}

// work writes files, replaces them in place and by renames, and removes some, and waits for the bucket each time.
func (l *landing) work(w *teller) error {
	for i := range 4 {
		name := fmt.Sprintf("f-%d", i)
		if err := errors.Join(w.write(name, i), l.landed(w, i, name)); err != nil {
			return err
		}
		switch i % 4 {
		case 0: // in place
			w.fact(name, 0)
			if err := errors.Join(w.write(name, 10+i), l.landed(w, 10+i, name)); err != nil {
				return err
			}
		case 1, 2: // by a rename
			if err := w.write(name+".tmp", 10+i); err != nil {
				return err
			}
			w.may(10+i, name)
			w.fact(name+".tmp", 10+i, name+".tmp", name)
			w.say("fact "+name, at{name, i}, at{name, 10 + i})
			if err := os.Rename(w.path(name+".tmp"), w.path(name)); err != nil {
				return err
			}
			if err := syncDir(w.dir); err != nil {
				return err
			}
			w.fact(name+".tmp", 0)
			w.fact(name, 10+i, name)
			if err := l.landed(w, 10+i, name); err != nil {
				return err
			}
		case 3:
			w.fact(name, 0)
			if err := errors.Join(os.Remove(w.path(name)), syncDir(w.dir)); err != nil {
				return err
			}
			w.d.Ack("gone %s", name)
			if err := eventually(time.Minute, func() error {
				b, err := l.bucketNow()
				if _, there := b[name]; err == nil && there {
					err = fmt.Errorf("%s is still in the bucket", name)
				}
				return err
			}); err != nil {
				return err
			}
			w.d.Ack("deleted %s", name)
		}
	}
	return nil
}

// A cut after the bucket has taken a file, before or after the index knows: nothing is published beside it as somebody
// else's, nothing is lost, and what was removed does not come back.
func TestCutAfterPublication(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		l := &landing{machine: newMachine(t, fs), objects: map[at]object{}}
		marks := l.proxy.Add(fault.Rule{Match: func(r fault.Request) bool {
			switch r.Method {
			case http.MethodPut:
				l.d.Ack("put %s", r.Key)
			case http.MethodDelete:
				l.d.Ack("delete %s", r.Key)
			}
			return false
		}, Do: fault.Pass()})
		x, err := l.start(l.d.Dir(), 1)
		if err != nil {
			t.Fatal(err)
		}
		w := &teller{l.d, x.Dir}
		if err := errors.Join(l.work(w), x.kill()); err != nil {
			t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
		}
		marks.Remove()
		first := l.d.AtAcks("may")[0].At
		cuts := append(l.d.AtAcks("put f-"), l.d.AtAcks("landed")...)
		for _, c := range l.d.Cuts(Number(t, 4, 30), 20) {
			if c.At > first {
				cuts = append(cuts, c)
			}
		}
		cuts = append(chosen(cuts, Number(t, 10, 60)), l.d.AtAcks("delete")...)
		for _, taken := range []bool{true, false} {
			for _, loss := range l.d.Losses(cuts, func(a *After) error {
				if err := l.bucketAt(a.Acked, taken); err != nil {
					return err
				}
				return l.checkFacts(a.Dir, a.Acked, 2, nil)
			}) {
				t.Errorf("%v, what was under way was carried out: %v: %v", loss.Cut, taken, loss.Err)
			}
		}
	})
}

// A file that is uploaded in parts while it is written, and still open when the power is cut: it is published whole if it was
// synced, held if it was changed after that, and no upload is left behind.
func TestCutWhileUploading(t *testing.T) {
	const big = 75_000 // content has 80 MB
	Both(t, func(t *testing.T, fs FS) {
		m := newMachine(t, fs)
		m.args = []string{"--part-size=8MiB"}
		x, err := m.start(m.d.Dir(), 1)
		if err != nil {
			t.Fatal(err)
		}
		w := &teller{m.d, x.Dir}
		w.may(big, "ckpt/model.bin")
		isPart := func(r fault.Request) bool {
			return r.Method == http.MethodPut && r.Query.Has("partNumber") && r.Status == 200
		}
		work := func() error {
			if err := os.Mkdir(w.path("ckpt"), 0o755); err != nil {
				return err
			}
			f, err := os.Create(w.path("ckpt/model.bin"))
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.Write(content(big)); err != nil {
				return err
			}
			if err := eventually(time.Minute, func() error {
				if n := m.proxy.Count(isPart); n < 3 {
					return fmt.Errorf("%d parts were uploaded while the file is written", n)
				}
				return nil
			}); err != nil {
				return err
			}
			w.d.Ack("parts")
			if err := f.Sync(); err != nil {
				return err
			}
			w.fact("model", big, "ckpt/model.bin")
			w.fact("model", 0)
			if _, err := f.WriteAt([]byte("torn"), 1000); err != nil {
				return err
			}
			w.d.Ack("changed")
			return syncFS(m.d.Dir()) // as the kernel does by itself some time
		}
		if err := errors.Join(work(), x.kill()); err != nil {
			t.Fatalf("%v\nleatfs said:\n%s", err, x.log)
		}
		cuts := append(append(m.d.AtAcks("parts"), m.d.AtAcks("fact")[0]), record.Cut{At: m.d.Position(), How: record.All})
		if n := Number(t, 0, 20); n > 0 {
			cuts = append(cuts, m.d.Cuts(n, 30)...)
		}
		held := 0
		m.d.Check(cuts, func(a *After) error {
			// The uploads of before are there still: those that this log knows of are aborted by it.
			if err := m.emptyBucket(); err != nil {
				return err
			}
			return m.checkFacts(a.Dir, a.Acked, 2, func(s *settled) error {
				held += len(s.held)
				for _, name := range s.held {
					if _, there := s.bucket[name]; there {
						return fmt.Errorf("%s is held, and in the bucket", name)
					}
					if _, err := m.run(s.x, m.binary, "discard", m.mnt, m.mnt+"/"+name); err != nil {
						return err
					}
					if _, err := os.Stat(s.x.Dir + "/" + name); !errors.Is(err, os.ErrNotExist) {
						return fmt.Errorf("%s was discarded: %w", name, err)
					}
				}
				return nil
			})
		})
		if held == 0 {
			t.Error("no cut has left a file that is held")
		}
		if err := m.noUploads(); err != nil {
			t.Error(err)
		}
	})
}

// noUploads waits until no upload in parts is left.
func (m *machine) noUploads() error {
	return eventually(time.Minute, func() error {
		out, err := m.server.Client().ListMultipartUploads(context.Background(), &awss3.ListMultipartUploadsInput{Bucket: &m.bucket})
		if err == nil && len(out.Uploads) > 0 {
			err = fmt.Errorf("%d uploads are left", len(out.Uploads))
		}
		return err
	})
}
