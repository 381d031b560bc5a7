package cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mendStages ends what a process that was killed had begun with staging files, before anybody can
// use them, and finds the largest ID. A file that has the label of an object too was on its way from
// one to the other (see TakeStage); where the index has a record of it as such, it is an object
// file, else a staging file.
func (c *Cache) mendStages(d *dir) error {
	var ids []ID
	err := d.stagingNames(func(name string) error {
		if strings.HasPrefix(name, stageNew) { // nobody was told of it
			return os.Remove(filepath.Join(d.staging, name))
		}
		if id, ok := stageID(name); ok {
			ids = append(ids, id)
			c.stageFloor = max(c.stageFloor, id)
		}
		return nil
	})
	for _, id := range ids {
		if err == nil {
			err = c.mendStage(d, id)
		}
	}
	if err != nil {
		return fmt.Errorf("cache directory %s: the staging files cannot be looked through: %w", d.path, explain(err))
	}
	return nil
}

func (c *Cache) mendStage(d *dir, id ID) error {
	staged, file := d.stagePath(id), d.filePath(id)
	if _, err := unix.Lgetxattr(staged, xattrName, nil); errors.Is(err, unix.ENODATA) {
		return nil // by far the most
	} else if err != nil {
		return &os.PathError{Op: "getxattr", Path: staged, Err: err}
	}
	same, err := sameFile(staged, file)
	if err != nil {
		return err
	}
	l, lerr := readLabel(staged)
	rec, err := c.cfg.Index.Record(id)
	if err != nil && !errors.Is(err, ErrNoRecord) {
		return err
	}
	if err == nil && lerr == nil && same && l.State.Complete() && rec.Dir == d.format.Number && rec.Identity.Hash() == l.Identity.Hash() {
		if err := os.Remove(staged); err != nil {
			return err
		}
		return dropXattr(file, stageXattr)
	}
	if same {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return dropXattr(staged, xattrName)
}

// sameFile tells whether b is another name of a.
func sameFile(a, b string) (bool, error) {
	x, err := os.Lstat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Lstat(b)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(x, y), err
}
