package meta

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/leatfs/leatfs/cache"
)

// audit reads the whole database and tells what does not fit together.
func audit(db *DB) error {
	return db.view(func(tx *badger.Txn) error {
		it := tx.NewIterator(badger.IteratorOptions{})
		defer it.Close()
		links, dirty, tombs := 0, 0, 0
		bodies, places, removed, kept, records, idents := 0, 0, 0, 0, 0, 0
		for it.Rewind(); it.Valid(); it.Next() {
			k := it.Item().KeyCopy(nil)
			v, err := it.Item().ValueCopy(nil)
			if err != nil {
				return err
			}
			bad := func(err error) error { return fmt.Errorf("key %q: %w", k, err) }
			switch k[0] {
			case keyDentry:
				var in Inode
				if err := decodeDentry(v, getIno(k[1:]), string(k[1+inoLen:]), &in); err != nil {
					return bad(err)
				}
				p, err := readPlace(tx, in.Ino)
				if isRef(&in) {
					if err != nil || p.at == nil || p.at.Flags&Removed != 0 {
						return bad(fmt.Errorf("leads to %d: %+v, %w", in.Ino, p, err))
					}
					if has, err := hasKey(tx, nameOf(in.Ino, in.Parent, in.Name)); err != nil || !has {
						return bad(fmt.Errorf("not among the names of %d, %w", in.Ino, err))
					}
					links++
					continue
				}
				if err != nil || p.at != nil || p.parent != in.Parent || p.name != in.Name || in.Flags&Removed != 0 {
					return bad(fmt.Errorf("inode %d is elsewhere: %+v, %w", in.Ino, p, err))
				}
				bodies++
			case keyInode:
				var in Inode
				if err := readInode(tx, getIno(k[1:]), &in); err != nil {
					return bad(err)
				}
				p, _ := readPlace(tx, in.Ino)
				linked := p.at != nil && in.Flags&Removed == 0 && in.Parent != in.Ino
				if linked {
					names := listNames(tx, in.Ino)
					if len(names) != int(in.Links)+1 || !slices.Contains(names, Name{in.Parent, in.Name}) {
						return bad(fmt.Errorf("%+v has names %v", in, names))
					}
				}
				if (p.at != nil) != (in.Flags&Removed != 0 || in.Parent == in.Ino || linked) || p.at == nil && in.Links != 0 {
					return bad(errors.New("body in the wrong place"))
				}
				if p.at == nil {
					places++
				} else if in.Flags&Removed != 0 {
					removed++
					if _, err := tx.Get(removedKey(p.since, in.Ino)); err != nil {
						return bad(err)
					}
				}
			case keyName:
				var in Inode
				if err := readEntry(tx, getIno(k[1+inoLen:]), string(k[1+2*inoLen:]), &in); err != nil || !isRef(&in) || in.Ino != getIno(k[1:]) {
					return bad(fmt.Errorf("the name has %+v, %w", in, err))
				}
				links--
			case keyDirty:
				d, err := decodeDirty(getIno(k[1:]), v)
				if err != nil {
					return bad(err)
				}
				if _, err := readPlace(tx, d.Ino); err != nil {
					return bad(err)
				}
				dirty++
			case keyTomb:
				if _, err := decodeTomb(string(k[1:]), v); err != nil {
					return bad(err)
				}
				tombs++
			case keyXattr, keyTimes, keyLocal, keyListing:
				if _, err := readPlace(tx, getIno(k[1:])); err != nil {
					return bad(err)
				}
			case keyRemoved:
				removed--
			case keyKept:
				in, err := readKept(tx, getIno(k[1:]), getGen(k[1+inoLen:]))
				if err != nil {
					return bad(err)
				}
				if _, err := tx.Get(agedKey(in.since, in.at.Ino, in.at.Gen)); err != nil {
					return bad(err)
				}
				var now Inode
				if err := readInode(tx, in.at.Ino, &now); err == nil && now.Gen == in.at.Gen || err != nil && !errors.Is(err, ErrNotFound) {
					return bad(fmt.Errorf("inode %d is at generation %d, %w", now.Ino, now.Gen, err))
				}
				kept++
			case keyAged:
				kept--
			case keyRecord:
				r, err := decodeRecord(cache.ID(be64(k[1:])), v)
				if err != nil {
					return bad(err)
				}
				if id, err := readIdent(tx, r.Identity.Hash()); err != nil || id != r.ID {
					return bad(fmt.Errorf("identity leads to %d, %w", id, err))
				}
				// Everything of a record was written in one batch.
				for n := range uint32(3) {
					if _, err := tx.Get(extentKey(r.ID, n)); err != nil {
						return bad(err)
					}
				}
				if _, err := tx.Get(idKey(keyUsage, r.ID)); err != nil {
					return bad(err)
				}
				records++
			case keyIdent:
				idents++
			case keyExtent, keyUsage:
				if _, err := tx.Get(idKey(keyRecord, cache.ID(be64(k[1:9])))); err != nil {
					return bad(err)
				}
			}
		}
		if links != 0 || dirty != db.DirtyCount() || tombs != db.TombCount() {
			return fmt.Errorf("%d links without a name, %d dirty of %d, %d tombs of %d", links, dirty, db.DirtyCount(), tombs, db.TombCount())
		}
		if bodies != places || removed != 0 || kept != 0 || records != idents {
			return fmt.Errorf("%d bodies, %d places, %d more or less removed, %d kept, %d records, %d identities",
				bodies, places, removed, kept, records, idents)
		}
		return nil
	})
}

