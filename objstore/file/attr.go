package file

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leatfs/leatfs/objstore"
)

// xattrName is the attribute that holds what a file itself does not.
const xattrName = "user.leatfs.object"

// attr is the attribute's value, as JSON. The checksum counts only while size and mtime
// are what they were when it was taken.
type attr struct {
	Metadata    map[string]string `json:"metadata,omitempty"`
	ContentType string            `json:"type,omitempty"`
	CRC64NVME   uint64            `json:"crc64nvme,string"`
	Size        int64             `json:"size"`
	MTime       int64             `json:"mtime"` // nanoseconds
}

// writeAttr gives a file that is written its attribute. Without room for attributes only
// a plain object can be kept.
func (s *Store) writeAttr(f *os.File, opt objstore.PutOptions, crc uint64) error {
	if !s.xattrs {
		if len(opt.Metadata) > 0 || opt.ContentType != "" {
			return &objstore.Error{Kind: objstore.Unsupported, Hint: "the filesystem keeps no user attributes, and so no metadata"}
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	a := attr{ContentType: opt.ContentType, CRC64NVME: crc, Size: st.Size, MTime: unix.TimespecToNsec(st.Mtim)}
	if len(opt.Metadata) > 0 {
		a.Metadata = make(map[string]string, len(opt.Metadata))
		for k, v := range opt.Metadata {
			a.Metadata[strings.ToLower(k)] = v
		}
	}
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return unix.Fsetxattr(int(f.Fd()), xattrName, b, 0)
}

// readAttr adds to o what the attribute of the file fd holds. Attributes that cannot be read
// are as none: anybody may have made the file.
func (s *Store) readAttr(f *os.File, st *unix.Stat_t, o *objstore.Object) (sum objstore.Checksum) {
	if !s.xattrs {
		return sum
	}
	buf := make([]byte, 4096)
	n, err := unix.Fgetxattr(int(f.Fd()), xattrName, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 65536)
		n, err = unix.Fgetxattr(int(f.Fd()), xattrName, buf)
	}
	var a attr
	if err != nil || json.Unmarshal(buf[:n], &a) != nil {
		return sum
	}
	if len(a.Metadata) > 0 {
		o.Metadata = maps.Clone(a.Metadata)
	}
	o.ContentType = a.ContentType
	if a.Size == st.Size && a.MTime == unix.TimespecToNsec(st.Mtim) {
		sum = objstore.Checksum{Algorithm: objstore.CRC64NVME, Value: a.CRC64NVME}
	}
	return sum
}
