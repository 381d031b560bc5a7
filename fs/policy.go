package fs

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Policy says what closing and fsync promise for the paths that match.
type Policy struct {
	// Pattern is matched as path.Match does, against the path below the mount with a leading "/"
	// and against the name alone; one that ends in "/**" holds for all below.
	Pattern string
	// FsyncRemote: fsync returns when the file is at the origin. CloseRemote: close does.
	FsyncRemote, CloseRemote bool
}

// matches tells whether the policy holds for a path.
func (p *Policy) matches(file string) bool {
	if below, ok := strings.CutSuffix(p.Pattern, "/**"); ok {
		return below == "" || strings.HasPrefix(file, below+"/")
	}
	if ok, err := path.Match(p.Pattern, file); ok && err == nil {
		return true
	}
	ok, err := path.Match(p.Pattern, path.Base(file))
	return ok && err == nil
}

// flushed tells whether each close of a handle that can write, opened with flags, is to be seen. What the kernel writes
// by itself is in the file by then; only where closing means publishing there is something to do, and with O_SYNC,
// where it says that what is on the disk is whole.
func (f *FS) flushed(node NodeID, pass bool, flags int) bool {
	return !pass || flags&unix.O_DSYNC != 0 || f.policy(node).CloseRemote
}

// policy returns the first that holds for the path of a node; the zero Policy is local.
func (f *FS) policy(node NodeID) Policy {
	if len(f.opt.Policies) == 0 {
		return Policy{}
	}
	file := f.PathOf(node)
	for _, p := range f.opt.Policies {
		if p.matches(file) {
			return p
		}
	}
	return Policy{}
}
