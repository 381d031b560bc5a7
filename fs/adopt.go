package fs

import (
	"os"

	"github.com/leatfs/leatfs/cache"
	"github.com/leatfs/leatfs/fs/meta"
)

// adopted goes on with a file that was staged as the file of an object.
func (f *FS) adopted(node NodeID, in *meta.Inode, commit func(bool)) {
	o := f.open.peek(node)
	if o == nil {
		commit(true)
		return
	}
	if f.open.get(node) == nil {
		f.open.drop(node)
		commit(true)
		return
	}
	// Who has it open without passthrough is to see what becomes of it: nobody gets another node meanwhile.
	n := &openNode{node: node, inode: *in, backing: o.backing, ref: o.ref, file: o.file, pass: o.pass, noPass: !o.pass}
	if in.Object.Size == 0 {
		if !o.pass {
			commit(true)
		} else {
			// The kernel reads it: should somebody write to it, it is to be this file again. It has no name after a power cut.
			n.empty = o.file
			if err := f.cache.RelabelStage(n.empty, cache.StageLabel{Origin: f.store.String(), Ino: uint64(in.Ino), Removed: true}); err != nil {
				f.log.Warn("the label of an empty file that was published", "path", f.path(in.Parent, in.Name), "err", err)
			}
		}
		if f.open.replace(o, n) {
			f.open.uncover(o)
			o.retire()
			if n.empty != 0 {
				f.open.drop(node) // at its last close
			}
		} else if n.empty != 0 {
			commit(true)
		}
		return
	}
	ident, err := f.identity(in)
	if err == nil {
		n.obj, err = f.cache.Object(f.ctx, ident, f.store)
	}
	commit(true)
	if err == nil && o.pass && o.stage != 0 {
		var file *os.File
		if file, err = n.obj.Lend(); err == nil {
			closeFile(file)
			n.lent = true
		}
	}
	if err != nil {
		// Its staging file is an object's by now: whoever needs it looks again at what it is.
		f.log.Warn("a file that was published cannot be opened as an object; tried again when it is read", "path", f.path(in.Parent, in.Name), "err", err)
		f.open.letGo(n)
		n = &openNode{node: node, restored: true, backing: o.backing, ref: o.ref, file: o.file, pass: o.pass}
	}
	if f.open.replace(o, n) {
		if err != nil {
			f.open.drop(node) // at its last close
		}
		f.open.uncover(o)
		o.retire()
	} else {
		f.open.letGo(n)
	}
}
