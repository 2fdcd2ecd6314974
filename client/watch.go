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

// Watch gives the changes of a key ([Client.Watch]), or of all keys that match a pattern
// ([Client.WatchPattern]).
type Watch struct{ watch source }

// source is a watch of one key, or of a pattern.
type source interface {
	Events() <-chan Event
	End(cause error)
	Err() error
}

// Watch registers for the changes of a key and returns when the server has
// confirmed it: every later change of the key gives an event, in order. A Get
// after Watch therefore misses nothing. Changes by this client count as well.
//
// It watches one key, byte for byte: "sensor/*" is a key with an asterisk in its name.
// [Client.WatchPattern] watches all keys that match a pattern. To follow a set of keys that
// is known, watch each of them: a client can have many thousand watches on its one
// connection.
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
	if err := a.check(false); err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	w, err := c.watches.Add(key, a.queue)
	if err != nil {
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	if err = c.confirmed(ctx, w.Ready()); err == nil {
		err = w.EndWith(ctx)
	}
	if err != nil {
		w.End(err)
		return nil, &Error{Op: "watch", Key: key, Err: err}
	}
	return &Watch{w}, nil
}

// confirmed waits until the server has confirmed a new watch: ready is closed.
func (c *Client) confirmed(ctx context.Context, ready <-chan struct{}) error {
	bounded, cancel := c.links.Bound(ctx)
	defer cancel()
	select {
	case <-ready:
		return nil
	case <-bounded.Done():
		return c.links.Why(bounded.Err())
	}
}

// WatchPattern watches all keys that match a pattern of [Client.Scan], an extension of
// Holdfast. For the keys with a prefix, the pattern is [LiteralPattern] of the prefix and
// an asterisk:
//
//	w, err := c.WatchPattern(ctx, client.LiteralPattern("sensor/")+"*")
//
// The store notifies of single keys. So WatchPattern scans for the keys and watches each of
// them as [Client.Watch] does, and it returns when the server has confirmed all of these
// watches. It scans again every second (see [Rescan]) for new keys, as long as the watch
// lasts. This has limits:
//
//   - It misses no change of a key that it has found. A key that is created later gives an
//     event when a scan finds it, with the value of that moment and with Gap set, and from
//     then on one for each change. A key that is created and deleted between two scans
//     gives none.
//   - The server bounds how many keys a client can watch (10,000, unless its --max-watches
//     says otherwise). If more keys match, WatchPattern fails with [ErrQuotaExceeded]; if
//     they do so later, the watch ends with that error.
//   - A scan takes the server about as long as a [Client.Scan] of the same pattern, and the
//     client holds the names of all keys that match.
//
// Events of one key come in order. While as many as [Queue] says wait, an event replaces
// the newest one of the same key that waits, with Gap set: a slow consumer sees the newest
// state of each key late, and no more than twice the queue and an event for each key wait.
//
// The watch ends with ctx, with [Watch.Close], or with the client. It survives
// reconnects: all keys are read then, and each that has changed meanwhile gives an event
// with Gap set. A scan that fails because the connection is lost is repeated.
func (c *Client) WatchPattern(ctx context.Context, pattern string, opts ...WatchOption) (*Watch, error) {
	a := watchArgs{queue: defaultWatchQueue, rescan: defaultRescan}
	for _, o := range opts {
		o.applyWatch(&a)
	}
	if err := a.check(true); err != nil {
		return nil, &Error{Op: "watch", Key: pattern, Err: err}
	}
	p, err := c.watches.AddPattern(c.finder(pattern, &a), a.queue)
	if err != nil {
		return nil, &Error{Op: "watch", Key: pattern, Err: err}
	}
	if err = p.Begin(ctx, func(ready <-chan struct{}) error { return c.confirmed(ctx, ready) }); err == nil {
		err = p.EndWith(ctx)
	}
	if err != nil {
		p.End(err)
		return nil, &Error{Op: "watch", Key: pattern, Err: cause(err)}
	}
	return &Watch{p}, nil
}

// finder finds the keys that match a pattern.
func (c *Client) finder(pattern string, a *watchArgs) watches.Finder {
	return watches.Finder{
		Interval: a.rescan,
		Scan: func(ctx context.Context) iter.Seq2[string, error] {
			return c.Scan(ctx, pattern, scanFunc(func(s *scanArgs) { s.Binary = a.binary }))
		},
		Get: func(ctx context.Context, key string) (watches.State, error) {
			v, found, err := c.Get(ctx, key)
			return watches.State{Present: found, Value: v.Bytes, Version: v.Version}, err
		},
		Lasting: func(err error) bool {
			return isLasting(err) || errors.Is(err, ErrUnexpectedReply)
		},
	}
}

// cause is an error without the name of the request that it came from.
func cause(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
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
