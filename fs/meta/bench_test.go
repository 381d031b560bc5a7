package meta

import (
	"fmt"
	"testing"
)

const benchName = "n%08d-%04d.jpg"

func pageName(i int) string { return fmt.Sprintf(benchName, i, i%7919) }

func fillPage(from, n int) Page {
	p := Page{Began: 1}
	for i := range n {
		p.Objects = append(p.Objects, ListedObject{Name: pageName(from + i), Size: 110_000 + int64(i),
			ETag: fmt.Sprintf("%032x", uint64(from+i)*0x9e3779b97f4a7c15), MTime: 1_700_000_000e9})
	}
	if from > 0 {
		p.From = pageName(from - 1)
	}
	p.To = p.Objects[n-1].Name
	return p
}

func fillDir(b testing.TB, db *DB, dir Ino, n int) {
	for i := 0; i < n; i += 1000 {
		if _, err := db.Merge(dir, fillPage(i, min(1000, n-i))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIndex(b *testing.B) {
	const n = 300_000
	db := open(b)
	r := root(b, db)
	b.Run("merge-fresh", func(b *testing.B) {
		dir, err := db.Insert(r.Ino, Inode{Name: fmt.Sprint("m", b.N), Kind: KindDir})
		if err != nil {
			b.Fatal(err)
		}
		var pages []Page
		for i := 0; i < b.N; i += 1000 {
			pages = append(pages, fillPage(i, min(1000, b.N-i)))
		}
		b.ResetTimer()
		for _, p := range pages {
			if _, err := db.Merge(dir.Ino, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	fillDir(b, db, r.Ino, n)
	b.Run("merge-unchanged", func(b *testing.B) {
		p := fillPage(5000, 1000)
		b.ResetTimer()
		for i := 0; i < b.N; i += 1000 {
			if res, err := db.Merge(r.Ino, p); err != nil || res.Unchanged != 1000 {
				b.Fatal(res, err)
			}
		}
	})
	p := fillPage(5000, 1000)
	b.Run("merge-replaced", func(b *testing.B) {
		for i := 0; i < b.N; i += 1000 {
			for j := range p.Objects {
				p.Objects[j].Size++
			}
			if res, err := db.Merge(r.Ino, p); err != nil || res.Altered != 1000 {
				b.Fatal(res, err)
			}
		}
	})
	b.Run("readdir", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; {
			if err := db.Readdir(r.Ino, "", b.N-i, func(Inode) bool { i++; return true }); err != nil {
				b.Fatal(err)
			}
		}
	})
	rnd := func(i int) int { return int(uint64(i) * 0x9e3779b97f4a7c15 >> 20 % n) }
	b.Run("lookup", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			j := rnd(i)
			if _, err := db.Lookup(r.Ino, pageName(j)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lookup-missing", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			j := rnd(i)
			if _, err := db.Lookup(r.Ino, fmt.Sprintf("n%08d-%04dx.jpg", j, j%7919)); err != ErrNotFound {
				b.Fatal(err)
			}
		}
	})
	first, _ := db.Lookup(r.Ino, pageName(0))
	b.Run("inode", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := db.Inode(first.Ino + Ino(rnd(i))); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("update", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := db.Update(first.Ino+Ino(rnd(i)), func(in *Inode) error { in.Checked++; return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("update-generation", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := db.Update(first.Ino+Ino(rnd(i)), func(in *Inode) error { in.Gen++; return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("update-recorded", func(b *testing.B) {
		for i := uint64(1); b.Loop(); i++ {
			req := Request{Session: 1, Unique: i}
			if _, err := db.Update(first.Ino+Ino(rnd(int(i))), func(in *Inode) error { in.Checked++; return nil }, For(req, 1, nil)); err != nil {
				b.Fatal(err)
			}
			db.Answered(req)
		}
	})
}
