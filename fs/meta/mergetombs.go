package meta

import (
	"errors"
	"strings"
)

// bury takes out of what a page has under a name that is new to the index whatever a tomb hides: it
// was removed here, and the origin does not know yet or did not when the listing began.
func (m *merger) bury(l *listed) error {
	if m.db.TombCount() == 0 || l.obj == nil && !l.dir {
		return nil
	}
	key := m.current.Prefix + l.name
	if l.obj != nil {
		hidden, err := m.hides(key, false)
		if err != nil {
			return err
		}
		if hidden || m.buried {
			l.obj = nil
			m.res.Hidden++
		}
	}
	if l.dir {
		hidden, err := m.hides(key+"/", false)
		if err != nil {
			return err
		}
		if hidden || m.buried {
			l.dir = false
			m.res.Hidden++
		}
	}
	return nil
}

// tombAbove tells whether a tomb hides everything in the directory.
func (m *merger) tombAbove() (bool, error) {
	if m.db.TombCount() == 0 {
		return false, nil
	}
	prefix := m.current.Prefix
	for i := 0; ; {
		n := strings.IndexByte(prefix[i:], '/')
		if n < 0 {
			return false, nil
		}
		i += n + 1
		if hidden, err := m.hides(prefix[:i], true); err != nil || hidden {
			return hidden, err
		}
	}
}

// hides tells whether there is a tomb for a key, one with Prefix where asked for, that the page's
// listing may not have seen carried out.
func (m *merger) hides(key string, prefix bool) (bool, error) {
	var t Tomb
	if err := readTomb(m.read, key, &t); err != nil {
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return false, err
	}
	return (t.Prefix || !prefix) && (t.Done == 0 || m.page.Began <= t.Done), nil
}
