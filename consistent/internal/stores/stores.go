// Package stores commits for the state-based path: it stores what messages have made of their
// states, and confirms messages whose outputs are published. Those of different keys share
// transactions. It is called by the processor, one message of a key at a time, and knows no handler.
package stores

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// STOREs and DONEs in transactions
//
// A message takes a STORE before its outputs are published and a DONE afterwards. What messages of
// different keys need at one time goes in one transaction (commit.Group): the condition, the open
// ONCE and the write of each STORE, and the DONEs of messages that were stored earlier. A STORE may
// be of several messages of its key: then it has an open ONCE for each of them. So may the DONEs
// that are begun at one time.
//
//	key a:  Store ─┐             ┌─ publish, Done ─┐
//	key b:  Store ─┴─► one TXN ──┴─ publish, Done ─┤
//	key c:  Store ─────────────────────────────────┴─► one TXN ── publish, …
//
// For each key the order stays: the caller publishes when Store has returned, and calls Done
// when all outputs are acknowledged. A STORE that speaks against a transaction (the state was
// changed, the message is remembered, there is no room) has that outcome, and the others are sent
// without it, as Group describes. What is left alone is sent as the command STORE or DONE, and so
// is everything while the server is known not to have OPEN and DONE as operations of a transaction.

// StoreRequest asks for a STORE.
type StoreRequest struct {
	Key       string
	State     []byte
	MessageID string
	Version   hlc.Timestamp // that of the state which the message was processed on; zero: there was none
	Captured  []byte        // what Load is to give back to a duplicate
	Keep      time.Duration // for how long the message is remembered
	Delete    bool          // the key is deleted, and State does not count
	Expiry    time.Duration // after which the key expires; 0: never
}

// Send carries a request out as the command STORE.
func Send(ctx context.Context, c *client.Client, r *StoreRequest) (client.StoreResult, error) {
	opts := make([]client.StoreOption, 0, 3)
	opts = append(opts, client.Captured(r.Captured), client.Keep(r.Keep))
	switch {
	case r.Delete:
		opts = append(opts, client.DeleteState())
	case r.Expiry != 0:
		opts = append(opts, client.StateExpiry(r.Expiry))
	}
	return c.Store(ctx, r.Key, r.State, r.MessageID, r.Version, opts...)
}

// DoneRequest asks for a DONE.
type DoneRequest struct {
	Key       string
	MessageID string
	Version   hlc.Timestamp // that the message has produced
	Digest    []byte        // what Load is to give back to a duplicate, in the place of StoreRequest.Captured
}

// Conn carries requests out.
type Conn interface {
	Store(ctx context.Context, r StoreRequest) (client.StoreResult, error)
	Done(ctx context.Context, r DoneRequest) (remembered bool, err error)
	Transact(ctx context.Context, r commit.Request) (commit.Result, error)
}

// Options are those of a Stores.
type Options struct {
	Context    context.Context // of transactions, and of each DONE
	Timeout    time.Duration   // of each request
	Conn       Conn
	Together   bool          // Conn takes requests for several keys
	Limit      *commit.Limit // how many operations a transaction has
	PacketSize func() uint32 // the largest packet that the server takes, in bytes; 0: any
	Confirming int           // calls of Done that wait or are under way, at most
}

// Stores stores and confirms messages. It is safe for concurrent use.
type Stores struct {
	o       Options
	group   *commit.Group
	slots   chan struct{} // one for each call of Done that waits or is under way
	ending  sync.WaitGroup
	lacking atomic.Int64 // requests that go alone before a transaction is tried again: the server lacks OPEN and DONE

	mu         sync.Mutex
	confirming map[message]struct{} // under mu: those of DONEs in group
}

// message names a message of a key.
type message struct{ key, id string }

// tryAgainAfter is after how many requests a server that lacks OPEN and DONE is tried again: the
// next connection may be to a newer one.
const tryAgainAfter = 4096

// New makes a Stores.
func New(o Options) *Stores {
	s := &Stores{o: o, slots: make(chan struct{}, o.Confirming), confirming: make(map[message]struct{})}
	s.group = commit.NewGroup(commit.Options{Context: o.Context, Timeout: o.Timeout, Transact: s.transact, Limit: o.Limit, PacketSize: o.PacketSize})
	return s
}

// together tells whether the next request may share a transaction.
func (s *Stores) together() bool {
	return s.o.Together && (s.lacking.Load() == 0 || s.lacking.Add(-1) <= 0)
}

// Shares tells whether STOREs can share transactions, as far as is known: then a STORE may have
// several messages.
func (s *Stores) Shares() bool { return s.o.Together && s.lacking.Load() <= 0 }

