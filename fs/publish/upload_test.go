package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/objstore"
	"github.com/leatfs/leatfs/objstore/memstore"
)

const part = 2 * cache.BlockSize // the size of parts in these tests, and the largest single PUT

// world is a publisher into a store in memory whose requests are logged and can be made to fail.
type world struct {
	*testing.T
	mem *memstore.Store
	p   *Publisher

	mu   sync.Mutex
	ops  []string                                   // names of the requests, in order of their ends
	seen map[string]int                             // by name
	hook func(op objstore.Op, n int) (fate, func()) // n counts the requests of that name, from 1
}

// fate is what becomes of a request.
type fate uint8

const (
	pass  fate = iota
	lose       // carried out, and answered with a network error
	fail       // not carried out: network error
	deny       // not carried out: access denied
	spoil      // not carried out: corrupt
	gone       // not carried out: not found
	unmet      // not carried out: precondition failed
)

// withCaps is a store that can do less.
type withCaps struct {
	objstore.Store
	caps objstore.Caps
}

func (s withCaps) Caps() objstore.Caps { return s.caps }

// Head tells no checksum where the store has none.
func (s withCaps) Head(ctx context.Context, key string, opt objstore.HeadOptions) (objstore.Object, error) {
	o, err := s.Store.Head(ctx, key, opt)
	if !s.caps.Checksums {
		o.Checksum = objstore.Checksum{}
	}
	return o, err
}

func newWorld(t *testing.T, opt Options, less ...func(*objstore.Caps)) *world {
	w := &world{T: t, mem: memstore.New(), seen: map[string]int{}}
	caps := w.mem.Caps()
	for _, f := range less {
		f(&caps)
	}
	if opt.PartSize == 0 {
		opt.PartSize, opt.Multipart = part, part
	}
	opt.Scratch = t.TempDir()
	w.p = New(objstore.Around(withCaps{w.mem, caps}, w.request), opt)
	t.Cleanup(func() {
		w.p.Close()
		w.noGoroutines()
		if left, _ := os.ReadDir(opt.Scratch); len(left) > 0 {
			t.Errorf("files left in the scratch directory: %v", left)
		}
	})
	return w
}

func (w *world) request(ctx context.Context, op objstore.Op, call func(context.Context) error) error {
	w.mu.Lock()
	w.seen[op.Name]++
	n, hook := w.seen[op.Name], w.hook
	w.mu.Unlock()
	f := pass
	var after func()
	if hook != nil {
		f, after = hook(op, n)
	}
	err := func() error {
		kind := objstore.Unknown
		switch f {
		case pass:
			return call(ctx)
		case lose:
			if err := call(ctx); err != nil {
				return err
			}
			kind = objstore.Network
		case fail:
			kind = objstore.Network
		case deny:
			kind = objstore.AccessDenied
		case spoil:
			kind = objstore.Corrupt
		case gone:
			kind = objstore.NotFound
		case unmet:
			kind = objstore.PreconditionFailed
		}
		return &objstore.Error{Op: op.Name, Key: op.Key, Kind: kind, Err: errors.New("by the test")}
	}()
	w.mu.Lock()
	w.ops = append(w.ops, op.Name)
	w.mu.Unlock()
	if after != nil {
		after()
	}
	return err
}

// took returns the requests since the last call, and how often each was made when in a row.
func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for i := 0; i < len(w.ops); {
		n := 1
		for i+n < len(w.ops) && w.ops[i+n] == w.ops[i] {
			n++
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(w.ops[i])
		if n > 1 {
			fmt.Fprintf(&b, " x%d", n)
		}
		i += n
	}
	w.ops = nil
	return b.String()
}

func (w *world) wantTook(want string) {
	w.Helper()
	if got := w.took(); got != want {
		w.Errorf("requests:\n got %s\nwant %s", got, want)
	}
}

// does lets f decide about the requests of one name.
func (w *world) does(name string, f func(n int) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = map[string]int{}
	w.hook = func(op objstore.Op, n int) (fate, func()) {
		if op.Name != name {
			return pass, nil
		}
		return f(n), nil
	}
}

// nth is f at the n-th request only.
func nth(at int, f fate) func(int) fate {
	return func(n int) fate {
		if n == at {
			return f
		}
		return pass
	}
}

// noGoroutines fails when a goroutine of the package runs that is not a test.
func (w *world) noGoroutines() {
	w.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		buf := make([]byte, 1<<20)
		all := string(buf[:runtime.Stack(buf, true)])
		bad := slices.ContainsFunc(strings.Split(all, "\n\n"), func(g string) bool {
			return strings.Contains(g, "/fs/publish.(*Stream)") || strings.Contains(g, "/fs/publish.(*workers)")
		})
		if !bad {
			return
		}
		if time.Now().After(deadline) {
			w.Errorf("goroutines are left:\n%s", all)
			return
		}
	}
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 7})
	_, _ = r.Read(b)
	return b
}

