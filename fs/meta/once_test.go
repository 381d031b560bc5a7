package meta

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// order is a request as it is sent to the process that serves, one line of text.
type order struct {
	unique uint64
	resent bool
	op     string // insert, remove or add
	name   string
	by     int64  // for add
	die    string // where the process is to kill itself: "-", before, after or answered
}

// answer is what it answers; a line too.
type answer struct {
	unique uint64
	err    string // "-", exists or missing
	ino    Ino
	gen    uint32
	size   int64
}

const (
	orderFormat  = "%d %t %s %s %d %s\n"
	answerFormat = "%d %s %d %d %d\n"
)

// childOnce serves orders from standard input.
func childOnce(args []string) error {
	db, err := Open(Options{Dir: args[0], Log: childLog(), Ballast: 1 << 20, Floor: 1 << 20})
	if err != nil {
		return err
	}
	r, err := db.Origin("o", "")
	if err != nil {
		return err
	}
	const session = 7
	if err := db.PurgeResults(session); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	for {
		var o order
		if _, err := fmt.Fscanf(in, orderFormat, &o.unique, &o.resent, &o.op, &o.name, &o.by, &o.die); err != nil {
			return err
		}
		die := func(where string) {
			if o.die == where {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		die("before")
		req := Request{Session: session, Unique: o.unique}
		a, err := serveOnce(db, r.Ino, req, &o)
		if err != nil {
			return err
		}
		die("after")
		fmt.Printf(answerFormat, a.unique, a.err, a.ino, a.gen, a.size)
		die("answered")
		db.Answered(req)
	}
}

// serveOnce does what one who serves the kernel does with a request.
func serveOnce(db *DB, root Ino, req Request, o *order) (answer, error) {
	a := answer{unique: o.unique, err: "-"}
	if o.resent {
		res, ok, err := db.Result(req)
		if err != nil {
			return a, err
		}
		if ok {
			a.ino, a.gen = res.Ino, res.Gen
			_, err := fmt.Sscan(string(res.Data), &a.size)
			return a, err
		}
	}
	record := For(req, 1, func(in *Inode) []byte { return fmt.Append(nil, in.Object.Size) })
	var in Inode
	var err error
	switch o.op {
	case "insert":
		in, err = db.Insert(root, Inode{Name: o.name, Kind: KindFile}, record)
	case "remove":
		in, _, err = db.RemoveIf(root, o.name, func(*Inode, *Listing) bool { return true }, record)
	case "add":
		if in, err = db.Lookup(root, o.name); err == nil {
			in, err = db.Update(in.Ino, func(in *Inode) error {
				in.Object.Size += o.by
				in.Gen++
				return nil
			}, record)
		}
	}
	switch {
	case errors.Is(err, ErrExist):
		a.err = "exists"
	case errors.Is(err, ErrNotFound):
		a.err = "missing"
	case err != nil:
		return a, err
	default:
		a.ino, a.gen, a.size = in.Ino, in.Gen, in.Object.Size
	}
	return a, nil
}

// server is a childOnce and what leads to it.
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func serve(t *testing.T, dir string) *server {
	t.Helper()
	s := &server{cmd: child("once", dir)}
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// dead waits for its end, which must be a kill.
func (s *server) dead(t *testing.T) {
	t.Helper()
	s.in.Close()
	_ = s.cmd.Wait()
	if ws, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() {
		t.Fatalf("the process ended by itself: %v", s.cmd.ProcessState)
	}
}

// TestOnce kills the process that carries changes out before, within and after them, and sends
// those that were not answered again. The state is that of each carried out once, and so is
// every answer.
func TestOnce(t *testing.T) {
	const kills = 60
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(3, 4))
	type file struct {
		ino  Ino
		gen  uint32
		size int64
	}
	model := map[string]file{}
	highest := Ino(0)
	var unique uint64
	killed, known := map[string]int{}, 0
	s := serve(t, dir)
	for n := 0; n < kills; {
		unique += 2
		o := order{unique: unique, op: []string{"insert", "remove", "add", "add"}[rnd.IntN(4)],
			name: []string{"a", "b", "c"}[rnd.IntN(3)], by: 1 + rnd.Int64N(100), die: "-"}
		f, have := model[o.name]
		want := answer{unique: unique, err: "-"}
		switch {
		case o.op == "insert" && have:
			want.err = "exists"
		case o.op == "insert":
			f = file{}
		case !have:
			want.err = "missing"
		case o.op == "add":
			f.gen, f.size = f.gen+1, f.size+o.by
		}
		async := time.Duration(-1)
		if rnd.IntN(4) == 0 {
			switch o.die = []string{"before", "after", "after", "answered", "async"}[rnd.IntN(5)]; o.die {
			case "async":
				o.die, async = "-", time.Duration(rnd.IntN(400))*time.Microsecond
				killed["async"]++
			default:
				killed[o.die]++
			}
			n++
		}
		var got answer
		for {
			fmt.Fprintf(s.in, orderFormat, o.unique, o.resent, o.op, o.name, o.by, o.die)
			if async >= 0 {
				time.Sleep(async)
				_ = s.cmd.Process.Kill()
			}
			line, err := s.out.ReadString('\n')
			if err == nil {
				if _, err := fmt.Sscanf(line, answerFormat, &got.unique, &got.err, &got.ino, &got.gen, &got.size); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
			}
			dies := async >= 0 || o.die != "-"
			if dies {
				s.dead(t)
				s = serve(t, dir)
			}
			if err == nil {
				break
			}
			if !dies {
				t.Fatalf("request %+v: %v", o, err)
			}
			if o.die == "after" && want.err == "-" {
				known++
			}
			o.resent, o.die, async = true, "-", -1
		}
		if want.err == "-" {
			if o.op == "insert" {
				if got.ino <= highest {
					t.Fatalf("request %+v: inode %d was given out before", o, got.ino)
				}
				f.ino, highest = got.ino, got.ino
			}
			want.ino, want.gen, want.size = f.ino, f.gen, f.size
		}
		if got != want {
			t.Fatalf("request %+v: got %+v, want %+v", o, got, want)
		}
		switch {
		case want.err != "-":
		case o.op == "remove":
			delete(model, o.name)
		default:
			model[o.name] = f
		}
	}
	_ = s.cmd.Process.Kill()
	s.dead(t)
	db := openAt(t, dir)
	r, err := db.Origin("o", "")
	if err != nil {
		t.Fatal(err)
	}
	state := map[string]file{}
	if err := db.Readdir(r.Ino, "", 0, func(in Inode) bool {
		state[in.Name] = file{in.Ino, in.Gen, in.Object.Size}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(state), fmt.Sprint(model); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if err := audit(db); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, killed %v, %d changes found carried out", unique/2, killed, known)
	if known == 0 || killed["before"] == 0 || killed["answered"] == 0 || killed["async"] == 0 {
		t.Fatalf("not all that can happen did: %v, %d", killed, known)
	}
}
