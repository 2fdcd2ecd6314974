// Package memory bounds the bytes that clients can make the process hold.
//
// A Pool is the one budget. Whatever keeps a client's bytes for longer than it
// works on them charges the Pool with their size, and credits it when the bytes
// go: a half-received packet, output that a socket doesn't take, a queue's window
// of messages, a subscription, a key. What a goroutine needs only while it runs is
// not charged: there are never more such goroutines at work than processors, so a
// GET or a SET that goes straight through touches no counter.
//
// There are two sorts of use, with a bound each, so that neither starves the
// other. State stays until a client removes it: keys, retained messages, sessions,
// subscriptions. At its bound a Take is refused, and the caller refuses the
// request with the protocol's own code. Traffic comes and goes: input, output,
// queues in memory. Before its bound readers are held up (Tight); at its bound the
// connection that holds most is closed (the Relief that the broker registers), so
// that the cause pays and not a bystander.
package memory

import (
	"math"
	"sync/atomic"
)

// Kind says what charged bytes are for.
type Kind uint8

// Kinds of traffic come first, then those of state.
const (
	Unconnected   Kind = iota // received parts of CONNECTs, whose client is not known yet
	Input                     // received parts of packets that wait for their rest
	Output                    // bytes that sockets have not taken
	Queues                    // application messages in the memory of sessions' queues and groups' backlogs
	Replies                   // responses and notifications that wait for their client
	Keys                      // keys, values, fencing tokens and their index
	Watches                   // watched keys
	Remembered                // messages of LOAD, STORE and DONE that are kept in memory
	Retained                  // retained messages
	Sessions                  // sessions, connected or away, with their wills, received QoS 2 identifiers, and which queues share a message
	Subscriptions             // topic filters and topic aliases
	kinds

	firstState = Keys
)

var kindNames = [kinds]string{
	"unconnected", "input", "output", "queues", "replies",
	"keys", "watches", "remembered", "retained", "sessions", "subscriptions",
}

func (k Kind) String() string { return kindNames[k] }

// Kinds lists every kind, for figures.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Shares of the limit, in eighths: state and traffic together may pass the limit
// only by what is charged without asking.
const (
	stateEighths   = 6
	trafficEighths = 4
	tightEighths   = 3 // of the limit, from which on readers of traffic are held up
)

// Shares of the limit, in sixteenths, that watched keys and subscriptions may hold. No principal has a
// bound of its own for what its connections watch and subscribe to, so these leave room for the
// sessions, keys and retained messages of others.
const (
	watchSixteenths        = 4
	subscriptionSixteenths = 6
)

// UnconnectedShare is the part of the limit that connections before their CONNECT may
// hold. A usual CONNECT arrives in one piece and is never charged.
const UnconnectedShare = 16

// Pool is a budget of bytes. Its methods are safe for concurrent use. A nil Pool
// refuses nothing and counts nothing.
type Pool struct {
	limit   int64
	used    [kinds]atomic.Int64
	state   atomic.Int64
	traffic atomic.Int64
	refused atomic.Int64

	relief chan struct{} // a token: traffic has passed its bound
}

// NewPool makes a Pool of limit bytes, above 0.
func NewPool(limit int64) *Pool {
	if limit <= 0 {
		panic("memory: a pool needs a limit above 0")
	}
	return &Pool{limit: limit, relief: make(chan struct{}, 1)}
}

// Take charges n bytes, at least 0, or says false and charges nothing if they would
// pass the bound of the kind's sort or the limit.
func (p *Pool) Take(k Kind, n int64) bool {
	if p == nil {
		return true
	}
	sort, bound := p.sort(k)
	if now := sort.Add(n); n > 0 && (now > bound || p.state.Load()+p.traffic.Load() > p.limit) {
		sort.Add(-n)
		p.refused.Add(1)
		p.alarm(k)
		return false
	}
	if now := p.used[k].Add(n); n > 0 && now > p.most(k) {
		p.used[k].Add(-n)
		sort.Add(-n)
		p.refused.Add(1)
		return false
	}
	return true
}

