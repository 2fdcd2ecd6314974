// Package store has the actors of a crash test that use the state store: clients with
// every command and condition (store.go), transactors (transactor.go), watchers (watch.go), holders of locks
// (lock.go), an archivist of keys that must stay (archivist.go), and processors of
// messages with LOAD, STORE and DONE (processor.go). Package history judges what the
// first four saw; the others check at once.
package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Chapter is a stretch of lives between two settlements, with keys of its own,
// so that what is searched for an order stays small.
type Chapter struct {
	Number int
	keys   []string // for store clients
	joint  []string // for transactors
	locks  []string // for lock holders
}

// NewChapter makes a chapter with so many keys, joint keys and locks.
func NewChapter(number, keys, joint, locks int) *Chapter {
	c := &Chapter{Number: number}
	for i := range joint {
		c.joint = append(c.joint, fmt.Sprintf("chapter%d/joint%d", number, i))
	}
	for i := range keys {
		c.keys = append(c.keys, fmt.Sprintf("chapter%d/key%d", number, i))
	}
	for i := range locks {
		c.locks = append(c.locks, fmt.Sprintf("chapter%d/lock%d", number, i))
	}
	return c
}

// historian is an actor whose requests to the store go down in history.
type historian struct {
	name  string
	rng   *rand.Rand
	clock *hlc.Clock
	order uint64
	ops   []history.Operation
	cut   []*pending // under way when a connection ended, in a life that goes on
}

func newHistorian(name string, rng *rand.Rand) historian {
	return historian{name: name, rng: rng, clock: hlc.NewClock(name)}
}

func (h *historian) request(verb statestore.Verb, key string) history.Request {
	h.order++
	return history.Request{Verb: verb, Key: key, Order: h.order}
}

// unique is a value that no other request writes.
func (h *historian) unique() string { return fmt.Sprintf("%s.%d", h.name, h.order) }

func (h *historian) note(p *pending) {
	h.ops = append(h.ops, history.Operation{Request: p.Request, Answer: p.Answer})
}

// ask sends one request and waits for its answer.
func (h *historian) ask(l *lives.Life, s *storeLink, r history.Request) (history.Answer, error) {
	s.send(r)
	p, err := h.await(l, s)
	if err != nil {
		return history.Answer{}, err
	}
	return p.Answer, nil
}

// await waits for the next answer.
func (h *historian) await(l *lives.Life, s *storeLink) (*pending, error) {
	for {
		if err := s.Flush(); err != nil {
			return nil, err
		}
		p, err := s.receive()
		if err != nil {
			return nil, err
		}
		if p != nil && !p.watch {
			h.note(p)
			l.Acks.Count()
			return p, nil
		}
	}
}

// over ends a connection that failed: what was under way goes down as open.
func (h *historian) over(l *lives.Life, s *storeLink, cause error) error {
	s.Close()
	for _, p := range s.waiting {
		h.cut = append(h.cut, p)
	}
	return h.ended(l, cause)
}

// ended waits for the end of the life, unless the actor is to connect again before.
func (h *historian) ended(l *lives.Life, cause error) error {
	err := l.EndedWithLeader(h.name, cause)
	if !errors.Is(err, lives.ErrAgain) {
		h.abandon(l.DiedAt.Load())
	}
	return err
}

// dial connects. What the actor was not answered before is not executed any more when its
// next connection is accepted: a server first handles what came over the connection before it.
func (h *historian) dial(l *lives.Life) (*storeLink, error) {
	s, err := dialStore(l, h.name, h.clock)
	if err == nil {
		h.abandon(lives.Now())
	}
	return s, err
}

// abandon notes the requests whose reply was lost with a connection. They were executed before
// a moment, or never will be.
func (h *historian) abandon(before int64) {
	for _, p := range h.cut {
		if p.watch || p.Verb == statestore.Get || p.Verb == statestore.Load || p.Call > before {
			continue // saw nothing, or came too late to be executed
		}
		p.Fate, p.Ret = history.Lost, before
		if p.puback {
			p.Fate = history.Executed
		}
		h.note(p)
	}
	h.cut = nil
}

// Take hands over the history since the last time.
func (h *historian) Take() []history.Operation {
	ops := h.ops
	h.ops = nil
	return ops
}

