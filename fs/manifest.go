package fs

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A manifest says what the files of a directory hold. Its lines are those of sha256sum, so that
// "sha256sum -c" checks it too, where no leatfs is; what else is known of a file stands before its line
// in a comment:
//
//	# leatfs manifest 1
//	# 1048576 9a0364b9e99bb480dd25e1f0284c8555-2
//	2f1c…  step-100/shard-0.distcp
//
// The comment is the size in bytes and the ETag of the object, or "-". Names are relative to the
// directory, in byte order; one with a backslash, a newline or a carriage return is written as sha256sum
// does, escaped behind a backslash at the beginning of the line.

// ManifestFile is one file of a manifest.
type ManifestFile struct {
	Path   string // relative to the directory
	SHA256 [32]byte
	Size   int64  // bytes; -1 when not known
	ETag   string // of the object; "" when not known
}

// manifestHead is the first line.
const manifestHead = "# leatfs manifest 1"

// maxManifestLine bounds a line, in bytes: a path of 4096 that is escaped all over fits.
const maxManifestLine = 16 << 10

var (
	manifestEscape   = strings.NewReplacer("\\", "\\\\", "\n", "\\n", "\r", "\\r")
	manifestUnescape = strings.NewReplacer("\\\\", "\\", "\\n", "\n", "\\r", "\r")
)

// WriteManifest writes a manifest of files, which it sorts.
func WriteManifest(w io.Writer, files []ManifestFile) error {
	slices.SortFunc(files, func(a, b ManifestFile) int { return cmp.Compare(a.Path, b.Path) })
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, manifestHead) // b keeps its error for Flush
	for i := range files {
		f := &files[i]
		fmt.Fprintf(b, "# %d %s\n", f.Size, cmp.Or(f.ETag, "-"))
		name, mark := manifestEscape.Replace(f.Path), ""
		if name != f.Path {
			mark = "\\"
		}
		fmt.Fprintf(b, "%s%x  %s\n", mark, f.SHA256, name)
	}
	return b.Flush()
}

// ReadManifest reads a manifest, or what sha256sum has written. An error names the line.
func ReadManifest(r io.Reader) ([]ManifestFile, error) {
	var files []ManifestFile
	seen := make(map[string]bool)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxManifestLine)
	ours := false
	size, etag := int64(-1), ""
	n := 0
	for lines.Scan() {
		n++
		line := lines.Text()
		switch {
		case n == 1 && strings.HasPrefix(line, "# leatfs manifest"):
			if line != manifestHead {
				return nil, fmt.Errorf("line 1: %q is of another version of this program", line)
			}
			ours = true
			continue
		case strings.HasPrefix(line, "#"):
			if ours {
				var err error
				if size, etag, err = manifestComment(line); err != nil {
					return nil, fmt.Errorf("line %d: %w", n, err)
				}
			}
			continue
		case line == "":
			continue
		}
		f, err := manifestLine(line)
		if err == nil && seen[f.Path] {
			err = fmt.Errorf("%q is there twice", f.Path)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		seen[f.Path] = true
		f.Size, f.ETag = size, etag
		size, etag = -1, ""
		files = append(files, f)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	return files, nil
}

func manifestComment(line string) (size int64, etag string, err error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return 0, "", fmt.Errorf("%q is not \"# SIZE ETAG\"", line)
	}
	if size, err = strconv.ParseInt(fields[1], 10, 64); err != nil || size < -1 {
		return 0, "", fmt.Errorf("%q is no size in bytes", fields[1])
	}
	if etag = fields[2]; etag == "-" {
		etag = ""
	}
	return size, etag, nil
}

func manifestLine(line string) (f ManifestFile, err error) {
	text, escaped := strings.CutPrefix(line, "\\")
	sum, name, ok := strings.Cut(text, " ")
	if ok && name != "" && (name[0] == ' ' || name[0] == '*') {
		name = name[1:]
	} else {
		ok = false
	}
	b, err := hex.DecodeString(sum)
	if !ok || err != nil || len(b) != len(f.SHA256) {
		return f, errors.New("it is not \"SHA256  NAME\", as sha256sum writes")
	}
	copy(f.SHA256[:], b)
	if escaped {
		name = manifestUnescape.Replace(name)
	}
	if !filepath.IsLocal(name) {
		return f, fmt.Errorf("%q is not below the directory", name)
	}
	f.Path = filepath.Clean(name)
	return f, nil
}
