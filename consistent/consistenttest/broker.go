package consistenttest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Broker is a broker and a state store in memory, for handlers to be tested on. It
// delivers at QoS 1, in order, to the sessions of its connections. It is safe for
// concurrent use.
type Broker struct {
	mu        sync.Mutex
	idle      sync.Cond            // on mu: nothing is waiting or unacknowledged
	sessions  map[string]*session  // under mu: by name
	order     []*session           // under mu: in the order in which they came
	turn      int                  // under mu: for shared subscriptions
	published []consistent.Message // under mu: in order
	open      int                  // under mu: deliveries waiting or not acknowledged, over all sessions
	store     store                // under mu
	timers    []timer              // under mu
	set       int                  // under mu: timers so far
}

// NewBroker makes a broker without sessions and keys. Its time is now, and stands still.
func NewBroker() *Broker {
	b := &Broker{sessions: make(map[string]*session), store: newStore(time.Now())}
	b.idle.L = &b.mu
	return b
}

// session is what outlives a connection.
type session struct {
	filters []string
	conn    *Conn // nil: no client is connected
	waiting []*delivery
	sent    []*delivery // not acknowledged
}

type delivery struct {
	message     consistent.Message
	shared      bool // it came by a shared subscription
	redelivered bool
}

// Conn is a connection to a [Broker]; it implements [consistent.Conn].
type Conn struct {
	b      *Broker
	s      *session
	more   chan struct{} // something waits; buffered
	closed chan struct{}
	once   sync.Once
}

// Connect connects to the session of that name, which outlives the connection, taking
// it over from another one.
func (b *Broker) Connect(name string) *Conn {
	b.mu.Lock()
	s := b.sessions[name]
	if s == nil {
		s = &session{}
		b.sessions[name] = s
		b.order = append(b.order, s)
	}
	before := s.conn
	b.mu.Unlock()
	if before != nil {
		_ = before.Close()
	}
	c := &Conn{b: b, s: s, more: make(chan struct{}, 1), closed: make(chan struct{})}
	b.mu.Lock()
	s.conn = c
	b.mu.Unlock()
	return c
}

// Close breaks the connection, as a crash of its process does: requests fail, and what
// isn't acknowledged is delivered again, to the session's next connection or, from a
// shared subscription, to another member.
func (c *Conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		b, s := c.b, c.s
		b.mu.Lock()
		defer b.mu.Unlock()
		s.conn = nil
		for _, d := range s.sent {
			d.redelivered = true
		}
		back := append(s.sent, s.waiting...)
		s.sent, s.waiting = nil, nil
		for _, d := range back {
			to := s
			if d.shared {
				to = b.member(d.message.Topic, s)
			}
			to.waiting = append(to.waiting, d)
			to.conn.wake()
		}
	})
	return nil
}

// member finds a connected session that shares a topic; without any, it stays with s.
func (b *Broker) member(name string, s *session) *session {
	for range b.order {
		b.turn++
		other := b.order[b.turn%len(b.order)]
		if shared, wanted := other.wants(name); wanted && shared && other.conn != nil {
			return other
		}
	}
	return s
}

// wants reports whether a session subscribes to a topic, and whether it does so as a
// member of a group.
func (s *session) wants(name string) (shared, wanted bool) {
	for _, filter := range s.filters {
		if rest, ok := strings.CutPrefix(filter, "$share/"); ok {
			_, rest, _ = strings.Cut(rest, "/")
			if topic.Matches(rest, []byte(name)) {
				return true, true
			}
		} else if topic.Matches(filter, []byte(name)) {
			return false, true
		}
	}
	return false, false
}

func (c *Conn) wake() {
	if c == nil {
		return
	}
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// Publish publishes messages as another client would. One with a time is a timer: see
// [Broker.Advance].
func (b *Broker) Publish(messages ...consistent.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range messages {
		b.accept(&messages[i])
	}
}

// route queues a message for every session that wants it, and for one member of the
// group. The broker has one group for all shared subscriptions. The caller holds mu.
func (b *Broker) route(m *consistent.Message) {
	toGroup := false
	for _, s := range b.order {
		shared, wanted := s.wants(m.Topic)
		switch {
		case !wanted, shared && toGroup:
			continue
		case shared:
			toGroup = true
			s = b.member(m.Topic, s)
		}
		s.waiting = append(s.waiting, &delivery{message: *m, shared: shared})
		b.open++
		s.conn.wake()
	}
}

// Published returns what was published on the topics of a filter, in order.
func (b *Broker) Published(filter string) []consistent.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []consistent.Message
	for _, m := range b.published {
		if topic.Matches(filter, []byte(m.Topic)) {
			found = append(found, m)
		}
	}
	return found
}

