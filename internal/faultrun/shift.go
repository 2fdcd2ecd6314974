package faultrun

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// The handlers under test. The shift uses everything that a handler can use; the ledger
// and the tally (tally.go) process what the shift publishes.

const (
	shiftName   = "shift"
	ledgerName  = "ledger"
	deadLetters = "dead-letters/faultrun"
)

// order is the message.
type order struct {
	ID     string // also the CloudEvents id
	Key    string
	Fickle bool      // the handler is not deterministic on it
	Sent   time.Time // the CloudEvents time, by the sender's clock
	Wrong  wrong     // about Sent
}

// wrong says why a message is refused because of its time.
type wrong string

const (
	tooOld wrong = "too old to tell"
	ahead  wrong = "too far ahead"
)

// shift is the state of a key, of all handlers.
type shift struct {
	N     int
	Chain uint64   // of all that was committed, in order
	Log   []string // the IDs of what was committed, in order
}

// shiftV2 is the state that version 2 of the shift stores. Version 1 drops what it does not know.
type shiftV2 struct {
	shift
	Upgraded int // commits since the upgrade
}

// result is the payload of all outputs.
type result struct {
	ID, Key string
	Which   int // output 0, 1 and 3 of the shift, of which 3 is a timer; 2 of the ledger; 4 of the tally
	N       int
	Chain   uint64 // before this message
	Roll    uint64 // from the Context: the same in every instance that processes the message
	UUID    string // likewise
	Salt    int    // captured: the same for all publications, otherwise anything
	Noise   int    // of a fickle message: never the same
	Code    uint32 // the version of the handler that processed the message first
}

func chain(before uint64, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, before))
	_, _ = h.Write([]byte(id))
	return h.Sum64()
}

func (s *shift) add(id string) {
	s.N++
	s.Chain = chain(s.Chain, id)
	s.Log = append(s.Log, id)
}

// results makes the outputs of the shift: two at once, and timers. Version 2 computes something
// else than version 1, unless it replays what that has processed.
func results(c *consistent.Context, s shift, o order, noise func() int) ([]consistent.Message, error) {
	salt, err := consistent.Capture(c, "salt", func() (int, error) { return rand.IntN(1_000_000), nil })
	if err != nil {
		return nil, err
	}
	r := result{ID: o.ID, Key: o.Key, N: s.N, Chain: s.Chain, Roll: c.Rand().Uint64(), UUID: c.ID(), Salt: salt, Code: c.Version()}
	if c.Version() >= 2 {
		r.Roll = ^r.Roll
	}
	if o.Fickle {
		r.Noise = noise()
	}
	first, second := r, r
	second.Which = 1
	now := []consistent.Message{consistent.JSON("results/"+o.Key, first), consistent.JSON(copies+o.Key, second)}
	return append(now, timers(c.Rand(), r)...), nil
}

// register registers the handler with a name: see those that it calls.
func register(p *consistent.Processor, name string, version uint32, disturb func(), noise func() int) {
	switch name {
	case shiftName:
		registerShift(p, version, disturb, noise)
	case ledgerName:
		registerLedger(p, disturb)
	case tallyName:
		registerTally(p, disturb, noise)
	}
}

// registerShift registers the handler of orders, as a version of the program has it. disturb may
// panic. noise makes the handler not deterministic: a fickle message takes a value from outside
// without the Context.
func registerShift(p *consistent.Processor, version uint32, disturb func(), noise func() int) {
	key := func(o order) string { return o.Key }
	if version < 2 {
		_ = consistent.Handle(p, "orders/+", key, func(c *consistent.Context, s shift, o order) (shift, []consistent.Message, error) {
			disturb()
			outputs, err := results(c, s, o, noise)
			s.add(o.ID)
			return s, outputs, err
		}, consistent.WithVersion(version))
		return
	}
	_ = consistent.Handle(p, "orders/+", key, func(c *consistent.Context, s shiftV2, o order) (shiftV2, []consistent.Message, error) {
		disturb()
		outputs, err := results(c, s.shift, o, noise)
		s.add(o.ID)
		s.Upgraded++
		return s, outputs, err
	}, consistent.WithVersion(version))
}

// registerLedger registers the handler of results. It cancels the timer that waits for it.
func registerLedger(p *consistent.Processor, disturb func()) {
	_ = consistent.Handle(p, "results/+", func(r result) string { return r.Key }, func(c *consistent.Context, s shift, r result) (shift, []consistent.Message, error) {
		disturb()
		booked := result{ID: r.ID, Key: r.Key, Which: 2, N: s.N, Chain: s.Chain, Roll: c.Rand().Uint64(), UUID: c.ID()}
		s.add(r.ID)
		return s, []consistent.Message{consistent.JSON("booked/"+r.Key, booked), consistent.CancelTimer(overdue + r.ID)}, nil
	})
}

func (o order) message() consistent.Message {
	m := consistent.JSON("orders/"+o.Key, o)
	m.UserProperties = append(m.UserProperties,
		consistent.UserProperty{Name: "id", Value: o.ID}, consistent.UserProperty{Name: "source", Value: "faultrun"})
	return consistenttest.SentAt(o.Sent, m)
}
