package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/objstore"
)

// conditions are the ways in which a store may lack what settles a lost answer.
func conditions() map[string]func(*objstore.Caps) {
	return map[string]func(*objstore.Caps){
		"all":          func(*objstore.Caps) {},
		"no checksums": func(c *objstore.Caps) { c.Checksums = false },
		"no conditions": func(c *objstore.Caps) {
			c.PutIfMatch, c.PutIfNoneMatch, c.CopyIfMatch, c.DeleteIfMatch = false, false, false, false
		},
	}
}

// TestLostAnswers: whichever answer is lost, the same Job published again (or the same Publish) ends
// with the content there, once, and no conflict with itself.
func TestLostAnswers(t *testing.T) {
	for caps, less := range conditions() {
		for _, size := range []int{10, 3*part + 5} {
			for name, most := range map[string]int{"PUT": 1, "CREATE MULTIPART": 1, "PUT PART": 4, "COMPLETE MULTIPART": 1} {
				if (name == "PUT") != (size == 10) {
					continue
				}
				for at := 1; at <= most; at++ {
					for _, f := range []fate{lose, fail} {
						t.Run(fmt.Sprint(caps, size, name, at, f), func(t *testing.T) {
							w := newWorld(t, Options{}, less)
							data := random(5, size)
							j := Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: NewToken()}
							j.Began = func(u Upload) error { j.Upload = u; return nil }
							w.does(name, nth(at, f))
							out, err := w.p.Publish(t.Context(), j)
							// Without checksums, and with ETags that are not S3's, nobody can tell what is there.
							dark := caps == "no checksums" && name == "COMPLETE MULTIPART"
							if settled := err == nil; settled != (f == lose && (name == "PUT" || name == "COMPLETE MULTIPART") && !dark) {
								t.Errorf("the first try: %v", err)
							}
							if err != nil {
								if !objstore.KindOf(err).Temporary() {
									t.Errorf("the first try: %v", err)
								}
								out = w.publish(j)
							}
							w.has("k", data)
							sums(t, out, data)
							if n := strings.Count(w.took(), "COMPLETE"); size > part && f == lose && n > 1 && !dark {
								t.Errorf("completed %d times", n)
							}
						})
					}
				}
			}
		}
	}
}

// TestKilled: a try that ends at any request, its process killed, is taken up by the next one.
func TestKilled(t *testing.T) {
	data := random(6, 4*part+9)
	for at := 1; at <= 7; at++ {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			w := newWorld(t, Options{Parallel: 1})
			ctx, kill := context.WithCancel(t.Context())
			n := 0
			w.hook = func(op objstore.Op, _ int) (fate, func()) { // one request at a time, see Parallel
				if n++; n == at {
					return pass, kill
				}
				return pass, nil
			}
			j := Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: NewToken()}
			j.Began = func(u Upload) error { j.Upload = u; return nil }
			if _, err := w.p.Publish(ctx, j); err == nil && at != 7 {
				t.Fatal("not killed")
			}
			w.took()
			w.hook = nil
			// The next process has another publisher, and the journal's record.
			out := w.publish(j)
			w.has("k", data)
			sums(t, out, data)
			got := w.took()
			want := map[int]string{
				1: "LIST PARTS, PUT PART x5, COMPLETE MULTIPART",
				3: "LIST PARTS, PUT PART x3, COMPLETE MULTIPART",
				6: "LIST PARTS, COMPLETE MULTIPART",
				7: "LIST PARTS, HEAD",
			}[at]
			if want != "" && got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestTokenIsNotContent: an object that an earlier try put there is replaced when the file has
// changed since.
func TestTokenIsNotContent(t *testing.T) {
	for caps, less := range conditions() {
		for _, size := range []int{10, 3 * part} {
			t.Run(fmt.Sprint(caps, size), func(t *testing.T) {
				w := newWorld(t, Options{}, less)
				j := Job{Key: "k", File: file(t, random(7, size)), IfNoneMatch: true, Token: NewToken()}
				j.Began = func(u Upload) error { j.Upload = u; return nil }
				w.publish(j) // and nobody learned of it
				data := random(8, size)
				writeAt(t, j.File, data, 0)
				w.publish(j)
				w.has("k", data)
			})
		}
	}
}

// TestUploadVanishes: one that was aborted by a lifecycle rule begins anew.
func TestUploadVanishes(t *testing.T) {
	for _, name := range []string{"PUT PART", "COMPLETE MULTIPART"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			var up []Upload
			data := random(9, 3*part)
			j := Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: NewToken(), Began: func(u Upload) error { up = append(up, u); return nil }}
			w.hook = func(op objstore.Op, n int) (fate, func()) {
				if op.Name == name && n == 1 {
					if err := w.mem.AbortMultipart(t.Context(), "k", up[0].ID); err != nil {
						t.Error(err)
					}
				}
				return pass, nil
			}
			w.publish(j)
			w.has("k", data)
			if len(up) != 2 {
				t.Errorf("uploads: %+v", up)
			}
		})
	}
	t.Run("always", func(t *testing.T) {
		w := newWorld(t, Options{})
		w.does("PUT PART", func(int) fate { return gone })
		_, err := w.p.Publish(t.Context(), Job{Key: "k", File: file(t, random(9, 3*part))})
		if !errors.Is(err, errGone) || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("got %v", err)
		}
	})
}

