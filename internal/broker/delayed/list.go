package delayed

import (
	"bytes"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
)

// Listed is a timer in a list.
type Listed struct {
	ID    []byte
	At    int64 // when it is due, by the wall clock in ms
	Topic string
}

// Bounds of a page of a list.
const (
	listTimers = 1000
	listBytes  = 256 << 10
)

// List gives the timers of a principal whose IDs begin with prefix, in the order of IDs: the
// next ones after one of them (nil: the first), so many that they take at most most bytes (0:
// any number), but at least one. more says that there may be others.
func (s *Store) List(principal string, prefix, after []byte, most int) (page []Listed, more bool, err error) {
	from := rows.TimerIDKey(principal, prefix)
	to := end(from)
	if after != nil && string(after) >= string(prefix) {
		from = slices.Concat(rows.TimerIDKey(principal, after), []byte{0})
	}
	if bytes.Compare(from, to) >= 0 {
		return nil, false, nil
	}
	if most == 0 || most > listBytes {
		most = listBytes
	}
	var bad error
	size, head := 0, len(rows.TimerIDsOf(principal))
	err = s.Journal.Iterate(from, to, func(key, value []byte) bool {
		r, err := rows.DecodeTimerID(value)
		if err != nil {
			bad = err
			return false
		}
		l := Listed{ID: slices.Clone(key[head:]), At: r.At, Topic: r.Topic}
		size += l.Bytes()
		if len(page) == listTimers || len(page) > 0 && size > most {
			more = true
			return false
		}
		page = append(page, l)
		return true
	})
	if err == nil {
		err = bad
	}
	return page, more, err
}

// Bytes is more than what the timer takes in the reply, and again its ID, by which the list
// goes on.
func (l *Listed) Bytes() int { return 2*len(l.ID) + len(l.Topic) + 64 }

// end is the least key behind all that begin with prefix, which begins with a letter.
func end(prefix []byte) []byte {
	to := slices.Clone(prefix)
	for i := len(to) - 1; ; i-- {
		if to[i]++; to[i] != 0 {
			return to[:i+1]
		}
	}
}
