package client

import (
	"context"
	"errors"
	"iter"

	"github.com/holdfast-mqtt/holdfast/client/internal/watches"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// EventKind says what happened to a watched key.
type EventKind uint8

const (
	KeySet     EventKind = iota + 1 // the key has this value now
	KeyDeleted                      // the key is gone: deleted or expired
)

func (k EventKind) String() string {
	if k == KeyDeleted {
		return "deleted"
	}
	return "set"
}

// Event is a change of a watched key.
type Event struct {
	Kind EventKind
	Key  string
	// Value is the new value of a KeySet. Watches of the same key share it: it
	// must not be changed.
	Value []byte
	// Version is the new version, or the deletion's. It rises from event to
	// event; only a KeyDeleted that was noticed after a reconnect has none.
	Version hlc.Timestamp
	// Gap tells that changes right before this one may be missing: the
	// connection was lost meanwhile, or this watch's queue was full. The event
	// itself is the newest state.
	Gap bool
}

// Watch is a registration for the changes of one key; see [Client.Watch].
type Watch struct{ watch *watches.Watch[Event] }

// Watch registers for the changes of a key and returns when the server has
// confirmed it: every later change of the key gives an event, in order. A Get
// after Watch therefore misses nothing. Changes by this client count as well.
//
// It watches one key, byte for byte: the protocol's KEYNOTIFY has no prefixes and no
// patterns, so "sensor/*" is a key with an asterisk in its name. To follow a set of keys
// that is known, or that [Client.Scan] lists, watch each of them: a client can have
// many thousand watches on its one connection.
//
// The watch ends with ctx, with [Watch.Close], or with the client. It survives
// reconnects: the key is read then, and if it has changed meanwhile there is an
// event with Gap set.
//
// Events wait in a queue of 64 (see [Queue]). If it is full, all that wait are
// replaced by the newest one, with Gap set: a slow consumer sees the newest
// state late, and memory stays bounded. Several watches of one key share one
// registration at the server.
func (c *Client) Watch(ctx context.Context, key string, opts ...WatchOption) (*Watch, error) {
	a := watchArgs{queue: defaultWatchQueue}
	for _, o := range opts {
		o.applyWatch(&a)
	}
	if err := a.check(); err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	w, err := c.watches.Add(key, a.queue)
	if err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	if err := c.confirm(ctx, w); err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	return &Watch{w}, nil
}

// confirm waits until the server has confirmed a new watch, then ties it to ctx.
func (c *Client) confirm(ctx context.Context, w *watches.Watch[Event]) error {
	bounded, cancel := c.conn.Bound(ctx)
	defer cancel()
	select {
	case <-w.Ready():
	case <-bounded.Done():
		err := c.conn.Why(bounded.Err())
		w.End(err)
		return err
	}
	return w.EndWith(ctx)
}

// event is the event of a change.
func event(c watches.Change) Event {
	e := Event{Kind: KeySet, Key: c.Key, Value: c.Value, Version: c.Version, Gap: c.Gap}
	if c.Deleted {
		e.Kind = KeyDeleted
	}
	return e
}

// isLasting reports errors of a registration that will come again at each attempt.
func isLasting(err error) bool {
	var store storeError
	return errors.As(err, &store) || isRefusal(err) || errors.Is(err, ErrTooLarge)
}

// Events gives the events as they come, until the watch ends. An error comes last:
// the context's, [ErrClosed] if the client was closed, or the server's refusal to
// register the watch again after a reconnect. After [Watch.Close] there is none.
//
//	for e, err := range w.Events() {
//		if err != nil { return err }
//		…
//	}
//
// Leaving the loop does not end the watch: a later loop goes on where this one ended.
func (w *Watch) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for e := range w.watch.Events() {
			if !yield(e, nil) {
				return
			}
		}
		if err := w.Err(); err != nil {
			yield(Event{}, err)
		}
	}
}

// Chan returns the events as a channel, for a select. It is closed when the watch
// ends; Err then tells why. An event goes to the channel or to a loop over
// [Watch.Events], not to both.
func (w *Watch) Chan() <-chan Event { return w.watch.Events() }

// Close ends the watch. Events that wait can still be received. Closing twice
// is harmless.
func (w *Watch) Close() { w.watch.End(nil) }

// Err says why the watch ended: nil while it goes on and after Close, the
// context's error, [ErrClosed], or the server's refusal to register it again
// after a reconnect.
func (w *Watch) Err() error { return w.watch.Err() }