// most is how many bytes of a kind Take charges.
func (p *Pool) most(k Kind) int64 {
	switch k {
	case Unconnected:
		return p.limit / UnconnectedShare
	case Watches:
		return p.limit / 16 * watchSixteenths
	case Subscriptions:
		return p.limit / 16 * subscriptionSixteenths
	}
	return math.MaxInt64
}

// Room is how many bytes Take would charge now at the most; 0 at a bound.
func (p *Pool) Room(k Kind) int64 {
	if p == nil {
		return math.MaxInt64
	}
	sort, bound := p.sort(k)
	state, traffic := p.state.Load(), p.traffic.Load()
	used := traffic
	if sort == &p.state {
		used = state
	}
	return max(0, min(bound-used, p.limit-state-traffic))
}

// Fits says whether Take would charge n bytes, and counts a refusal if not: for a
// caller that charges once the bytes are there.
func (p *Pool) Fits(k Kind, n int64) bool {
	if p == nil || n <= 0 {
		return true
	}
	sort, bound := p.sort(k)
	if sort.Load()+n <= bound && p.state.Load()+p.traffic.Load()+n <= p.limit {
		return true
	}
	p.refused.Add(1)
	p.alarm(k)
	return false
}

// Charge charges n bytes that are there already, whatever the bounds say; with a
// negative n it credits them.
func (p *Pool) Charge(k Kind, n int64) {
	if p == nil || n == 0 {
		return
	}
	sort, bound := p.sort(k)
	p.used[k].Add(n)
	if now := sort.Add(n); n > 0 && (now > bound || p.state.Load()+p.traffic.Load() > p.limit) {
		p.alarm(k)
	}
}

// Credit gives n bytes back.
func (p *Pool) Credit(k Kind, n int64) { p.Charge(k, -n) }

func (p *Pool) sort(k Kind) (use *atomic.Int64, bound int64) {
	if k < firstState {
		return &p.traffic, p.limit / 8 * trafficEighths
	}
	return &p.state, p.limit / 8 * stateEighths
}

// alarm asks for relief if it is traffic that passed its bound.
func (p *Pool) alarm(k Kind) {
	if k >= firstState {
		return
	}
	select {
	case p.relief <- struct{}{}:
	default:
	}
}

// Tight says whether traffic is so close to its bound that a reader whose client
// causes more should wait.
func (p *Pool) Tight() bool {
	return p != nil && (p.traffic.Load() > p.limit/8*tightEighths || p.state.Load()+p.traffic.Load() > p.limit/8*7)
}

// Over says whether traffic has passed its bound.
func (p *Pool) Over() bool {
	return p != nil && (p.traffic.Load() > p.limit/8*trafficEighths || p.state.Load()+p.traffic.Load() > p.limit)
}

// Excess is how many bytes of traffic must go until memory isn't tight any more.
func (p *Pool) Excess() int64 {
	if p == nil {
		return 0
	}
	traffic, all := p.traffic.Load(), p.state.Load()+p.traffic.Load()
	return max(0, traffic-p.limit/8*tightEighths, all-p.limit/8*7)
}

// Relief gives a token whenever traffic has passed its bound; the goroutine that takes it
// makes room until Over says false. A nil Pool's never gives one.
func (p *Pool) Relief() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.relief
}

// Limit is the pool's size in bytes; 0 for a nil Pool.
func (p *Pool) Limit() int64 {
	if p == nil {
		return 0
	}
	return p.limit
}

// Used is how many bytes are charged, of all kinds.
func (p *Pool) Used() int64 {
	if p == nil {
		return 0
	}
	return p.state.Load() + p.traffic.Load()
}

// UsedBy is how many bytes of one kind are charged.
func (p *Pool) UsedBy(k Kind) int64 {
	if p == nil {
		return 0
	}
	return p.used[k].Load()
}

// Refused is how often Take has said false.
func (p *Pool) Refused() int64 {
	if p == nil {
		return 0
	}
	return p.refused.Load()
}
