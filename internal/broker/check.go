package broker

import (
	"bytes"
	"errors"
	"fmt"

	"holdfast/internal/journal"
)

// Inventory is what Check found on disk. Orphans are rows that belong to
// nobody: what a crash left of a session that was ending. They are deleted at
// the next start, and no problem.
type Inventory struct {
	Sessions, Subscriptions, Groups int
	Queued                          int // messages in queues, deliveries under way included
	Shared                          int // messages that are in several of them
	Received                        int // QoS 2 publishes received, until their PUBREL
	Retained, Wills                 int
	Owed                            int // replays of retained messages to subscriptions, not over
	Orphans                         int
}

// checker looks at the broker's rows, one after the other.
type checker struct {
	inv      Inventory
	sessions map[uint64]string // client by sid
	groups   map[uint64]bool   // by gid
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
	var errs []error
	for _, part := range []struct {
		prefix byte
		what   string
		row    func(key, value []byte) error // key without the prefix
	}{
		{sessionPrefix, "session", c.session},
		{subscriptionPrefix, "subscription", c.subscription},
		{groupPrefix, "shared subscription", c.group},
		{payloadPrefix, "message", c.payload},
		{queuePrefix, "queued message", c.queued},
		{receivedPrefix, "received packet identifier", c.received},
		{owedPrefix, "retained messages owed", c.owed},
		{retainedPrefix, "retained message", c.retained},
		{willPrefix, "will", c.will},
	} {
		err := j.Iterate([]byte{part.prefix, '|'}, []byte{part.prefix, '|' + 1}, func(key, value []byte) bool {
			if err := part.row(key[2:], value); err != nil {
				report(key, fmt.Sprintf("%s with key %q: %v", part.what, key[2:], err))
			}
			return true
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%ss: %w", part.what, err))
		}
	}
	for _, refs := range c.payloads {
		if refs == 0 {
			c.inv.Orphans++
		}
	}
	c.inv.Shared = len(c.payloads)
	return c.inv, errors.Join(errs...)
}

// known counts a row of one session, or as an orphan.
func (c *checker) known(key []byte, count *int) {
	if _, is := c.sessions[keyNumber(key)]; is {
		*count++
	} else {
		c.inv.Orphans++
	}
}

func (c *checker) session(key, value []byte) error {
	r, err := decodeSessionRow(value)
	if err != nil {
		return err
	}
	if other, twice := c.sessions[r.sid]; twice {
		return fmt.Errorf("it has the number %d, which is that of client %q", r.sid, other)
	}
	c.sessions[r.sid] = string(key)
	c.inv.Sessions++
	return nil
}

func (c *checker) subscription(key, value []byte) error {
	if _, err := decodeSubscriptionRow(key, value); err != nil {
		return err
	}
	c.known(key, &c.inv.Subscriptions)
	return nil
}

func (c *checker) group(_, value []byte) error {
	gid, err := decodeGroupRow(value)
	if err != nil {
		return err
	}
	c.groups[gid] = true
	c.inv.Groups++
	return nil
}

func (c *checker) payload(key, value []byte) error {
	if len(key) != 8 || len(value) == 0 || value[0] != rowVersion {
		return errRow
	}
	c.payloads[keyNumber(key)] = 0
	return checkMessage(decodeMessage(value[1:], 0))
}

func checkMessage(m *Message, err error) error {
	if err == nil {
		m.release()
	}
	return err
}

func (c *checker) queued(key, value []byte) error {
	if len(key) != 16 {
		return errRow
	}
	r, err := decodeQueueRow(value)
	if err != nil {
		return err
	}
	switch {
	case r.number != 0:
		if _, there := c.payloads[r.number]; !there {
			return fmt.Errorf("its message %d is missing", r.number)
		}
		c.payloads[r.number]++
	case r.slot.state != slotReleased:
		if err := checkMessage(decodeMessage(r.rest, 0)); err != nil {
			return err
		}
	}
	if c.groups[keyNumber(key)] {
		c.inv.Queued++
		return nil
	}
	c.known(key, &c.inv.Queued)
	return nil
}

func (c *checker) owed(key, value []byte) error {
	if _, _, err := decodeOwedRow(key, value); err != nil {
		return err
	}
	c.known(key, &c.inv.Owed)
	return nil
}

func (c *checker) received(key, _ []byte) error {
	if len(key) != 10 {
		return errRow
	}
	c.known(key, &c.inv.Received)
	return nil
}

func (c *checker) retained(_, value []byte) error {
	c.inv.Retained++
	return checkMessage(decodeRetainedRow(value, 0))
}

// will counts wills. One without a session is no orphan: its session ended with the
// connection, and it is published at the next start.
func (c *checker) will(key, value []byte) error {
	c.inv.Wills++
	_, err := decodeWillRow(key, value)
	return err
}