// Store stores what a message has made of its state, in a transaction that it may share unless it
// is to be apart; or what several have made of it, one after the other, if it Shares and none
// IsConfirming: all of that or nothing. A key has one at a time. After an error it may have been
// carried out.
func (s *Stores) Store(ctx context.Context, c *commit.Change, apart bool) (commit.Result, error) {
	c.Open = true
	// The deletion of a key that does not exist makes no version in a transaction.
	if len(c.Messages) == 1 && (apart || c.Delete && c.Version.IsZero() || s.IsConfirming(c.Key, c.Messages[0].ID) || !s.together()) {
		ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
		defer cancel()
		return s.command(ctx, &c.Request)
	}
	return s.group.Commit(ctx, c)
}

// Done says that all outputs of messages of a key are published. It does not wait for the server,
// only as long as Options.Confirming calls wait or are under way; then it calls unconfirmed if that
// failed. The messages, of which there may be none, share a transaction; if it is not carried out,
// each is confirmed alone.
func (s *Stores) Done(key string, of []commit.Done, unconfirmed func(error)) {
	if len(of) == 0 {
		return
	}
	s.slots <- struct{}{}
	s.ending.Add(1)
	d := &confirmation{s: s, unconfirmed: unconfirmed}
	d.Request = commit.Request{Key: key, Done: of}
	if !s.together() || !s.begin(key, of) {
		go func() { d.end(d.each()) }()
		return
	}
	s.group.Start(&d.Change, d)
}

// Wait waits until no DONE waits or is under way. No other is to begin by then.
func (s *Stores) Wait() { s.ending.Wait() }

// begin notes that DONEs are in the group; false: there is one of one of these messages, and nothing is
// noted.
func (s *Stores) begin(key string, of []commit.Done) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range of {
		if _, twice := s.confirming[message{key, of[i].ID}]; twice {
			return false
		}
	}
	for i := range of {
		s.confirming[message{key, of[i].ID}] = struct{}{}
	}
	return true
}

// IsConfirming tells whether a DONE of a message is in the group. A transaction must not name a
// message twice.
func (s *Stores) IsConfirming(key, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.confirming[message{key, id}]
	return is
}

// confirmation is the DONEs of messages of a key. It implements commit.Waiter.
type confirmation struct {
	commit.Change
	s           *Stores
	unconfirmed func(error)
}

// Ended implements commit.Waiter.
func (d *confirmation) Ended(_ commit.Result, err error) {
	if err != nil && len(d.Done) > 1 {
		go func() { d.left(d.each()) }()
		return
	}
	d.left(err)
}

// each confirms each message alone.
func (d *confirmation) each() (all error) {
	for i := range d.Done {
		ctx, cancel := context.WithTimeout(d.s.o.Context, d.s.o.Timeout)
		_, err := d.s.o.Conn.Done(ctx, doneRequest(d.Key, &d.Done[i]))
		cancel()
		all = errors.Join(all, err)
	}
	return all
}

// left is end, of DONEs that were in the group.
func (d *confirmation) left(err error) {
	d.s.mu.Lock()
	for i := range d.Done {
		delete(d.s.confirming, message{d.Key, d.Done[i].ID})
	}
	d.s.mu.Unlock()
	d.end(err)
}

func (d *confirmation) end(err error) {
	if err != nil {
		d.unconfirmed(err)
	}
	<-d.s.slots
	d.s.ending.Done()
}

func doneRequest(key string, d *commit.Done) DoneRequest {
	return DoneRequest{Key: key, MessageID: d.ID, Version: d.Version, Digest: d.Digest}
}

// transact carries out what the group has put together.
func (s *Stores) transact(ctx context.Context, r commit.Request) (commit.Result, error) {
	if len(r.Also) == 0 && len(r.Messages)+len(r.Done) == 1 {
		return s.command(ctx, &r)
	}
	result, err := s.o.Conn.Transact(ctx, r)
	if errors.Is(err, client.ErrUnknownOperation) || errors.Is(err, client.ErrUnknownCommand) {
		s.lacking.Store(tryAgainAfter)
		return commit.Result{}, err // of the whole, so that each is sent alone
	}
	return result, err
}

// command carries one request out as the command STORE or DONE.
func (s *Stores) command(ctx context.Context, r *commit.Request) (commit.Result, error) {
	if len(r.Done) > 0 {
		_, err := s.o.Conn.Done(ctx, doneRequest(r.Key, &r.Done[0]))
		return commit.Result{Outcome: txn.Committed}, err
	}
	m := &r.Messages[0]
	stored, err := s.o.Conn.Store(ctx, StoreRequest{Key: r.Key, State: r.State, MessageID: m.ID, Version: r.Version, Captured: m.Digest, Keep: r.Keep, Delete: r.Delete, Expiry: r.Expiry})
	result := commit.Result{Version: stored.Version, Keep: stored.Keep}
	switch {
	case err != nil:
		return commit.Result{}, err
	case stored.Outcome == client.Stored:
		result.Outcome = txn.Committed
	case stored.Outcome == client.AlreadyStored:
		result.Outcome = txn.AlreadyDone
	default:
		result.Outcome = txn.ConditionFailed
	}
	return result, nil
}