// TestConditionFlickers: a store that denies a condition that holds (409 of two at once) is asked
// again, but not for ever.
func TestConditionFlickers(t *testing.T) {
	w := newWorld(t, Options{})
	w.does("PUT", nth(1, unmet))
	w.publish(Job{Key: "k", File: file(t, []byte("x")), IfNoneMatch: true, Token: "t"})
	w.wantTook("PUT, HEAD, PUT")
	w.does("PUT", func(int) fate { return unmet })
	if _, err := w.p.Publish(t.Context(), Job{Key: "l", File: file(t, []byte("x")), IfNoneMatch: true, Token: "t"}); err == nil || !strings.Contains(err.Error(), `"l"`) {
		t.Errorf("got %v", err)
	}
}

// TestCorrupt: what arrives as something else is sent again, once; then the error names the key.
func TestCorrupt(t *testing.T) {
	for _, name := range []string{"PUT", "PUT PART", "COMPLETE MULTIPART"} {
		t.Run(name, func(t *testing.T) {
			size := 10
			if name != "PUT" {
				size = 3 * part
			}
			w := newWorld(t, Options{})
			data := random(10, size)
			w.does(name, nth(1, spoil))
			out := w.publish(Job{Key: "k", File: file(t, data), IfNoneMatch: true})
			w.has("k", data)
			sums(t, out, data)
			w.does(name, func(int) fate { return spoil })
			_, err := w.p.Publish(t.Context(), Job{Key: "l", File: file(t, data)})
			if !objstore.Is(err, objstore.Corrupt) || !strings.Contains(err.Error(), `"l"`) {
				t.Errorf("got %v", err)
			}
			if _, err := w.mem.Head(t.Context(), "l", objstore.HeadOptions{}); !objstore.Is(err, objstore.NotFound) {
				t.Errorf("it is there: %v", err)
			}
		})
	}
}

// liar is a store that keeps something else than it is given, and says so.
type liar struct {
	objstore.Store
	lies int
}

func (l *liar) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	if l.lies == 0 {
		return l.Store.Put(ctx, key, src, opt)
	}
	l.lies--
	opt.Checksum = objstore.Checksum{}
	return l.Store.Put(ctx, key, &view{c: &content{over: &Overlay{}}, n: src.Size(), pieces: []piece{{Range{0, src.Size()}, nowhere}}}, opt)
}

// TestStoreLies: an object that the store took otherwise than it was is not accepted.
func TestStoreLies(t *testing.T) {
	w := newWorld(t, Options{})
	l := &liar{Store: w.mem, lies: 1}
	p := New(l, Options{})
	defer p.Close()
	j := Job{Key: "k", File: file(t, []byte("truth")), IfNoneMatch: true, Token: NewToken()}
	if _, err := p.Publish(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	w.has("k", []byte("truth"))
	l.lies, j.Key = 2, "l"
	if _, err := p.Publish(t.Context(), j); !objstore.Is(err, objstore.Corrupt) {
		t.Errorf("got %v", err)
	}
}

// TestUploadToken: an object carries the token of the upload that it was made by, also when the
// publication has another by now.
func TestUploadToken(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t, Options{})
		data := random(11, 4*part)
		j := Job{Key: "k", File: file(t, data), IfNoneMatch: true, Token: "first"}
		j.Began = func(u Upload) error { j.Upload = u; return nil }
		if stream {
			st := w.p.Stream(t.Context(), j)
			st.Grown(4 * part)
			w.until("PUT PART", 3)
			w.does("COMPLETE MULTIPART", nth(1, lose))
			j.Token = "second"
			if _, err := st.Finish(t.Context(), j); err != nil {
				t.Error(err)
			}
		} else {
			w.publish(j)
			j.Token = "second"
			w.publish(j)
		}
		w.has("k", data)
		if o, err := w.mem.Head(t.Context(), "k", objstore.HeadOptions{}); err != nil || TokenOf(o) != "first" {
			t.Errorf("%+v, %v", o, err)
		}
	}
}
