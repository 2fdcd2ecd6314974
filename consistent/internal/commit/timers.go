package commit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Timers of the state-based path
//
// STORE commits no timers. They are set and cancelled behind it, before the outputs: perhaps after a
// crash, by another instance, when later messages have been processed. A timer that a later
// message has cancelled must not be set then, nor one that was delivered. Therefore each timer
// has a mark: a key of the store whose value is the version that the message has made of its
// state whose order was carried out last. Mark and timer are changed by one transaction, and
// not if the mark says that the order, or a later one, was carried out.

// publisher is the part of a connection by which outputs behind a STORE are published.
type publisher interface {
	Transact(context.Context, Request) (Result, error)
	Publish(context.Context, ...client.Message) error
}

// pieceMessages and pieceBytes are how many outputs are published, and how many bytes of them, before
// their acknowledgements are awaited.
const pieceMessages, pieceBytes = 1024, 4 << 20

// Publish sets and cancels the timers among the outputs of a message (see marked), and publishes the
// others: what they lead to may cancel a timer. timeout is for each timer, and for each piece of the
// others: as many outputs as a handler returns, at whatever rate a server takes them.
func Publish(ctx context.Context, c publisher, prefix string, version hlc.Timestamp, keep, timeout time.Duration, outputs []client.Message) error {
	timers, others := timed.Split(outputs)
	transact := func(ctx context.Context, r Request) (Result, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return c.Transact(ctx, r)
	}
	err := marked(ctx, transact, prefix, version, keep, timers)
	for err == nil && len(others) > 0 {
		n := piece(others)
		ctx, cancel := context.WithTimeout(ctx, timeout)
		err = c.Publish(ctx, others[:n]...)
		cancel()
		others = others[n:]
	}
	return err
}

// piece is how many of some outputs are published at once, at least 1.
func piece(outputs []client.Message) int {
	bytes := int64(0)
	for i := range outputs {
		if bytes += outputs[i].SizeBytes(); i > 0 && (i == pieceMessages || bytes > pieceBytes) {
			return i
		}
	}
	return len(outputs)
}

// marked sets and cancels timers that the message has ordered whose STORE has made version, as
// far as neither that was done before, nor a later version has ordered otherwise. The marks are
// keys that begin with prefix, and are kept for keep.
func marked(ctx context.Context, transact func(context.Context, Request) (Result, error), prefix string, version hlc.Timestamp, keep time.Duration, orders []client.Message) error {
	publish, cancels := timed.Add(nil, nil, orders)
	for i := range publish {
		id, _ := timed.ID(&publish[i])
		if id == "" {
			sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", i, event.ID(&publish[i], nil)))
			id = hex.EncodeToString(sum[:16])
			publish[i] = publish[i].WithTimerID(id)
		}
		if err := mark(ctx, transact, Request{Key: prefix + id, Expiry: keep, Outputs: publish[i : i+1]}, version); err != nil {
			return err
		}
	}
	for _, id := range cancels {
		if err := mark(ctx, transact, Request{Key: prefix + id, Expiry: keep, Cancels: []string{id}}, version); err != nil {
			return err
		}
	}
	return nil
}

// triesBound is how often a mark that others change meanwhile is tried in one attempt.
const triesBound = 8

func mark(ctx context.Context, transact func(context.Context, Request) (Result, error), r Request, version hlc.Timestamp) error {
	r.State = version.Append(nil)
	for range triesBound {
		done, err := transact(ctx, r)
		if err != nil || done.Outcome != txn.ConditionFailed {
			return err
		}
		if last, err := hlc.Parse(string(done.State)); err == nil && last.Compare(version) >= 0 {
			return nil
		}
		r.Version = done.Version
	}
	return fmt.Errorf("the mark of a timer, key %q, was changed by other instances %d times in a row", r.Key, triesBound)
}