// childChurn audits an index and then changes it from several goroutines until it is killed. It
// prints numbers given out and a count, each after it is in the index.
func childChurn(args []string) error {
	db, err := Open(Options{Dir: args[0], Log: childLog(), Ballast: 1 << 20, Floor: 1 << 20})
	if err != nil {
		return err
	}
	if db.Rebuilt() {
		return errors.New("rebuilt")
	}
	if err := audit(db); err != nil {
		return err
	}
	r, err := db.Origin("o", "")
	if err != nil {
		return err
	}
	count, err := db.Lookup(r.Ino, "count")
	if errors.Is(err, ErrNotFound) {
		count, err = db.Insert(r.Ino, Inode{Name: "count", Kind: KindFile, Flags: Local})
	}
	if err != nil {
		return err
	}
	// Every generation it had is known, with what it was then.
	for gen, size := count.Gen, count.Object.Size; gen > 0 && count.Gen-gen < 200; {
		gen--
		in, err := db.InodeAt(count.Ino, gen)
		if err != nil || in.Object.Size >= size {
			return fmt.Errorf("generation %d of %d: %+v, %w", gen, count.Gen, in, err)
		}
		size = in.Object.Size
	}
	if err := checkPairs(db, r.Ino); err != nil {
		return err
	}
	fmt.Println("count", count.Object.Size)
	fmt.Println("pairs", db.DirtyCount())
	var unique atomic.Uint64
	unique.Store(uint64(time.Now().UnixNano()))
	seed, _ := strconv.ParseUint(args[1], 10, 64)
	failed := make(chan error, 8)
	var out sync.Mutex
	say := func(what string, n uint64) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(what, n)
	}
	var began atomic.Int64
	began.Store(count.Object.Size + 1)
	worker := func(n uint64, do func(rnd *rand.Rand) error) {
		rnd := rand.New(rand.NewPCG(seed, n))
		for {
			if err := do(rnd); err != nil {
				failed <- fmt.Errorf("worker %d: %w", n, err)
				return
			}
		}
	}
	for n := range uint64(2) {
		go worker(n, func(rnd *rand.Rand) error { // listings
			p := fillPage(rnd.IntN(20)*500, 500+rnd.IntN(1000))
			p.Began = 1
			for i := range p.Objects {
				if rnd.IntN(3) == 0 {
					p.Objects[i].Size = int64(rnd.IntN(10))
				}
			}
			if rnd.IntN(4) == 0 {
				p.Objects = p.Objects[:rnd.IntN(len(p.Objects))]
			}
			_, err := db.Merge(r.Ino, p)
			return err
		})
	}
	go worker(2, func(rnd *rand.Rand) error { // single changes
		size := began.Add(1)
		if _, err := db.Update(count.Ino, func(in *Inode) error {
			in.Object.Size = size
			in.Gen++
			return nil
		}); err != nil {
			return err
		}
		say("count", uint64(size))
		in, err := db.Insert(r.Ino, Inode{Name: "single" + strconv.Itoa(rnd.IntN(50)), Kind: KindDir})
		if errors.Is(err, ErrExist) {
			return db.Remove(r.Ino, in.Name)
		}
		if err == nil {
			say("ino", uint64(in.Ino))
			_, err = db.Insert(in.Ino, Inode{Name: "x", Kind: KindFile})
		}
		return err
	})
	go worker(3, func(rnd *rand.Rand) error { // the cache
		id, err := db.NewID()
		if err != nil {
			return err
		}
		var b cache.Batch
		b.Records = []cache.Record{{ID: id, Identity: cache.Identity{Origin: "o", Key: strconv.FormatUint(uint64(id), 10)}}}
		for n := range uint32(3) {
			b.Extents = append(b.Extents, cache.ExtentKey{ID: id, N: n, Extent: cache.Extent{CRC: make([]uint64, 1000)}})
		}
		b.Usages = []cache.Usage{{ID: id}}
		for range rnd.IntN(3) {
			b.Delete = append(b.Delete, cache.ID(1+rnd.Uint64N(uint64(id))))
		}
		if len(b.Delete) > 0 && b.Delete[0] == id {
			return nil
		}
		if err := db.Apply(b); err != nil {
			return err
		}
		say("id", uint64(id))
		return nil
	})
	go worker(5, func(rnd *rand.Rand) error { return churnPair(db, r.Ino, rnd, &unique) })
	go worker(6, func(rnd *rand.Rand) error { return churnPair(db, r.Ino, rnd, &unique) })
	go worker(4, func(*rand.Rand) error {
		_, err := db.Purge(time.Now().Add(-20*time.Millisecond).UnixNano(), 5000,
			func(ino Ino, gen uint32) bool { return ino == count.Ino || ino%7 == 0 })
		return errors.Join(err, db.Sync())
	})
	return <-failed
}

