package rows

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// timersOnDisk are the rows of timers, each due when the list says. 0: its message is missing; -1:
// its message cannot be read.
func timersOnDisk(due ...int64) (t table) {
	m, _ := message("out", "", "x")
	for i, at := range due {
		timer := Timer{QoS: 1, Client: "c", ID: fmt.Sprint("id/", i), Message: m}
		written := append(AppendMessage(timer.Append(nil), m.ExpiresAt, m.TopicLen, m.PropsLen), m.Body...)
		if at < 0 {
			at, written = 5, written[:10]
		}
		id := TimerID{Due: at, Number: uint64(i), Client: "c", Topic: "out"}
		if at != 0 {
			t = append(t, row{TimerKey(at, id.Number), written})
		}
		t = append(t, row{TimerIDKey("", []byte(timer.ID)), id.Append(nil)})
	}
	slices.SortFunc(t, func(a, b row) int { return bytes.Compare(a.key, b.key) })
	return t
}

// However few timers the check has in memory at a time, it counts all of them, and finds each that
// is missing or cannot be read, once.
func TestTimersAreCheckedAFewAtATime(t *testing.T) {
	t.Parallel()
	rows := timersOnDisk(7, 3, 0, 9, -1, 1, 4, 9, 3, 0)
	rows = append(rows, row{append(TimerIDsOf(""), "unreadable"...), []byte{0}})
	for atOnce := 1; atOnce <= 9; atOnce++ {
		var found []string
		c := checker{}
		errs := c.checkTimers(rows.iterate, func(key []byte, what string) {
			found = append(found, string(key))
			t.Logf("%d at a time: %s", atOnce, what)
		}, atOnce)
		slices.Sort(found)
		want := []string{string(TimerKey(5, 4))}
		for _, id := range []string{"id/2", "id/4", "id/9", "unreadable"} {
			want = append(want, string(TimerIDKey("", []byte(id))))
		}
		if len(errs) > 0 || c.inv.Timers != 7 || !slices.Equal(found, want) {
			t.Errorf("%d at a time: %d timers, found %q, want %q; errors %v", atOnce, c.inv.Timers, found, want, errs)
		}
	}
	if errs := new(checker).checkTimers(table{}.iterate, func(_ []byte, what string) { t.Error(what) }, 1); len(errs) > 0 {
		t.Error(errs)
	}
}

// Where messages cannot be read from the disk, what refers to those behind is not called a problem.
func TestTimersThatCannotBeRead(t *testing.T) {
	t.Parallel()
	rows := timersOnDisk(1, 2, 3, 4)
	failure := errors.New("the disk has failed")
	failing := func(from, to []byte, visit func(key, value []byte) bool) error {
		if Kind(from[0]) != TimerKind {
			return rows.iterate(from, to, visit)
		}
		stopped := false
		err := rows.iterate(from, TimersFrom(3), func(key, value []byte) bool {
			stopped = !visit(key, value)
			return !stopped
		})
		if !stopped {
			err = failure
		}
		return err
	}
	for atOnce := 1; atOnce <= 3; atOnce++ {
		c := checker{}
		errs := c.checkTimers(failing, func(_ []byte, what string) { t.Errorf("%d at a time: %s", atOnce, what) }, atOnce)
		if len(errs) != 1 || !errors.Is(errs[0], failure) || c.inv.Timers != 2 {
			t.Errorf("%d at a time: %d timers, errors %v", atOnce, c.inv.Timers, errs)
		}
	}
}
