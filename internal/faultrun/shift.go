package faultrun

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"

	"github.com/holdfast-mqtt/holdfast/consistent"
)

// The handler under test. It uses everything that a handler can use.

const (
	handlerName = "shift"
	deadLetters = "dead-letters/shift"
)

// order is the message.
type order struct {
	ID     string // also the CloudEvents id
	Key    string
	Fickle bool // the handler is not deterministic on it
}

// shift is the state of a key.
type shift struct {
	N     int
	Chain uint64   // of all that was committed, in order
	Log   []string // the IDs of what was committed, in order
}

// result is the payload of both outputs.
type result struct {
	ID, Key string
	Which   int
	N       int
	Chain   uint64 // before this message
	Roll    uint64 // from the Context: the same in every instance that processes the message
	UUID    string // likewise
	Salt    int    // captured: the same for all publications, otherwise anything
	Noise   int    // of a fickle message: never the same
}

func chain(before uint64, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, before))
	_, _ = h.Write([]byte(id))
	return h.Sum64()
}

// work is the handler. disturb may panic. noise makes it not deterministic: a fickle
// message takes a value from outside without the Context.
func work(disturb func(), noise func() int) func(*consistent.Context, shift, order) (shift, []consistent.Message, error) {
	return func(c *consistent.Context, s shift, o order) (shift, []consistent.Message, error) {
		disturb()
		salt, err := consistent.Capture(c, "salt", func() (int, error) { return rand.IntN(1_000_000), nil })
		if err != nil {
			return s, nil, err
		}
		r := result{ID: o.ID, Key: o.Key, N: s.N, Chain: s.Chain, Roll: c.Rand().Uint64(), UUID: c.ID(), Salt: salt}
		if o.Fickle {
			r.Noise = noise()
		}
		first, second := r, r
		second.Which = 1
		s.N++
		s.Chain = chain(s.Chain, o.ID)
		s.Log = append(s.Log, o.ID)
		return s, []consistent.Message{consistent.JSON("results/"+o.Key, first), consistent.JSON("copies/"+o.Key, second)}, nil
	}
}

func register(p *consistent.Processor, disturb func(), noise func() int) {
	_ = consistent.Handle(p, "orders/+", func(o order) string { return o.Key }, work(disturb, noise))
}

func (o order) message() consistent.Message {
	m := consistent.JSON("orders/"+o.Key, o)
	m.UserProperties = append(m.UserProperties,
		consistent.UserProperty{Name: "id", Value: o.ID}, consistent.UserProperty{Name: "source", Value: "faultrun"})
	return m
}
