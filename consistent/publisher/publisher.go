// Package publisher publishes messages from programs that are no processor, and tries again
// until the server has them: with the same identity, so that processors take a message that
// came twice for one.
//
//	p, err := publisher.New(session)
//	if err != nil { … }
//	m, err := consistent.Event("shop", order.ID, "com.example.ordered", order)
//	if err != nil { … }
//	m.Topic = "orders/" + order.ID
//	err = p.Publish(ctx, m)
//
// A program that ends before Publish returns does not know what became of the message. When it
// runs again it publishes the same message, with the same ID, once more: so the ID comes from
// what the message is about, and not from chance.
package publisher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/internal/quietlog"
)

// Conn publishes at QoS 1: a [client.Session], which repairs its connection by itself, or a
// connection of package consistenttest.
type Conn interface {
	Publish(ctx context.Context, messages ...client.Message) error
}

// Publisher publishes until it is done. It is safe for concurrent use.
type Publisher struct {
	conn                   Conn
	timeout                time.Duration
	minBackoff, maxBackoff time.Duration
	logger                 *slog.Logger
}

// Option configures a [Publisher].
type Option func(*Publisher)

// WithTimeout bounds each attempt; the default is 10 s.
func WithTimeout(d time.Duration) Option { return func(p *Publisher) { p.timeout = d } }

// WithBackoff bounds the pause between two attempts: it starts near minimum, doubles with each
// failure up to maximum, and is spread at random by half. The defaults are 100 ms and 10 s.
func WithBackoff(minimum, maximum time.Duration) Option {
	return func(p *Publisher) { p.minBackoff, p.maxBackoff = minimum, maximum }
}

// WithLogger receives a warning for each attempt that fails. The default is [slog.Default],
// with at most 20 lines a second.
func WithLogger(l *slog.Logger) Option { return func(p *Publisher) { p.logger = l } }

const logBurst = 20 // lines a second

// New makes a publisher. The error is [client.ErrInvalidOption] and says what would be right.
func New(conn Conn, opts ...Option) (*Publisher, error) {
	p := &Publisher{conn: conn, timeout: 10 * time.Second, minBackoff: 100 * time.Millisecond, maxBackoff: 10 * time.Second,
		logger: slog.New(quietlog.New(slog.Default().Handler(), quietlog.Options{Burst: logBurst}))}
	for _, opt := range opts {
		opt(p)
	}
	switch {
	case conn == nil:
		return nil, fmt.Errorf("%w: the connection is nil: see client.DialSession", client.ErrInvalidOption)
	case p.timeout <= 0:
		return nil, fmt.Errorf("%w: WithTimeout(%v): it must be positive", client.ErrInvalidOption, p.timeout)
	case p.minBackoff <= 0 || p.maxBackoff < p.minBackoff:
		return nil, fmt.Errorf("%w: WithBackoff(%v, %v): the first must be positive and the second no smaller", client.ErrInvalidOption, p.minBackoff, p.maxBackoff)
	case p.logger == nil:
		return nil, fmt.Errorf("%w: WithLogger(nil): leave the option out, or give a logger with slog.DiscardHandler", client.ErrInvalidOption)
	}
	return p, nil
}

// ErrNoIdentity: a message has neither the CloudEvents properties source and id, nor a Response
// Topic with Correlation Data, so it cannot be published again. See consistent.Event.
var ErrNoIdentity = errors.New("the message has no identity, so it would be processed once for each attempt: give it a source and an id (consistent.Event)")

// Publish publishes messages in this order, and returns nil when the server has acknowledged all
// of them. It tries again through lost connections, restarts of the server and full queues
// until ctx ends; the error then has the last attempt's, and is [client.ErrUnknownOutcome] if
// some may have been published: publish them again. A message may be published several times;
// all of them have the same identity. The CloudEvents time of a timer (consistent.After, At) is when
// it is due.
//
// What the server would refuse again is returned at once: [client.ErrInvalidOption],
// [client.ErrTooLarge], a [*client.RejectedError], [client.ErrClosed], and [ErrNoIdentity] before
// anything is sent.
func (p *Publisher) Publish(ctx context.Context, messages ...client.Message) error {
	messages, now := slices.Clone(messages), time.Now()
	for i := range messages {
		id := event.ID(&messages[i], nil)
		if id == "" {
			return fmt.Errorf("publish to %q: %w", messages[i].Topic, ErrNoIdentity)
		}
		if err := errors.Join(event.CheckID(id), event.Check(&messages[i], 0)); err != nil {
			return fmt.Errorf("publish to %q: %w: %w", messages[i].Topic, client.ErrInvalidOption, err)
		}
		event.Postpone(&messages[i], now)
	}
	pause, unknown, piece := p.minBackoff, false, largestPiece
	for {
		n := min(piece, len(messages))
		err := p.attempt(ctx, messages[:n])
		unknown = unknown || errors.Is(err, client.ErrUnknownOutcome)
		switch {
		case err == nil:
			if messages = messages[n:]; len(messages) == 0 {
				return nil
			}
			pause = p.minBackoff
			continue
		case isFinal(err):
			return err
		case ctx.Err() != nil:
			return ended(ctx, err, unknown)
		case errors.Is(err, client.ErrQuotaExceeded):
			piece = max(n/2, 1)
		}
		wait := pause/2 + rand.N(pause/2+1)
		p.logger.Warn("messages could not be published, trying again", "messages", len(messages), "topic", messages[0].Topic, "again_after", wait, "error", err)
		pause = min(2*pause, p.maxBackoff)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ended(ctx, err, unknown)
		}
	}
}

// largestPiece is how many messages one attempt sends. A queue that is full refuses some of them,
// and has perhaps no room for as many at once; so a piece that was refused is sent again in
// halves.
const largestPiece = 64

func (p *Publisher) attempt(ctx context.Context, messages []client.Message) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.conn.Publish(ctx, messages...)
}

// ended is the error of a context that ended between or in attempts.
func ended(ctx context.Context, last error, unknown bool) error {
	if unknown && !errors.Is(last, client.ErrUnknownOutcome) {
		last = fmt.Errorf("%w: %w", client.ErrUnknownOutcome, last)
	}
	return fmt.Errorf("%w: the last attempt: %w", context.Cause(ctx), last)
}

// tooFarOff is in the Reason String by which the server refuses a timer that is due too late. Its
// code is that of a full queue.
const tooFarOff = "--max-delay"

// isFinal tells whether another attempt would fail as well.
func isFinal(err error) bool {
	var rejected *client.RejectedError
	if errors.As(err, &rejected) {
		switch rejected.Code {
		case client.ReasonImplementationSpecific, client.ReasonNotAuthorized, client.ReasonTopicNameInvalid, client.ReasonPayloadFormatInvalid, client.ReasonPacketTooLarge:
			return true
		}
		return strings.Contains(rejected.Reason, tooFarOff)
	}
	return errors.Is(err, client.ErrInvalidOption) || errors.Is(err, client.ErrTooLarge) || errors.Is(err, client.ErrClosed)
}
