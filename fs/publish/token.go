package publish

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/leatfs/leatfs/objstore"
)

// tokenKey is the metadata that tells a publication from all others.
const tokenKey = "leatfs-token"

// NewToken returns 128 random bits in hex.
func NewToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// NextToken returns a new token of the family of another, or of a new one where that is "".
func NextToken(of string) string {
	t := NewToken()
	if len(of) < len(t) {
		return t
	}
	return of[:familyLen] + t[familyLen:]
}

// familyLen is how much of a token its whole family has: 64 bits.
const familyLen = 16

// SameFamily tells whether one token was made as the next of the other, or both of a third. What a caller
// has added to a token must be equal.
func SameFamily(a, b string) bool {
	const whole = 2 * familyLen
	return a == b || len(a) >= whole && len(b) >= whole && a[:familyLen] == b[:familyLen] && a[whole:] == b[whole:]
}

// TokenOf returns the token that an object was published with, "" if it has none.
func TokenOf(o objstore.Object) string { return o.Metadata[tokenKey] }

// Attributes are the POSIX attributes that travel in an object's metadata. Times are in
// nanoseconds since 1970.
type Attributes struct {
	Mode, UID, GID          uint32 // Mode with S_IFMT
	MTime, CTime            int64
	HasMode, HasUID, HasGID bool
	HasMTime, HasCTime      bool
}

// Metadata returns attributes as user metadata, by the names of s3fs: mode (decimal, with the type
// of the file), uid, gid, mtime and ctime (decimal seconds; nine digits of fraction where
// there is one). token may be "".
//
// s3fs (src/metaheader.cpp, string_util.cpp) reads mode as decimal, uid and gid in C's notation,
// and of a time takes the digits after the point as a number of nanoseconds, however many they are:
// so there must be nine. Times not after 1970 are as none to it. The mtime of rclone
// is under the same name and a decimal number of seconds (FloatStringToTime of ncw/swift: any number
// of digits), so one value serves both. Its option --metadata has mode, uid and gid
// too but means mode in octal, as its local backend does; it is not followed: what s3fs wrote
// could not be told from it.
func Metadata(mode, uid, gid uint32, mtime, ctime int64, token string) map[string]string {
	m := map[string]string{
		"mode":  strconv.FormatUint(uint64(mode), 10),
		"uid":   strconv.FormatUint(uint64(uid), 10),
		"gid":   strconv.FormatUint(uint64(gid), 10),
		"mtime": formatTime(mtime),
		"ctime": formatTime(ctime),
	}
	if token != "" {
		m[tokenKey] = token
	}
	return m
}

// ParseMetadata reads what Metadata, s3fs or rclone wrote; what is missing or malformed has its
// Has field false.
func ParseMetadata(m map[string]string) Attributes {
	var a Attributes
	num := func(key string) (uint32, bool) {
		v, err := strconv.ParseUint(m[key], 10, 32)
		if err != nil {
			return 0, false
		}
		return uint32(v), true
	}
	a.Mode, a.HasMode = num("mode")
	a.UID, a.HasUID = num("uid")
	a.GID, a.HasGID = num("gid")
	a.MTime, a.HasMTime = parseTime(m["mtime"])
	a.CTime, a.HasCTime = parseTime(m["ctime"])
	return a
}

// formatTime writes nanoseconds as decimal seconds.
func formatTime(ns int64) string {
	sign, u := "", uint64(ns)
	if ns < 0 {
		sign, u = "-", -u
	}
	if u%1e9 == 0 {
		return fmt.Sprintf("%s%d", sign, u/1e9)
	}
	return fmt.Sprintf("%s%d.%09d", sign, u/1e9, u%1e9)
}

// parseTime reads decimal seconds; digits beyond the ninth are dropped.
func parseTime(s string) (ns int64, ok bool) {
	whole, frac, _ := strings.Cut(s, ".")
	frac = (frac + "000000000")[:9]
	sec, err := strconv.ParseInt(whole, 10, 64)
	nano, ferr := strconv.ParseUint(frac, 10, 32)
	const limit = math.MaxInt64/1_000_000_000 - 1
	if err != nil || ferr != nil || sec > limit || sec < -limit {
		return 0, false
	}
	if strings.HasPrefix(whole, "-") {
		return sec*1e9 - int64(nano), true
	}
	return sec*1e9 + int64(nano), true
}

// withToken returns m with the token added.
func withToken(m map[string]string, token string) map[string]string {
	if token == "" {
		return m
	}
	out := make(map[string]string, len(m)+1)
	maps.Copy(out, m)
	out[tokenKey] = token
	return out
}
