package load

import (
	"fmt"
	"path"
)

// Data says which files there are. Large ones are many more bytes than the cache of a mount
// should hold, so that reads of them stay cold; hot ones fit well.
type Data struct {
	Large     int   // files large/NNNN
	LargeSize int64 // bytes of each
	Hot       int   // files hot/NNNN
	HotSize   int64
	Dirs      int // directories small/NNNN
	PerDir    int // files in each, 1 byte to 20 KiB
}

// File is a file of Data.
type File struct {
	Key  string
	Size int64
}

func (d Data) large(i int) File { return File{fmt.Sprintf("large/%04d", i), d.LargeSize} }
func (d Data) hot(i int) File   { return File{fmt.Sprintf("hot/%04d", i), d.HotSize} }

func (d Data) small(dir, i int) File {
	return File{path.Join(smallDir(dir), fmt.Sprintf("%04d", i)), int64(1 + (dir*7919+i*104729)%(20<<10))}
}

func smallDir(dir int) string { return fmt.Sprintf("small/%04d", dir) }

// Files lists all, to be put in the bucket.
func (d Data) Files() (out []File) {
	for i := range d.Hot {
		out = append(out, d.hot(i))
	}
	for i := range d.Large {
		out = append(out, d.large(i))
	}
	for dir := range d.Dirs {
		for i := range d.PerDir {
			out = append(out, d.small(dir, i))
		}
	}
	return out
}
