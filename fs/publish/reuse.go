package publish

import (
	"context"
	"crypto/sha256"

	"github.com/leatfs/leatfs/objstore"
)

// A part that an earlier object of ours has in the same place need not be sent: the store copies it. Two
// checksums of different kinds say that it is the same, of which one is not to be met by accident nor by intent; that
// the object is still the one that they were taken of says its ETag, which the store compares; and the
// checksum of the whole is sent and compared as always.

// PartSum tells what a part holds.
type PartSum struct {
	CRC  uint64 // CRC64NVME
	Hash [sha256.Size]byte
}

// Reuse is an earlier object whose parts are known, such as the version before of the same file.
type Reuse struct {
	Key, ETag, VersionID string
	Size                 int64
	PartSize             int64
	Parts                []PartSum // as of its Outcome
}

// Family is what keys have in common that differ in numbers, hashes and uuids only.
func Family(key string) string { return collapse(key) }

// Likeness is in how many of these, of those at the same places, two keys of one family agree.
func Likeness(a, b string) int {
	var of []string
	collapseTo(a, func(s string) { of = append(of, s) })
	n, i := 0, 0
	collapseTo(b, func(s string) {
		if i < len(of) && of[i] == s {
			n++
		}
		i++
	})
	return n
}

// CanReuse tells whether a store can do what Options.Reuse asks for. What it was sent is known for certain only
// where it has compared a checksum.
func CanReuse(c *objstore.Caps) bool {
	return c.Checksums && c.Multipart && c.PartCopy && c.CopyIfMatch
}

// hashes tells whether parts are compared with those of earlier objects.
func (s *session) hashes() bool {
	return s.p.opt.Reuse && CanReuse(&s.p.caps) && !s.distrust
}

// has returns the first of job.Reuse that has part number, of n bytes at off, in the same place; nil when none has.
func (s *session) has(number int, off, n int64, sum PartSum) *Reuse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.job.Reuse {
		r := &s.job.Reuse[i]
		if !s.spoilt[r.Key] && r.PartSize == s.up.PartSize && number <= len(r.Parts) && r.Parts[number-1] == sum && n > 0 && min(r.PartSize, r.Size-off) == n {
			return r
		}
	}
	return nil
}

// sendHashed reads a part, and has it sent or copied if the store has it not as it is. In a slot.
func (s *session) sendHashed(ctx context.Context, number int, v *view, d *digest) error {
	h := sha256.New()
	crc, blocks, err := s.p.sumInto(ctx, v, 0, v.n, nil, h)
	if err != nil {
		return s.readError(err)
	}
	d.blocks = blocks
	sum := PartSum{CRC: crc}
	h.Sum(sum.Hash[:0])
	s.mu.Lock()
	have, ok := s.parts[number]
	s.mu.Unlock()
	if !ok || have.Size != v.n || !have.summed || have.sum != crc {
		if have, err = s.reusePart(ctx, number, v, sum); err != nil {
			return err
		}
	}
	have.hash, have.hashed = sum.Hash, true
	s.have(number, have)
	return nil
}

// reusePart has a part copied from an object of job.Reuse that has it, else sent. Whatever is in the way of a copy,
// that object is not asked for again.
func (s *session) reusePart(ctx context.Context, number int, v *view, sum PartSum) (sent, error) {
	for {
		r := s.has(number, v.off, v.n, sum)
		if r == nil {
			return s.putPart(ctx, number, v, sum.CRC)
		}
		s.mu.Lock()
		delete(s.parts, number) // it is replaced, whatever the answer
		s.mu.Unlock()
		p, err := s.copyPart(ctx, number, Source{r.Key, r.ETag, r.VersionID, r.Size}, v.off, v.n)
		if err == nil && p.summed && p.sum != sum.CRC {
			err = corrupt(s.job.Key, v.n, sum.CRC, nil)
		}
		switch {
		case err == nil:
			p.sum, p.summed, p.copied, p.reused = sum.CRC, true, false, true
			return p, nil
		case err == errGone || ctx.Err() != nil:
			return p, err
		}
		s.mu.Lock()
		s.spoilt[r.Key] = true
		s.mu.Unlock()
		s.p.opt.Log.Info("parts cannot be taken from an earlier object and are sent", "key", s.job.Key, "part", number, "earlier", r.Key, "err", err)
	}
}

// partSums are those of all n parts that the store has, nil when some are not known, and how many bytes of
// them were copied.
func (s *session) partSums(n int) (sums []PartSum, reused int64) {
	all := s.hashes()
	for i := 1; i <= n; i++ {
		p := s.parts[i]
		if p.reused {
			reused += p.Size
		}
		if all = all && p.summed && p.hashed; all {
			sums = append(sums, PartSum{p.sum, p.hash})
		}
	}
	if !all {
		sums = nil
	}
	return sums, reused
}