// pairs is how many directories churnPair has.
const pairs = 4

// churnPair changes what belongs together, in one transaction: a file of a directory "pairN" with
// another name in the next one, its Dirty, its tomb, and a result that says which file it is.
func churnPair(db *DB, root Ino, rnd *rand.Rand, unique *atomic.Uint64) error {
	n := rnd.IntN(pairs)
	dirOf := func(tx *Tx, n int) (Inode, error) {
		name := "pair" + strconv.Itoa(n%pairs)
		in, err := tx.Lookup(root, name)
		if errors.Is(err, ErrNotFound) {
			in, err = tx.Insert(root, Inode{Name: name, Kind: KindDir, Flags: Local})
		}
		return in, err
	}
	name := "p" + strconv.Itoa(rnd.IntN(5))
	req := Request{Session: 3, Unique: unique.Add(1)}
	var text string
	err := db.Do(func(tx *Tx) error {
		a, err := dirOf(tx, n)
		if err != nil {
			return err
		}
		b, err := dirOf(tx, n+1)
		if err != nil {
			return err
		}
		text = fmt.Sprintf("%d/%s", a.Ino, name)
		in, err := tx.Lookup(a.Ino, name)
		switch {
		case errors.Is(err, ErrNotFound):
			if in, err = tx.Insert(a.Ino, Inode{Name: name, Kind: KindFile, Flags: Local}); err != nil {
				return err
			}
			if _, err := tx.Link(in.Ino, b.Ino, name+"-other"); err != nil {
				return err
			}
			if err := tx.SetDirty(&Dirty{Ino: in.Ino, Seq: db.NextSeq(), Token: text}); err != nil {
				return err
			}
			err = tx.SetTomb(&Tomb{Key: text, Needed: in.Ino})
		case err == nil:
			if _, err := tx.Remove(a.Ino, name); err != nil {
				return err
			}
			if _, err := tx.Remove(b.Ino, name+"-other"); err != nil {
				return err
			}
			if err := tx.ClearDirty(in.Ino, true); err != nil {
				return err
			}
			err = tx.ClearTomb(text)
			in.Ino = 0
		}
		if err != nil {
			return err
		}
		// The last result of a name is that of the last change: the one before is forgotten.
		if err := tx.SetXattr(a.Ino, "user."+name, fmt.Append(nil, in.Ino, req.Unique)); err != nil {
			return err
		}
		tx.Result(&in)
		return nil
	}, For(req, 7, func(*Inode) []byte { return []byte(text) }))
	return err
}

