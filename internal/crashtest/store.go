package crashtest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"holdfast/hlc"
	"holdfast/internal/mqtt"
	"holdfast/internal/statestore"
)

// chapter is a stretch of lives between two settlements, with keys of its own,
// so that what is searched for an order stays small.
type chapter struct {
	number int
	keys   []string // for store clients
	locks  []string // for lock holders
}

func newChapter(number, keys, locks int) *chapter {
	c := &chapter{number: number}
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
	ops   []operation
}

func newHistorian(name string, rng *rand.Rand) historian {
	return historian{name: name, rng: rng, clock: hlc.NewClock(name)}
}

func (h *historian) request(verb statestore.Verb, key string) request {
	h.order++
	return request{verb: verb, key: key, order: h.order}
}

// unique is a value that no other request writes.
func (h *historian) unique() string { return fmt.Sprintf("%s.%d", h.name, h.order) }

func (h *historian) note(p *pending) {
	h.ops = append(h.ops, operation{p.request, p.answer})
}

// ask sends one request and waits for its answer.
func (h *historian) ask(l *life, s *storeLink, r request) (answer, error) {
	s.send(r)
	p, err := h.await(l, s)
	if err != nil {
		return answer{}, err
	}
	return p.answer, nil
}

// await waits for the next answer.
func (h *historian) await(l *life, s *storeLink) (*pending, error) {
	for {
		if err := s.flush(); err != nil {
			return nil, err
		}
		p, err := s.receive()
		if err != nil {
			return nil, err
		}
		if p != nil && !p.watch {
			h.note(p)
			l.work.count()
			return p, nil
		}
	}
}

// over ends a connection that failed: what was under way goes down as open.
func (h *historian) over(l *life, s *storeLink, cause error) error {
	s.close()
	err := l.ended(h.name, cause)
	for _, p := range s.abandon(l.diedAt.Load()) {
		h.note(p)
	}
	return err
}

// take hands over the history since the last time.
func (h *historian) take() []operation {
	ops := h.ops
	h.ops = nil
	return ops
}

// storeClient works on the chapter's keys with every command and condition.
type storeClient struct {
	historian
	chapter *chapter
	tokens  []hlc.Timestamp
	window  int // requests under way at a time, at most
	known   versions
}

// versions is the version last seen of each key.
type versions map[string]hlc.Timestamp

func (c *storeClient) live(l *life) error {
	s, err := dialStore(l, c.name, c.clock)
	if err != nil {
		return l.ended(c.name, err)
	}
	l.news.count()
	if l.settle {
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
			if !p.version.IsZero() {
				c.known[p.key] = p.version
			}
		}
	}
}

// lookAtAll reads every key of the chapter at its end.
func (c *storeClient) lookAtAll(l *life, s *storeLink) error {
	for _, key := range slices.Concat(c.chapter.keys, c.chapter.locks) {
		if _, err := c.ask(l, s, c.request(statestore.Get, key)); err != nil {
			return c.over(l, s, err)
		}
	}
	clear(c.known)
	return s.goodbye(mqtt.Disconnect{})
}

func (c *storeClient) random() request {
	r := c.request(0, c.chapter.keys[c.rng.IntN(len(c.chapter.keys))])
	switch n := c.rng.IntN(16); {
	case n < 5:
		r.verb = statestore.Get
		return r
	case n < 6:
		r.verb = statestore.Del
	case n < 8:
		r.verb, r.value = statestore.VDel, c.common()
	default:
		c.randomSet(&r)
	}
	if c.rng.IntN(5) == 0 {
		r.token = c.tokens[c.rng.IntN(len(c.tokens))]
	}
	return r
}

// common is a value that others may write too, for conditions to be met at times.
func (c *storeClient) common() string { return fmt.Sprintf("common%d", c.rng.IntN(2)) }

func (c *storeClient) randomSet(r *request) {
	r.verb, r.value = statestore.Set, c.unique()
	if c.rng.IntN(3) == 0 {
		r.value = c.common()
	}
	switch c.rng.IntN(6) {
	case 0:
		r.condition = statestore.IfAbsent
	case 1:
		r.condition = statestore.IfAbsentOrEqual
	case 2:
		r.condition, r.compare, r.operand = statestore.IfAbsentOrEqual, true, c.common()
	}
	if c.rng.IntN(4) == 0 {
		r.px = 1 + c.rng.Int64N(250)
	}
	if c.rng.IntN(5) == 0 {
		r.ver.Given = true
		if r.ver.At = c.known[r.key]; r.ver.At.IsZero() {
			r.ver.Absent = true
		}
	}
}

// randomTokens are fencing tokens of about now, few enough to meet again.
func randomTokens(base int64) []hlc.Timestamp {
	var tokens []hlc.Timestamp
	for i := range 4 {
		tokens = append(tokens, hlc.Timestamp{Wall: uint64(base) + uint64(i/2), Counter: uint64(1 + i%2), Node: "crashtest"})
	}
	return tokens
}
