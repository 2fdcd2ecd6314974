package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rounds"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Forgetting
//
// From its deadline on a message is new again, because the rules say so; what
// remains to be done is to give its place back. One goroutine looks into the index
// of deadlines from time to time and deletes what is due, a bounded number at a
// time and with a pause after each, so that a backlog of millions delays no other work.
//
// The beginning of the index is full of deleted rows, which are slow to skip, so
// the clean-up goes on where it has stopped. No row may then join the index behind
// it: it says first how far it will look (Local.sweptMs), and from then on a STORE
// gets no earlier place in the index; it waits for those that were being decided,
// and only then looks.
//
// It looks no further than both clocks have come. A wall clock that was stepped may
// make it late, until the next start, but never early: whether a message is due is
// asked once more of its own row.
type forgetting struct {
	rounds.Rounds
	from []byte // where the next round begins; the goroutine's, or the test's
}

const (
	// forgetAtOnce is how many messages one round forgets.
	forgetAtOnce = 500
	// forgetBytes is how many bytes of the index one round reads, about.
	forgetBytes = 1 << 20
	// forgetEvery is how long after one look the next comes, forgetPause how long
	// after a round that has found as many as it may.
	forgetEvery = time.Second
	forgetPause = 10 * time.Millisecond
)

func (f *forgetting) start(e *Local) {
	f.Start(forgetEvery, forgetPause, e.ForgetDue, e.o.Logger, "the clean-up of remembered messages")
}

// ForgetDue forgets messages whose time has come, a bounded number. more says that
// there may be others. The engine does it by itself in time; tests that have
// stopped it and moved their clock call it.
func (e *Local) ForgetDue() (more bool) {
	e.dropApplied(math.MaxInt) // those after which no other change came
	e.sayNearlyFull()
	due, more, err := e.dueMessages(min(e.nowMs(), e.clock.WallMs()))
	for i := range due {
		e.journal.Admit()
		isDue, err := e.forgetAll(&due[i])
		if err != nil { // of this one; those behind it must not wait for it
			e.o.Logger.Error("a remembered message cannot be forgotten", "row", fmt.Sprintf("%q", due[i].Row), "error", err)
		} else if !isDue {
			return false
		}
		e.forgets.from = append(due[i].Row, 0)
	}
	if err != nil && !errors.Is(err, journal.ErrClosed) {
		e.o.Logger.Error("messages whose time has come cannot be found", "error", err)
	}
	return more
}

// dueMessages returns rows of the index with deadlines up to now, and whether there may be more.
func (e *Local) dueMessages(now int64) (due []rows.Index, more bool, err error) {
	e.mu.Lock()
	e.sweptMs = max(e.sweptMs, now+1)
	e.mu.Unlock()
	for i := range e.stripes {
		e.stripes[i].mu.Lock()
		//lint:ignore SA2001 who decided before has appended now: waiting is all it is for
		e.stripes[i].mu.Unlock()
	}
	e.journal.WaitDurable()
	from := e.forgets.from
	if from == nil {
		from = []byte(rows.IndexPrefix)
	}
	to := rows.AppendIndexRow(nil, now+1, []byte(rows.MemoPrefix))
	if bytes.Compare(from, to) >= 0 {
		return nil, false, nil
	}
	return rows.ReadIndex(e.journal, from, to, forgetAtOnce, forgetBytes)
}

// forgetAll forgets the messages that a row of the index names, and then the row. If one of them is
// not due by its own row, it and those behind it stay, and the row; so does the row if one cannot be
// read.
func (e *Local) forgetAll(x *rows.Index) (isDue bool, err error) {
	if x.Unreadable != nil {
		return false, x.Unreadable
	}
	if !x.Shared {
		return e.forget(x.Row, x.DiskMs, x.Names[0])
	}
	for _, name := range x.Names {
		isDue, failed := e.forget(nil, x.DiskMs, name)
		if failed == nil && !isDue {
			return false, err
		}
		err = cmp.Or(err, failed)
	}
	if err == nil {
		a := e.journal.Begin()
		a.Delete(x.Row)
		a.End(nil)
	}
	return true, err
}

// forget deletes a message that the index has with a deadline, if it is due by its own row as well,
// and its row of the index; that is nil if others share it. If the message has another deadline by
// now, or is gone, only the row of the index is left to delete.
func (e *Local) forget(index []byte, diskMs int64, name []byte) (isDue bool, err error) {
	key, err := rows.KeyOf(name)
	if err != nil {
		return false, err
	}
	d := e.newDecision()
	defer d.release()
	d.memoRow = append(append(d.memoRow[:0], rows.MemoPrefix...), name...)
	d.indexRow = append(d.indexRow[:0], index...)
	st := e.stripe(key)
	st.mu.Lock()
	defer st.mu.Unlock()
	found, err := e.recall(st, d.memoRow)
	if err != nil {
		return false, err
	}
	if found.Known() == nil || found.DiskMs != diskMs {
		if index == nil {
			return true, nil
		}
		a := e.journal.Begin()
		a.Delete(d.indexRow)
		a.End(nil)
		return true, nil
	}
	if e.nowMs() < found.What.DeadlineMs {
		return false, nil
	}
	d.before = found.What
	d.remember(st, rows.Memo{})
	e.mu.Lock()
	d.countMemo()
	e.forgotten++
	e.mu.Unlock()
	d.carryOutMemo()
	return true, nil
}
