package rows

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Inventory is what Check found on disk. Orphans are rows of no session: what a crash
// left of a session that was ending. The next start deletes them; they are no problem.
type Inventory struct {
	Sessions, Subscriptions, Groups int
	Queued                          int // messages in queues, inflight ones included
	Shared                          int // messages that are in several of them
	Received                        int // QoS 2 publishes received, until their PUBREL
	Retained, Wills                 int
	Timers                          int // messages to be published later
	Owed                            int // replays of retained messages to subscriptions, not over
	Orphans                         int
}

// checker looks at the broker's rows, one after the other.
type checker struct {
	inv      Inventory
	sessions map[uint64]string // client by sid
	groups   map[uint64]bool   // by the sid of their backlogs
	payloads map[uint64]int    // references by number
}

// Check reads every row of the broker's in a journal that is open for reading,
// and calls report for each that a start would trip over. An error means that
// not all could be read.
func Check(j *journal.Journal, report func(what string)) (Inventory, error) {
	return check(j, func(_ []byte, what string) { report(what) })
}

// Repair takes out of a salvaged journal the broker's rows that a start would trip over,
// and calls report for each. Nothing else may use the journal.
func Repair(j *journal.Journal, report func(what string)) error {
	for {
		var rows [][]byte
		if _, err := check(j, func(row []byte, what string) {
			report(what)
			rows = append(rows, bytes.Clone(row))
		}); err != nil || len(rows) == 0 {
			return err
		}
		for _, row := range rows { // others may refer to them: then the next round finds those
			j.Admit()
			a := j.Begin()
			a.Delete(row)
			a.End(nil)
		}
		j.WaitDurable()
	}
}

// check is Check, whose report also gets the row.
func check(j *journal.Journal, report func(row []byte, what string)) (Inventory, error) {
	c := checker{sessions: map[uint64]string{}, groups: map[uint64]bool{}, payloads: map[uint64]int{}}
	errs := Visit(&c, j.Iterate, func(key []byte, what string) bool {
		report(key, what)
		return true
	})
	errs = append(errs, c.checkTimers(j.Iterate, report, timersAtOnce)...)
	for _, refs := range c.payloads {
		if refs == 0 {
			c.inv.Orphans++
		}
	}
	c.inv.Shared = len(c.payloads)
	return c.inv, errors.Join(errs...)
}

// known counts a row of one session, or as an orphan.
func (c *checker) known(sid uint64, count *int) error {
	if _, is := c.sessions[sid]; is {
		*count++
	} else {
		c.inv.Orphans++
	}
	return nil
}

func (c *checker) Session(client string, s Session) error {
	if other, twice := c.sessions[s.SID]; twice {
		return fmt.Errorf("it has the number %d, which is that of client %q", s.SID, other)
	}
	c.sessions[s.SID] = client
	c.inv.Sessions++
	return nil
}

func (c *checker) Subscription(sid uint64, _ Subscription) error {
	return c.known(sid, &c.inv.Subscriptions)
}

func (c *checker) Group(_ string, sid uint64) error {
	c.groups[sid] = true
	c.inv.Groups++
	return nil
}

func (c *checker) Payload(n uint64, _ Message) error {
	c.payloads[n] = 0
	return nil
}

func (c *checker) Queued(sid, _ uint64, q *Queued) error {
	if q.Number != 0 {
		if _, there := c.payloads[q.Number]; !there {
			return fmt.Errorf("its message %d is missing", q.Number)
		}
		c.payloads[q.Number]++
	}
	if c.groups[sid] {
		c.inv.Queued++
		return nil
	}
	return c.known(sid, &c.inv.Queued)
}

func (c *checker) Received(sid uint64, _ uint16) error { return c.known(sid, &c.inv.Received) }

func (c *checker) Owed(sid, _ uint64, _ Owed) error { return c.known(sid, &c.inv.Owed) }

func (c *checker) Retained(string, *Retained) error {
	c.inv.Retained++
	return nil
}

// Will counts wills. A will without a session is no orphan: its session ended with the
// connection, and it is published at the next start.
func (c *checker) Will(uint64, *Will) error {
	c.inv.Wills++
	return nil
}