// Client works on the chapter's keys with every command and condition.
type Client struct {
	historian
	Chapter *Chapter
	tokens  []hlc.Timestamp
	window  int // requests under way at a time, at most
	known   versions

	transacts bool            // it uses the joint keys, and every other request is a TXN
	fenced    map[string]bool // keys that have refused a request of a transactor without a token
}

// versions is the version last seen of each key.
type versions map[string]hlc.Timestamp

// storeWindow is how many requests a client has under way, at most.
const storeWindow = 3

// NewClient makes a client of the keys of a chapter.
func NewClient(number int, rng *rand.Rand, c *Chapter, tokens []hlc.Timestamp) *Client {
	return &Client{historian: newHistorian(fmt.Sprintf("client%d", number), rng), Chapter: c, tokens: tokens, window: storeWindow, known: versions{}, fenced: map[string]bool{}}
}

// Live implements lives.Actor.
func (c *Client) Live(l *lives.Life) error {
	s, err := c.dial(l)
	if err != nil {
		return c.ended(l, err)
	}
	l.Arrivals.Count()
	if l.Settle {
		return c.lookAtAll(l, s)
	}
	for {
		for range 1 + c.rng.IntN(c.window) {
			s.send(c.random())
		}
		for len(s.waiting) > 0 {
			p, err := c.await(l, s)
			if err != nil {
				return c.over(l, s, err)
			}
			c.learn(p)
		}
	}
}

// lookAtAll reads every key of the chapter at its end.
func (c *Client) lookAtAll(l *lives.Life, s *storeLink) error {
	for _, key := range slices.Concat(c.Chapter.keys, c.Chapter.joint, c.Chapter.locks) {
		if _, err := c.ask(l, s, c.request(statestore.Get, key)); err != nil {
			return c.over(l, s, err)
		}
	}
	clear(c.known)
	return s.Disconnect(mqtt.Disconnect{})
}

func (c *Client) random() history.Request {
	keys := c.Chapter.keys
	if c.transacts {
		switch keys = c.Chapter.joint; c.rng.IntN(8) {
		case 0, 1, 2, 3:
			return c.randomTxn()
		case 4:
			r := c.request(statestore.Load, "")
			m := c.message()
			r.Key, r.Message = m.Key, m.ID
			return r
		}
	}
	r := c.request(0, keys[c.rng.IntN(len(keys))])
	switch n := c.rng.IntN(16); {
	case n < 5:
		r.Verb = statestore.Get
		return r
	case n < 6:
		r.Verb = statestore.Del
	case n < 8:
		r.Verb, r.Value = statestore.VDel, c.common()
	default:
		c.randomSet(&r)
	}
	switch {
	case c.transacts:
		c.fence(&r)
	case c.rng.IntN(5) == 0:
		r.Token = c.tokens[c.rng.IntN(len(c.tokens))]
	}
	return r
}

// common is a value that others may write too, for conditions to be met at times.
func (c *Client) common() string { return fmt.Sprintf("common%d", c.rng.IntN(2)) }

func (c *Client) randomSet(r *history.Request) {
	r.Verb, r.Value = statestore.Set, c.unique()
	if c.rng.IntN(3) == 0 {
		r.Value = c.common()
	}
	switch c.rng.IntN(6) {
	case 0:
		r.Condition = statestore.IfAbsent
	case 1:
		r.Condition = statestore.IfAbsentOrEqual
	case 2:
		r.Condition, r.Compare, r.Operand = statestore.IfAbsentOrEqual, true, c.common()
	}
	if c.rng.IntN(4) == 0 {
		r.PX = 1 + c.rng.Int64N(250)
	}
	if c.rng.IntN(5) == 0 {
		r.Ver.Given = true
		if r.Ver.At = c.known[r.Key]; r.Ver.At.IsZero() {
			r.Ver.Absent = true
		}
	}
}

// RandomTokens are fencing tokens of about now, few enough to meet again.
func RandomTokens(base int64) []hlc.Timestamp {
	var tokens []hlc.Timestamp
	for i := range 4 {
		tokens = append(tokens, hlc.Timestamp{Wall: uint64(base) + uint64(i/2), Counter: uint64(1 + i%2), Node: "crashtest"})
	}
	return tokens
}