// file makes a file with data.
func file(t testing.TB, data []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "staging"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f
}

func writeAt(t testing.TB, f *os.File, data []byte, off int64) {
	t.Helper()
	if _, err := f.WriteAt(data, off); err != nil {
		t.Error(err)
	}
}

func (w *world) publish(j Job) Outcome {
	w.Helper()
	if j.Token == "" {
		j.Token = NewToken()
	}
	out, err := w.p.Publish(w.Context(), j)
	if err != nil {
		w.Fatalf("Publish: %v", err)
	}
	return out
}

// readBack reads an object past the log.
func readBack(t testing.TB, s objstore.Store, key string) []byte {
	t.Helper()
	r, err := s.Get(t.Context(), key, objstore.GetOptions{Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (w *world) has(key string, data []byte) {
	w.Helper()
	if got := readBack(w, w.mem, key); !bytes.Equal(got, data) {
		at := 0
		for at < min(len(got), len(data)) && got[at] == data[at] {
			at++
		}
		w.Fatalf("%q: %d bytes, want %d; they differ from %d on", key, len(got), len(data), at)
	}
}

// sums checks what an Outcome says of data.
func sums(t testing.TB, out Outcome, data []byte) {
	t.Helper()
	if !out.Summed || out.Sum != crc64nvme.Checksum(data) {
		t.Errorf("Sum: %v %x, want %x", out.Summed, out.Sum, crc64nvme.Checksum(data))
	}
	var want []uint64
	for off := 0; off < len(data); off += cache.BlockSize {
		want = append(want, crc64nvme.Checksum(data[off:min(off+cache.BlockSize, len(data))]))
	}
	if !slices.Equal(out.Blocks, want) {
		t.Errorf("Blocks: %x, want %x", out.Blocks, want)
	}
	if out.Object.Size != int64(len(data)) || out.Object.ETag == "" {
		t.Errorf("Object: %+v, want %d bytes", out.Object, len(data))
	}
}

// TestSizes: content of every size lands whole, with as few requests as there can be.
func TestSizes(t *testing.T) {
	for _, size := range []int{0, 1, cache.BlockSize, part - 1, part} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(t, Options{})
			data := random(1, size)
			out := w.publish(Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: "tok", ContentType: "image/png",
				Metadata: map[string]string{"mode": "33188"}})
			w.wantTook("PUT")
			w.has("k", data)
			sums(t, out, data)
			if out.PartSize != 0 || out.Requests.Puts != 1 || out.Requests.Sent != int64(size) {
				t.Errorf("%+v", out)
			}
			o, err := w.mem.Head(t.Context(), "k", objstore.HeadOptions{})
			if err != nil || o.ContentType != "image/png" || TokenOf(o) != "tok" || o.Metadata["mode"] != "33188" {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
	for _, size := range []int{part + 1, 2 * part, 5*part + 77} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := newWorld(t, Options{})
			data := random(1, size)
			n := (size + part - 1) / part
			var began []Upload
			ordered := 0
			out := w.publish(Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: "tok",
				Began: func(u Upload) error { began = append(began, u); return nil },
				Order: func(context.Context) error {
					ordered++
					if got, want := w.took(), fmt.Sprintf("CREATE MULTIPART, PUT PART x%d", n); got != want {
						t.Errorf("before the commit: %s, want %s", got, want)
					}
					return nil
				}})
			w.wantTook("COMPLETE MULTIPART")
			w.has("k", data)
			sums(t, out, data)
			if out.PartSize != part || ordered != 1 || len(began) != 1 || began[0].Key != "k" || began[0].PartSize != part || began[0].Token != "tok" {
				t.Errorf("%+v, %d, %+v", out, ordered, began)
			}
		})
	}
}

// TestPartsGrow: parts are as large as the store's number of parts needs.
func TestPartsGrow(t *testing.T) {
	w := newWorld(t, Options{}, func(c *objstore.Caps) { c.MaxParts = 3 })
	data := random(2, 7*part)
	out := w.publish(Job{Key: "k", File: file(t, data)})
	w.wantTook("CREATE MULTIPART, PUT PART x3, COMPLETE MULTIPART")
	w.has("k", data)
	if out.PartSize < 7*part/3 || out.PartSize%cache.BlockSize != 0 {
		t.Errorf("parts of %d", out.PartSize)
	}
}

// TestNoMultipart: a store without it takes all at once.
func TestNoMultipart(t *testing.T) {
	w := newWorld(t, Options{}, func(c *objstore.Caps) { c.Multipart = false })
	data := random(2, 3*part)
	w.publish(Job{Key: "k", File: file(t, data)})
	w.wantTook("PUT")
	w.has("k", data)
}

