package fs

import (
	"fmt"
	"os"
	"testing"
)

// TestEmptyIsWritten: who has an empty file open when it is published sees what is written to it afterwards, and who opens it for that is
// not refused; also after a takeover, though what was opened before that stays empty.
func TestEmptyIsWritten(t *testing.T) {
	for _, pass := range []bool{true, false} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("passthrough=%v takeover=%v", pass, taken), func(t *testing.T) {
				p, _ := writing(t, pass)
				w, err := p.openFile(t, "a", os.O_CREATE|os.O_WRONLY, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				r, err := p.openFile(t, "a", os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				w.close()
				p.wantEmptyBucket(t, "a")
				if taken {
					p.takeOver(t)
				}
				p.steps(t, "append a 1")
				if b, err := r.all(); err != nil || string(b) != "1" && !(taken && pass && len(b) == 0) {
					t.Errorf("who has it open reads %q, %v", b, err)
				}
				if size, err := r.size(); err != nil || size != 1 && !(taken && pass && size == 0) {
					t.Errorf("to who has it open it has %d bytes, %v", size, err)
				}
				p.wantFile(t, "a", "1")
				p.steps(t, "append a 2", "drain", "mv a b", "append b 3")
				p.wantFile(t, "b", "123")
				r.close()
				p.wantBucket(t, map[string]string{"b": "123"})
			})
		}
	}
}

func (p *program) wantEmptyBucket(t *testing.T, name string) {
	t.Helper()
	p.drain(t)
	if b, ok := bucket(t, p.store)[name]; !ok || b != "" {
		t.Fatalf("the bucket has %q, %v", b, ok)
	}
}

// TestFilledAndChanged: who opened an empty file sees what it becomes, and what becomes of that after it was published
// and opened by others.
func TestFilledAndChanged(t *testing.T) {
	for _, pass := range []bool{true, false} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("passthrough=%v takeover=%v", pass, taken), func(t *testing.T) {
				p, _ := writing(t, pass)
				if err := p.put(t, "a", nil); err != nil {
					t.Fatal(err)
				}
				p.drain(t)
				r, err := p.openFile(t, "a", os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer r.close()
				want := ""
				for _, more := range []string{"1", "2", "3"} {
					want += more
					p.steps(t, "append a "+more, "drain")
					if taken {
						p.takeOver(t)
					}
					p.wantFile(t, "a", want)
					if b, err := r.all(); err != nil || string(b) != want {
						t.Errorf("who has it open reads %q, %v; want %q", b, err, want)
					}
					if size, err := r.size(); err != nil || size != int64(len(want)) {
						t.Errorf("to who has it open it has %d bytes, %v; want %d", size, err, len(want))
					}
				}
				p.wantBucket(t, map[string]string{"a": want})
			})
		}
	}
}
