package rows

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// timersAtOnce is how many timers the check has in memory at a time, 16 bytes of each: 16 MiB.
const timersAtOnce = 1 << 20

// place is due and number of a timer: the key of its message without the kind.
type place [16]byte

func placeOf(due int64, number uint64) place { return place(TimerKey(due, number)[2:]) }

func (p *place) compare(other *place) int { return bytes.Compare(p[:], other[:]) }

// checkTimers reads the rows of all timers, and counts them. A message without the row that finds
// it by its ID is published when it is due, so it is no problem; a row without its message is one.
//
// The rows of messages are in the order of time, those of IDs in the order of IDs. So the check
// holds the places of as many messages as may be in memory, reads all rows of IDs for those that
// refer to a place from the first to the last of these, and goes on with the next messages: the
// rows of IDs are read once for each atOnce timers.
func (c *checker) checkTimers(iterate Iterate, report func(key []byte, what string), atOnce int) []error {
	from, places := TimersFrom(0), make([]place, 0, 64)
	var begin place
	for first := true; ; first = false {
		places = places[:0]
		more := false
		unread := iterate(from, AfterTimers(), func(key, value []byte) bool {
			if len(places) == atOnce {
				more, from = true, bytes.Clone(key)
				return false
			}
			if err := checkTimer(key, value); err != nil {
				report(key, fmt.Sprintf("timer with key %q: %v", key[2:], err))
				return true
			}
			places = append(places, place(key[2:]))
			return true
		})
		c.inv.Timers += len(places)
		end := placeOf(math.MaxInt64, math.MaxUint64)
		switch {
		case more:
			end = places[len(places)-1]
		case unread != nil && len(places) > 0: // what is missing behind may be there, unread
			end = places[len(places)-1]
		case unread != nil:
			end = begin
		}
		err := iterate([]byte{byte(TimerIDKind), '|'}, []byte{byte(TimerIDKind), '|' + 1}, func(key, value []byte) bool {
			due, number, err := checkTimerID(key, value)
			if err != nil {
				if first {
					report(key, fmt.Sprintf("timer's ID with key %q: %v", key[2:], err))
				}
				return true
			}
			at := placeOf(due, number)
			if !first && at.compare(&begin) <= 0 || at.compare(&end) > 0 {
				return true
			}
			if _, there := slices.BinarySearchFunc(places, at, func(p, at place) int { return p.compare(&at) }); !there {
				report(key, fmt.Sprintf("timer's ID with key %q: its message, due at %d, is missing", key[2:], due))
			}
			return true
		})
		var errs []error
		if unread != nil {
			errs = append(errs, fmt.Errorf("timers: %w", unread))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("timer's IDs: %w", err))
		}
		if !more || len(errs) > 0 {
			return errs
		}
		begin = end
	}
}

func checkTimer(key, value []byte) error {
	if _, _, err := SplitTimerKey(key); err != nil {
		return err
	}
	_, err := DecodeTimer(value)
	return err
}

func checkTimerID(key, value []byte) (due int64, number uint64, err error) {
	if _, _, err = SplitTimerIDKey(key); err != nil {
		return 0, 0, err
	}
	r, err := DecodeTimerID(value)
	return r.Due, r.Number, err
}