// TestConflict: what somebody else put there stays, and the caller learns what it is.
func TestConflict(t *testing.T) {
	for _, size := range []int{10, 3 * part} {
		for _, conditions := range []bool{true, false} {
			t.Run(fmt.Sprint(size, conditions), func(t *testing.T) {
				w := newWorld(t, Options{}, func(c *objstore.Caps) { c.PutIfMatch, c.PutIfNoneMatch = conditions, conditions })
				theirs := w.mem.Set("k", []byte("theirs"))
				data := random(3, size)
				var up Upload
				j := Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: NewToken(), Began: func(u Upload) error { up = u; return nil }}
				_, err := w.p.Publish(t.Context(), j)
				c, ok := err.(*Conflict)
				if !ok || c.Key != "k" || c.Have.ETag != theirs.ETag || !strings.Contains(c.Error(), theirs.ETag) {
					t.Fatalf("got %v", err)
				}
				w.has("k", []byte("theirs"))
				j.IfNoneMatch, j.IfMatch = false, "another"
				if _, err = w.p.Publish(t.Context(), j); !errors.As(err, &c) || c.Have.ETag != theirs.ETag {
					t.Fatalf("got %v", err)
				}
				if up.ID != "" {
					if _, err := w.mem.ListParts(t.Context(), up.Key, up.ID); !objstore.Is(err, objstore.NotFound) {
						t.Errorf("the upload is still there: %v", err)
					}
				}
				j.IfMatch = theirs.ETag
				w.took()
				w.publish(j)
				w.has("k", data)
				if got := strings.Contains(w.took(), "HEAD"); got == conditions {
					t.Errorf("asked first: %v", got)
				}
				if err := w.mem.Delete(t.Context(), "k", objstore.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err = w.p.Publish(t.Context(), j); !errors.As(err, &c) || c.Have.Key != "" {
					t.Fatalf("over nothing: %v", err)
				}
			})
		}
	}
}

// TestErrors: what is no matter of conditions is the store's error, at once, and the upload stays.
func TestErrors(t *testing.T) {
	for _, name := range []string{"PUT", "CREATE MULTIPART", "PUT PART", "COMPLETE MULTIPART"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			size := 10
			if name != "PUT" {
				size = 4 * part
			}
			w.does(name, nth(1, deny))
			_, err := w.p.Publish(t.Context(), Job{Key: "k", File: file(t, random(4, size)), IfNoneMatch: true, Token: "t"})
			if !objstore.Is(err, objstore.AccessDenied) {
				t.Errorf("got %v", err)
			}
			if got := w.took(); strings.Contains(got, "HEAD") || strings.Contains(got, "ABORT") {
				t.Errorf("requests: %s", got)
			}
		})
	}
}

// TestBeganFails: an upload that could not be recorded is not left behind.
func TestBeganFails(t *testing.T) {
	w := newWorld(t, Options{})
	var up Upload
	want := errors.New("no room")
	_, err := w.p.Publish(t.Context(), Job{Key: "k", File: file(t, random(4, 3*part)), Began: func(u Upload) error { up = u; return want }})
	if !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	w.wantTook("CREATE MULTIPART, ABORT MULTIPART")
	if _, err := w.mem.ListParts(t.Context(), up.Key, up.ID); !objstore.Is(err, objstore.NotFound) {
		t.Errorf("the upload is still there: %v", err)
	}
}

// TestOrderFails: nothing is committed then.
func TestOrderFails(t *testing.T) {
	w := newWorld(t, Options{})
	want := errors.New("not yet")
	_, err := w.p.Publish(t.Context(), Job{Key: "k", File: file(t, nil), Order: func(context.Context) error { return want }})
	if !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
	w.wantTook("")
}

// TestCloseEnds: Close ends what is under way, and nothing begins after it.
func TestCloseEnds(t *testing.T) {
	w := newWorld(t, Options{})
	waits := make(chan struct{})
	got := make(chan error)
	go func() {
		_, err := w.p.Publish(t.Context(), Job{Key: "k", File: file(t, nil), Order: func(ctx context.Context) error {
			close(waits)
			<-ctx.Done()
			return ctx.Err()
		}})
		got <- err
	}()
	<-waits
	w.p.Close()
	if err := <-got; !objstore.Is(err, objstore.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := w.p.Publish(t.Context(), Job{Key: "k"}); !objstore.Is(err, objstore.Canceled) {
		t.Errorf("after Close: %v", err)
	}
	st := w.p.Stream(t.Context(), Job{Key: "k", File: file(t, nil)})
	if _, err := st.Finish(t.Context(), Job{Key: "k"}); !objstore.Is(err, objstore.Canceled) {
		t.Errorf("a stream after Close: %v", err)
	}
}
