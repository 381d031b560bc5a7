package fs

// Caller is who asks for a change: new files become his.
type Caller struct {
	UID, GID, PID uint32
}

// SetAttr are attributes to be set; nil ones stay.
type SetAttr struct {
	Mode         *uint32 // permission bits with set-uid, set-gid and sticky
	UID, GID     *uint32
	Size         *int64
	ATime, MTime *int64 // nanoseconds since 1970
	CTime        *int64 // nil: now
	// KillSUIDGID: what is changed by one who is not privileged loses set-uid and set-gid.
	KillSUIDGID bool
}
