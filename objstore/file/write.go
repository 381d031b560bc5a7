package file

import (
	"context"
	"errors"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// checkPut refuses what cannot be kept.
func (s *Store) checkPut(ctx context.Context, op, key string, opt objstore.PutOptions) error {
	if err := checkKey(op, key); err != nil {
		return err
	}
	if opt.IfNoneMatch && opt.IfMatch != "" {
		return &objstore.Error{Op: op, Key: key, Kind: objstore.BadRequest, Hint: "IfNoneMatch and IfMatch exclude each other"}
	}
	if opt.IfMatch != "" {
		return unsupported(op, key, "write only over a given ETag")
	}
	return canceled(ctx, op, key)
}

// Put implements objstore.Store. The file is durable when it returns.
func (s *Store) Put(ctx context.Context, key string, src objstore.Source, opt objstore.PutOptions) (objstore.Object, error) {
	if err := s.checkPut(ctx, opPut, key, opt); err != nil {
		return objstore.Object{}, err
	}
	return s.store(ctx, opPut, key, io.NewSectionReader(src, 0, src.Size()), src.Size(), opt)
}

// store writes what r holds and gives it a key.
func (s *Store) store(ctx context.Context, op, key string, r io.Reader, size int64, opt objstore.PutOptions) (objstore.Object, error) {
	dir, err := s.openTmp()
	if err != nil {
		return objstore.Object{}, wrap(op, key, err)
	}
	t, err := createTmp(dir)
	if err != nil {
		return objstore.Object{}, wrap(op, key, err)
	}
	defer t.drop()
	if err := t.fill(ctx, op, key, r, size, opt.Checksum); err != nil {
		return objstore.Object{}, wrap(op, key, err)
	}
	return s.publish(op, key, t, opt)
}

// Copy implements objstore.Store.
func (s *Store) Copy(ctx context.Context, srcKey, dstKey string, opt objstore.CopyOptions) (objstore.Object, error) {
	put := objstore.PutOptions{IfNoneMatch: opt.IfNoneMatch, Metadata: opt.Metadata}
	if err := s.checkPut(ctx, opCopy, dstKey, put); err != nil {
		return objstore.Object{}, err
	}
	f, err := s.openObject(ctx, opCopy, srcKey, opt.SourceIfMatch, opt.SourceVersionID)
	if err != nil {
		return objstore.Object{}, err
	}
	b := &body{ctx: ctx, s: s, f: f.File, st: f.st, key: srcKey, left: f.st.Size}
	defer b.Close()
	put.ContentType = f.object.ContentType
	if put.Metadata == nil {
		put.Metadata = f.object.Metadata
	}
	put.Checksum = f.sum
	return s.store(ctx, opCopy, dstKey, b, f.st.Size, put)
}

// Delete implements objstore.Store. Directories above the file that are empty then go too,
// as prefixes without keys do.
func (s *Store) Delete(ctx context.Context, key string, opt objstore.DeleteOptions) error {
	switch {
	case key == "":
		return checkKey(opDel, key)
	case opt.IfMatch != "":
		return unsupported(opDel, key, "delete only a given ETag")
	case opt.VersionID != "":
		return unsupported(opDel, key, "keep versions")
	case missingKey(opDel, key) != nil:
		return nil
	}
	if err := canceled(ctx, opDel, key); err != nil {
		return err
	}
	if _, err := s.stat(key); err != nil { // what is no object is not deleted as one
		return ignoreMissing(wrap(opDel, key, err))
	}
	dir := path.Dir(key)
	fd, err := s.openParent(dir)
	if err != nil {
		return ignoreMissing(wrap(opDel, key, err))
	}
	err = unix.Unlinkat(fd, path.Base(key), 0)
	if err == nil {
		err = unix.Fsync(fd)
	}
	unix.Close(fd)
	if err != nil {
		return ignoreMissing(wrap(opDel, key, err))
	}
	for ; dir != "."; dir = path.Dir(dir) {
		parent, err := s.openParent(path.Dir(dir))
		if err != nil {
			break
		}
		err = unix.Unlinkat(parent, path.Base(dir), unix.AT_REMOVEDIR)
		unix.Close(parent)
		if err != nil {
			break // not empty, or not ours to remove
		}
	}
	return nil
}

func (s *Store) openParent(dir string) (int, error) {
	if dir == "." {
		return s.openDir("", unix.O_RDONLY)
	}
	return s.openDir(dir+"/", unix.O_RDONLY)
}

func ignoreMissing(err error) error {
	var e *objstore.Error
	if errors.As(err, &e) && e.Kind == objstore.NotFound {
		return nil
	}
	return err
}