// checkPairs tells what of churnPair's is there in part.
func checkPairs(db *DB, root Ino) error {
	files := 0
	for n := range pairs {
		a, err := db.Lookup(root, "pair"+strconv.Itoa(n))
		if errors.Is(err, ErrNotFound) {
			continue
		}
		b, err2 := db.Lookup(root, "pair"+strconv.Itoa((n+1)%pairs))
		made := err2 == nil
		if errors.Is(err2, ErrNotFound) {
			err2 = nil // killed when the pair before had been changed only: nothing may be in this one
		}
		if err != nil || err2 != nil {
			return fmt.Errorf("pair %d: %w", n, errors.Join(err, err2))
		}
		for i := range 5 {
			name := "p" + strconv.Itoa(i)
			text := fmt.Sprintf("%d/%s", a.Ino, name)
			in, err := db.Lookup(a.Ino, name)
			other, errOther := db.Lookup(b.Ino, name+"-other")
			tomb, errTomb := db.Tomb(text)
			there := err == nil
			if there && !made {
				return fmt.Errorf("%s: the directory of its other name is missing", text)
			}
			if there != (errOther == nil) || there != (errTomb == nil) || in.Ino != other.Ino || tomb.Needed != in.Ino {
				return fmt.Errorf("%s: %+v, %w; %+v, %w; %+v, %w", text, in, err, other, errOther, tomb, errTomb)
			}
			if there {
				files++
				if d, err := db.Dirty(in.Ino); err != nil || d.Token != text || in.Links != 1 {
					return fmt.Errorf("%s: %+v, %w", text, d, err)
				}
			}
			v, err := db.Xattr(a.Ino, "user."+name)
			if errors.Is(err, ErrNotFound) && !there {
				continue
			}
			var ino Ino
			var unique uint64
			if _, err := fmt.Sscan(string(v), &ino, &unique); err != nil || ino != in.Ino {
				return fmt.Errorf("%s: attribute %q, %w, for %d", text, v, err, in.Ino)
			}
			res, ok, err := db.Result(Request{Session: 3, Unique: unique})
			if err != nil || !ok || res.Ino != in.Ino || string(res.Data) != text {
				return fmt.Errorf("%s: result %d of %+v: %+v, %v, %w", text, unique, in, res, ok, err)
			}
		}
	}
	if files != db.DirtyCount() {
		return fmt.Errorf("%d files, %d dirty", files, db.DirtyCount())
	}
	return nil
}

// TestKill kills a process that changes an index, again and again. What it said it had done
// is there, nothing is half done, and no number comes twice.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(1, 2))
	var count, ino, id, files uint64
	for round := range 12 {
		cmd := child("churn", dir, strconv.Itoa(round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		first := true
		lowest := map[string]uint64{"ino": ino, "id": id}
		for {
			line, err := lines.ReadString('\n')
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			var what string
			var n uint64
			if _, err := fmt.Sscan(line, &what, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if first {
				if what != "count" || n < count {
					t.Fatalf("round %d: got %s %d, want at least %d", round, what, n, count)
				}
				first = false
				time.AfterFunc(time.Duration(20+rnd.IntN(600))*time.Millisecond, func() { _ = cmd.Process.Kill() })
			}
			if low, ok := lowest[what]; ok && n <= low {
				t.Fatalf("round %d: %s %d was given out before", round, what, n)
			}
			switch what {
			case "count":
				count = n
			case "ino":
				ino = max(ino, n)
			case "id":
				id = max(id, n)
			case "pairs":
				files = max(files, n)
			}
		}
		var status interface{ Signaled() bool }
		if err := cmd.Wait(); err != nil {
			status, _ = cmd.ProcessState.Sys().(interface{ Signaled() bool })
		}
		if status == nil || !status.Signaled() {
			t.Fatalf("round %d: the process ended by itself: %v", round, cmd.ProcessState)
		}
	}
	t.Logf("%d counted, inode %d, ID %d, up to %d pairs", count, ino, id, files)
	if count == 0 || ino == 0 || id == 0 || files == 0 {
		t.Fatal("nothing was done")
	}
}