// State returns the value of a key of the store; found is false if there is none. A
// handler's state is under its name, a slash, and the business key.
func (b *Broker) State(key string) (value []byte, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.store.entries[key].Live(b.store.now.UnixMilli())
	if e == nil {
		return nil, false
	}
	return slices.Clone(e.Value), true
}

// Settle waits until all subscribers have acknowledged all messages, or ctx ends.
func (b *Broker) Settle(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.idle.Broadcast()
	})
	defer stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.open > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d deliveries are not acknowledged: %w", b.open, err)
		}
		b.idle.Wait()
	}
	return nil
}

// Subscribe implements consistent.Conn.
func (c *Conn) Subscribe(_ context.Context, filters ...string) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.ended() {
		return client.ErrClosed
	}
	for _, f := range filters {
		if !topic.ValidFilter(f) {
			return fmt.Errorf("subscribe: %w: %q is not a topic filter", client.ErrInvalidOption, f)
		}
	}
	for _, f := range filters {
		if !slices.Contains(c.s.filters, f) {
			c.s.filters = append(c.s.filters, f)
		}
	}
	c.wake()
	return nil
}

func (c *Conn) ended() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// Messages implements consistent.Conn.
func (c *Conn) Messages(ctx context.Context) iter.Seq2[consistent.Delivery, error] {
	return func(yield func(consistent.Delivery, error) bool) {
		for {
			switch {
			case ctx.Err() != nil:
				yield(consistent.Delivery{}, context.Cause(ctx))
				return
			case c.ended():
				yield(consistent.Delivery{}, client.ErrClosed)
				return
			}
			if d, ok := c.take(); ok {
				if !yield(d, nil) {
					return
				}
				continue
			}
			select {
			case <-c.more:
			case <-c.closed:
			case <-ctx.Done():
			}
		}
	}
}

func (c *Conn) take() (_ consistent.Delivery, ok bool) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.ended() || len(c.s.waiting) == 0 {
		return consistent.Delivery{}, false
	}
	d := c.s.waiting[0]
	c.s.waiting = c.s.waiting[1:]
	c.s.sent = append(c.s.sent, d)
	return client.NewDelivery(d.message, d.redelivered, func() { c.ack(d) }), true
}

// ack does nothing once the connection is closed.
func (c *Conn) ack(d *delivery) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	i := slices.Index(c.s.sent, d)
	if c.ended() || i < 0 {
		return
	}
	c.s.sent = slices.Delete(c.s.sent, i, i+1)
	if c.b.open--; c.b.open == 0 {
		c.b.idle.Broadcast()
	}
}

// Set implements consistent.Conn.
func (c *Conn) Set(_ context.Context, key string, value []byte, expiry time.Duration) error {
	_, err := c.command(&statestore.Command{Verb: statestore.Set, Key: []byte(key), Value: slices.Clone(value), ExpiryMs: expiry.Milliseconds()})
	return err
}

// Usage implements consistent.Conn.
func (c *Conn) Usage(_ context.Context, prefix string) (keys int, bytes int64, err error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	for key, e := range c.b.store.entries {
		if e.Live(c.b.store.now.UnixMilli()) != nil && strings.HasPrefix(key, prefix) {
			keys++
			bytes += int64(len(e.Value))
		}
	}
	return keys, bytes, nil
}

// Publish implements consistent.Conn.
func (c *Conn) Publish(_ context.Context, messages ...consistent.Message) error {
	if c.ended() {
		return client.ErrClosed
	}
	for i := range messages {
		if !topic.ValidName([]byte(messages[i].Topic)) {
			return &client.RejectedError{Code: client.ReasonTopicNameInvalid, Reason: "that is not the name of a topic"}
		}
	}
	c.b.Publish(messages...)
	return nil
}

// ClockAhead implements consistent.Conn.
func (c *Conn) ClockAhead() time.Duration { return 0 }

