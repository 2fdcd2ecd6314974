package keys

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/pipeline"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// The protocol notifies of single keys. So the command scans for the keys with the
// prefix, watches each of them, and scans again at an interval for new ones. It gets
// every change of a key that it watches. For a new key it makes an event of the value
// that it finds, with Gap set, because earlier changes of that key are unknown.

// prefixWatch watches the keys that begin with a prefix.
type prefixWatch struct {
	cl      *client.Client
	prefix  string
	events  chan client.Event
	watched map[string]*client.Watch
	missed  map[string]bool // watched keys that the last look did not find
}

func newPrefixWatch(cl *client.Client, prefix string) *prefixWatch {
	return &prefixWatch{cl: cl, prefix: prefix, events: make(chan client.Event), watched: map[string]*client.Watch{}}
}

// registrations is how many watches are being registered at a time.
const registrations = 64

// look scans, watches the keys that are new, and ends the watches of keys that two scans
// in a row did not find. For a key that a later look than the first finds, an event is
// made of its value.
func (p *prefixWatch) look(ctx context.Context, first bool) error {
	pattern := literalPattern(p.prefix) + "*"
	if len(pattern) > protocol.MaxPattern {
		return fmt.Errorf("a prefix has at most %d bytes, with each *, ? and [ output.Counted as three", protocol.MaxPattern-1)
	}
	present := map[string]bool{}
	var fresh []string
	for key, err := range p.cl.Scan(ctx, pattern, client.BinaryKeys()) {
		if err != nil {
			return connect.Explain(err)
		}
		present[key] = true
		if p.watched[key] == nil {
			fresh = append(fresh, key)
		}
	}
	missed := map[string]bool{}
	for key, w := range p.watched {
		switch {
		case present[key]:
		case p.missed[key]: // the event of its deletion has come since the last look
			w.Close()
			delete(p.watched, key)
		default:
			missed[key] = true
		}
	}
	p.missed = missed
	return p.watchAll(ctx, fresh, first)
}

// beginning is a watch that has begun, and what the key held after that.
type beginning struct {
	key   string
	watch *client.Watch
	value client.Value
	found bool
	err   error
}

func (p *prefixWatch) watchAll(ctx context.Context, keys []string, first bool) error {
	each := func(yield func(string, error) bool) {
		for _, key := range keys {
			if !yield(key, nil) {
				return
			}
		}
	}
	begin := func(key string) (<-chan beginning, error) {
		begun := make(chan beginning, 1)
		go func() {
			b := beginning{key: key}
			b.watch, b.err = p.cl.Watch(ctx, key)
			if b.err == nil && !first { // a Get after Watch misses nothing
				b.value, b.found, b.err = p.cl.Get(ctx, key)
			}
			begun <- b
		}()
		return begun, nil
	}
	all := len(p.watched) + len(keys)
	return pipeline.Run(ctx, registrations, each, nil, begin, func(b beginning) error {
		if b.err != nil {
			if b.watch != nil {
				b.watch.Close()
			}
			if errors.Is(b.err, client.ErrQuotaExceeded) {
				return fmt.Errorf("%d keys begin with %s, and the server lets this client watch fewer: its --max-watches, --max-watch-bytes or --max-memory says how many; %w", all, protocol.Quote(p.prefix), connect.Explain(b.err))
			}
			return connect.Explain(b.err)
		}
		p.watched[b.key] = b.watch
		go p.forward(ctx, &b)
		return nil
	})
}

// forward sends an event of what the key held when its watch began, if b has that, and
// then its changes.
func (p *prefixWatch) forward(ctx context.Context, b *beginning) {
	var sent hlc.Timestamp
	if b.found {
		sent = b.value.Version
		p.send(ctx, client.Event{Kind: client.KeySet, Key: b.key, Value: b.value.Bytes, Version: sent, Gap: true})
	}
	for e := range b.watch.Chan() {
		if e.Version.IsZero() || e.Version.Compare(sent) > 0 {
			p.send(ctx, e)
		}
	}
}

func (p *prefixWatch) send(ctx context.Context, e client.Event) {
	select {
	case p.events <- e:
	case <-ctx.Done():
	}
}

// rescan looks for new keys at an interval, until ctx ends or the server refuses it. If
// a look fails because the connection is lost, the next one finds the keys.
func (p *prefixWatch) rescan(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := p.look(ctx, false); isAnswer(err) {
			return err
		}
	}
}

// isAnswer reports whether an error is an answer of the server, and not a failure of the
// connection, which may pass.
func isAnswer(err error) bool {
	for _, answer := range []error{client.ErrQuotaExceeded, client.ErrNotAuthorized, client.ErrUnreadable, client.ErrSyntax, client.ErrUnexpectedReply} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}

// literalPattern is a pattern that matches only s.
func literalPattern(s string) string {
	return strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]").Replace(s)
}

// describe says what is watched.
func (p *prefixWatch) describe() string {
	return fmt.Sprintf("the keys that begin with %s, %d now", protocol.Quote(p.prefix), len(p.watched))
}
