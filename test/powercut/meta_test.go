package powercut

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

func openIndex(dir string) (*meta.DB, meta.Inode, error) {
	db, err := meta.Open(meta.Options{Dir: filepath.Join(dir, "index"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Ballast: 1 << 20, Floor: 1 << 20})
	if err != nil {
		return nil, meta.Inode{}, err
	}
	root, err := db.Origin("o", "")
	return db, root, err
}

// childMetaWrite inserts names and says each number that it was given, as soon as it has it, and each
// name that it has synced: "given INO ID" and "synced NAME INO". Ends without closing the index.
func childMetaWrite(args []string) error {
	dir, acks := args[0], args[1]
	ack, err := os.OpenFile(acks, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	db, root, err := openIndex(dir)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(ack, "given %d %d", root.Ino, 0); err != nil {
		return err
	}
	for i := range 30 {
		var synced []string
		for j := range 40 {
			in, err := db.Insert(root.Ino, meta.Inode{Name: fmt.Sprintf("n-%d-%d", i, j), Kind: meta.KindFile, Flags: meta.Local,
				Object: meta.Object{ETag: strings.Repeat("e", 100*(j%20)), Size: int64(i*1000 + j)}})
			if err != nil {
				return err
			}
			id, err := db.NewID()
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(ack, "given %d %d", in.Ino, id); err != nil {
				return err
			}
			synced = append(synced, fmt.Sprintf("%s %d", in.Name, in.Ino))
		}
		if err := db.Sync(); err != nil {
			return err
		}
		for _, s := range synced {
			if _, err := fmt.Fprintf(ack, "synced %s", s); err != nil {
				return err
			}
		}
	}
	return nil
}

// childMetaCheck opens the index after a cut and compares it with what stdin says was promised.
func childMetaCheck(args []string) error {
	facts, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	db, root, err := openIndex(args[0])
	if err != nil {
		return err
	}
	var topIno meta.Ino
	var topID cache.ID
	lost, all := 0, 0
	var first string
	for line := range strings.Lines(string(facts)) {
		var ino meta.Ino
		var id cache.ID
		var name string
		switch {
		case strings.HasPrefix(line, "given "):
			if _, err := fmt.Sscanf(line, "given %d %d", &ino, &id); err != nil {
				return err
			}
			topIno, topID = max(topIno, ino), max(topID, id)
		default:
			if _, err := fmt.Sscanf(line, "synced %s %d", &name, &ino); err != nil {
				return err
			}
			all++
			in, err := db.Lookup(root.Ino, name)
			if err == nil && (in.Ino != ino || in.Flags&meta.Local == 0) {
				err = fmt.Errorf("is %+v, not inode %d", in, ino)
			}
			if err != nil {
				if lost++; lost == 1 {
					first = fmt.Sprintf("%s: %v", name, err)
				}
			}
		}
	}
	var errs []error
	if lost > 0 {
		errs = append(errs, fmt.Errorf("rebuilt: %v; %d of %d synced names are not as they were; the first: %s", db.Rebuilt(), lost, all, first))
	}
	in, err := db.Insert(root.Ino, meta.Inode{Name: "later", Kind: meta.KindFile})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	id, err := db.NewID()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if in.Ino <= topIno || id <= topID {
		errs = append(errs, fmt.Errorf("the next numbers are inode %d and id %d; %d and %d were given out before", in.Ino, id, topIno, topID))
	}
	return errors.Join(append(errs, db.Close())...)
}

// What Sync of the index had promised is there after any cut, and no number is given out twice.
func TestIndex(t *testing.T) {
	Both(t, func(t *testing.T, fs FS) {
		d := New(t, Options{FS: fs})
		if _, err := output(d.Boot(child("meta-write", d.Dir(), d.AckFile()), 1)); err != nil {
			t.Fatal(err)
		}
		d.Check(d.Cuts(Number(t, 30, 150), 3), func(a *After) error {
			cmd := d.Boot(child("meta-check", a.Dir), 2)
			cmd.Stdin = strings.NewReader(strings.Join(a.Acked, "\n"))
			_, err := output(cmd)
			return err
		})
	})
}
