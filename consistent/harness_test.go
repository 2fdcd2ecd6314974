package consistent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// patience is how long anything may take before it counts as never happening.
const patience = time.Minute

var clients atomic.Int64 // for a client ID each

func dial(t testing.TB, address string, opts ...client.Option) *consistent.Connection {
	t.Helper()
	shared := []client.Option{client.WithClientID(fmt.Sprint("test-", clients.Add(1))), client.WithLogger(slog.New(slog.DiscardHandler)), client.WithBackoff(5*time.Millisecond, 50*time.Millisecond)}
	c, err := consistent.Dial(t.Context(), address, append(shared, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The example that most tests use: accounts, to which amounts are added. Each deposit
// is answered by the balance.
type (
	deposit struct {
		Account string
		Amount  int
	}
	account struct{ Balance, Deposits int }
	balance struct {
		Account string
		Balance int
	}
)

func book(_ *consistent.Context, s account, m deposit) (account, []consistent.Message, error) {
	s.Balance += m.Amount
	s.Deposits++
	return s, []consistent.Message{consistent.JSON("balances/"+m.Account, balance{m.Account, s.Balance})}, nil
}

func accountOf(d deposit) string { return d.Account }

// sameKey is the key function of handlers whose messages all have one key.
func sameKey[M any](M) string { return "k" }

// quickly is for tests that have to wait for several attempts.
var quickly = consistent.WithBackoff(time.Millisecond, time.Millisecond)

// bank is a processor that books deposits.
func bank(t testing.TB, conn consistent.Conn, opts ...consistent.Option) *consistent.Processor {
	t.Helper()
	opts = append([]consistent.Option{consistent.WithAttempts(3), consistent.WithBackoff(time.Millisecond, 5*time.Millisecond)}, opts...)
	p := newProcessor(t, conn, "bank", opts...)
	_ = consistent.Handle(p, "deposits/+", accountOf, book)
	return p
}

// newProcessor is a processor on the state-based path.
func newProcessor(t testing.TB, conn consistent.Conn, name string, opts ...consistent.Option) *consistent.Processor {
	t.Helper()
	return transactional(t, conn, name, append([]consistent.Option{consistent.Replay()}, opts...)...)
}

// transactional is a processor on the transactional path.
func transactional(t testing.TB, conn consistent.Conn, name string, opts ...consistent.Option) *consistent.Processor {
	t.Helper()
	quiet := consistent.WithLogger(slog.New(slog.DiscardHandler))
	p, err := consistent.New(conn, name, append([]consistent.Option{quiet}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a processor until the test ends, or the returned function is called.
func run(t testing.TB, p *consistent.Processor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(stop)
	select {
	case <-p.Subscribed():
	case err := <-done:
		t.Fatalf("Run: %v", err)
	case <-time.After(patience):
		t.Fatal("no subscription")
	}
	return stop
}

// message is a deposit with an identity.
func message(id string, d deposit) consistent.Message {
	m := consistent.JSON("deposits/"+d.Account, d)
	m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "id", Value: id}, consistent.UserProperty{Name: "source", Value: "test"})
	return m
}

// observer collects what is published on some topics.
type observer struct {
	session  *client.Session
	received chan consistent.Message
}

func observe(t testing.TB, address string, filters ...string) *observer {
	t.Helper()
	session, err := client.DialSession(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	o := &observer{session, make(chan consistent.Message, 10_000)}
	if len(filters) > 0 {
		if err := session.Subscribe(t.Context(), filters...); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for d, err := range session.Messages(t.Context()) {
			if err != nil {
				return
			}
			d.Ack()
			o.received <- d.Message
		}
	}()
	return o
}

func (o *observer) publish(t testing.TB, messages ...consistent.Message) {
	t.Helper()
	if err := o.session.Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
}

func (o *observer) next(t testing.TB) consistent.Message {
	t.Helper()
	select {
	case m := <-o.received:
		return m
	case <-time.After(patience):
		t.Fatal("no message came")
		return consistent.Message{}
	}
}

// conn is a connection with faults: each function, if there is one, stands before or
// in place of the real thing.
type conn struct {
	*consistent.Connection
	mu      sync.Mutex
	counts  map[string]int
	load    func() error
	store   func(r consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error)
	done    func() error
	txn     func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error)
	several func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) // STOREs and DONEs
	publish func(ms []consistent.Message, carryOut func() error) error
}

func (c *conn) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[string]int)
	}
	c.counts[name]++
	return c.counts[name]
}

func (c *conn) counted(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[name]
}

func (c *conn) Load(ctx context.Context, key, id string) (client.LoadResult, error) {
	c.count("load")
	if c.load != nil {
		if err := c.load(); err != nil {
			return client.LoadResult{}, err
		}
	}
	return c.Connection.Load(ctx, key, id)
}

func (c *conn) Store(ctx context.Context, r consistent.StoreRequest) (client.StoreResult, error) {
	if r.MessageID == "keep" { // the processor asks what is granted
		return c.Connection.Store(ctx, r)
	}
	c.count("store")
	carryOut := func() (client.StoreResult, error) { return c.Connection.Store(ctx, r) }
	if c.store != nil {
		return c.store(r, carryOut)
	}
	return carryOut()
}

func (c *conn) Transact(ctx context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	if len(r.Messages) > 0 && r.Messages[0].ID == "keep" { // the processor asks whether there is such a command
		return c.Connection.Transact(ctx, r)
	}
	carryOut := func() (consistent.TxnResult, error) { return c.Connection.Transact(ctx, r) }
	if r.Open || len(r.Done) > 0 {
		return c.together(&r, carryOut)
	}
	c.count("txn")
	if c.txn != nil {
		return c.txn(r, carryOut)
	}
	return carryOut()
}

// together carries out STOREs and DONEs of several messages, unless a fault is to stand before
// each of them: then it is a server that takes them one by one.
func (c *conn) together(r *consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
	if c.store != nil || c.done != nil {
		return consistent.TxnResult{}, client.ErrUnknownOperation
	}
	if c.several != nil {
		return c.several(*r, carryOut)
	}
	result, err := carryOut()
	for _, r := range requests(*r) {
		for range r.Messages {
			c.count("store")
		}
		for range r.Done {
			c.count("done")
		}
	}
	return result, err
}

func (c *conn) Done(ctx context.Context, r consistent.DoneRequest) (bool, error) {
	if c.done != nil {
		if err := c.done(); err != nil {
			return false, err
		}
	}
	ok, err := c.Connection.Done(ctx, r)
	c.count("done")
	return ok, err
}

func (c *conn) Publish(ctx context.Context, ms ...consistent.Message) error {
	c.count("publish")
	carryOut := func() error { return c.Connection.Publish(ctx, ms...) }
	if c.publish != nil {
		return c.publish(ms, carryOut)
	}
	return carryOut()
}

var errInjected = errors.New("injected fault")

// state reads what a handler has stored.
func state(t testing.TB, c *consistent.Connection, key string) (string, hlc.Timestamp) {
	t.Helper()
	v, _, err := c.Client().Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(v.Bytes), v.Version
}