// SessionExpiry implements consistent.Conn: sessions last, but no test that long.
func (c *Conn) SessionExpiry() time.Duration { return 24 * time.Hour }

// MaxPacketSize implements consistent.Conn: there is no limit.
func (c *Conn) MaxPacketSize() uint32 { return 0 }

// Load implements consistent.Conn.
func (c *Conn) Load(_ context.Context, key, messageID string) (client.LoadResult, error) {
	r, err := c.command(&statestore.Command{Verb: statestore.Load, Key: []byte(key), Message: []byte(messageID)})
	if err != nil {
		return client.LoadResult{}, err
	}
	return client.LoadResult{Status: client.MessageStatus(r.Count), State: r.Value, Captured: r.Context, Version: r.Version}, nil
}

// Store implements consistent.Conn.
func (c *Conn) Store(_ context.Context, r consistent.StoreRequest) (client.StoreResult, error) {
	reply, err := c.command(&statestore.Command{Verb: statestore.Store, Key: []byte(r.Key), Value: slices.Clone(r.State), Message: []byte(r.MessageID),
		Version: statestore.VersionCheck{Given: true, Absent: r.Version.IsZero(), At: r.Version}, Context: slices.Clone(r.Captured), KeepMs: r.Keep.Milliseconds(), Remove: r.Delete, ExpiryMs: r.Expiry.Milliseconds()})
	granted := time.Duration(reply.KeepMs) * time.Millisecond
	switch {
	case err != nil:
		return client.StoreResult{}, err
	case reply.Kind == statestore.OK:
		return client.StoreResult{Outcome: client.Stored, Version: reply.Version, Keep: granted}, nil
	case reply.Kind == statestore.Conflict:
		return client.StoreResult{Outcome: client.VersionConflict, Version: reply.Version, Keep: granted}, nil
	}
	return client.StoreResult{Outcome: client.AlreadyStored, Version: reply.Version}, nil
}

// Done implements consistent.Conn.
func (c *Conn) Done(_ context.Context, d consistent.DoneRequest) (bool, error) {
	r, err := c.command(&statestore.Command{Verb: statestore.Done, Key: []byte(d.Key), Message: []byte(d.MessageID),
		Version: statestore.VersionCheck{Given: true, At: d.Version}, Context: slices.Clone(d.Digest)})
	return r.Count == 1, err
}

func (c *Conn) command(cmd *statestore.Command) (statestore.Reply, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.ended() {
		return statestore.Reply{}, client.ErrClosed
	}
	r := c.b.store.apply(cmd)
	if r.Kind == statestore.Error {
		return r, r.Fault
	}
	return r, nil
}

// store runs the server's own rules.
type store struct {
	entries map[string]*statestore.Entry
	memos   map[[2]string]*statestore.Memo
	last    hlc.Timestamp
	now     time.Time
	maxKeep time.Duration
}

func newStore(now time.Time) store {
	return store{now: now, maxKeep: 3650 * 24 * time.Hour, entries: make(map[string]*statestore.Entry), memos: make(map[[2]string]*statestore.Memo)}
}

func (s *store) apply(cmd *statestore.Command) statestore.Reply {
	env, stamp := s.env()
	cmd.Time = stamp
	key, memo := string(cmd.Key), [2]string{string(cmd.Key), string(cmd.Message)}
	var r statestore.Result
	statestore.Apply(cmd, statestore.Cell{Entry: s.entries[key], Memo: s.memos[memo]}, env, &r)
	s.last = r.Last
	if r.Changed {
		s.entries[key] = r.Entry.Clone()
	}
	if r.MemoChanged {
		r.Memo.Own()
		s.memos[memo] = r.Memo
	}
	return r.Reply
}

// env is what the rules look at, and the timestamp of a request that comes now.
func (s *store) env() (*statestore.Env, statestore.Stamp) {
	const day = 24 * int64(time.Hour/time.Millisecond)
	now := s.now.UnixMilli()
	return &statestore.Env{NowMs: now, WallMs: now, Last: s.last, Node: "store", MaxSkewMs: 60_000, KeepMs: 7 * day, MaxKeepMs: s.maxKeep.Milliseconds(),
		Room: statestore.Room{Keys: 1 << 40, Bytes: 1 << 40, Memos: 1 << 40}}, statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: uint64(now), Node: "test"}}
}
