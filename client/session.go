package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/client/internal/inbox"
	"github.com/holdfast-mqtt/holdfast/client/internal/invoke"
	"github.com/holdfast-mqtt/holdfast/client/internal/message"
	"github.com/holdfast-mqtt/holdfast/client/internal/subscriptions"
	"github.com/holdfast-mqtt/holdfast/client/internal/valid"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// Session publishes and receives messages at QoS 1, over a connection of its own
// that repairs itself. Its MQTT session outlives the connection, so that messages
// published meanwhile wait at the server ([WithSessionExpiry] says for how long).
// A process that is to find its messages again after a restart needs a client ID
// that stays ([WithClientID]); a session without one ends with [Session.Close].
//
// The application acknowledges a message when it has processed it: see [Delivery.Ack].
// A Session is safe for concurrent use.
type Session struct {
	cfg           *config
	conn          *conn.Upkeep[*sessionLink]
	subscriptions *subscriptions.List
	inbox         *inbox.Box[*sessionLink, Delivery]
	client        *Client // over the same connection
	requests      *invoke.Config
}

// DialSession connects like [Dial], and fails if the first attempt fails. Of the
// options, [RetryWrites] and [WithClock] are for [Session.Client].
func DialSession(ctx context.Context, addresses string, opts ...Option) (*Session, error) {
	cfg, err := newConfig(addresses, opts)
	if err != nil {
		return nil, err
	}
	cfg.Sent = new(clientconn.Unacknowledged)
	s := &Session{
		cfg: cfg, conn: conn.NewUpkeep[*sessionLink](&cfg.Config),
		subscriptions: subscriptions.NewList(isRefusal), inbox: inbox.New[*sessionLink, Delivery](inboxBound, ErrClosed),
	}
	s.client, s.requests = newClient(cfg, sessionLinks{s.conn})
	go s.conn.Run(s.connect, func(l *sessionLink) { s.client.watches.Up(l.Link) }, func() { s.inbox.Clear(); s.client.watches.Down() })
	if err := s.conn.AwaitFirst(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Named tells whether the client ID was given, so that a later process can resume the session.
func (s *Session) Named() bool { return !s.cfg.randomID }

// ClientID returns the MQTT client ID in use.
func (s *Session) ClientID() string { return s.cfg.ClientID }

// Close disconnects. Calls that wait fail with [ErrClosed], or [ErrUnknownOutcome] if
// they were publishing; messages that were received and not acknowledged come again to
// the next process that resumes the session. Close returns when nothing of the session
// runs any more. Closing twice is harmless.
func (s *Session) Close() error { return s.client.Close() }

// Client is a client of the state store over the session's own connection, so that its
// transactions can acknowledge messages of the session ([txn.Txn.Settle]). Its first request
// of each connection subscribes to the topic of the responses, which the server must allow.
// The messages of the session leave one place of its Receive Maximum free for responses. The
// session and its client are closed together.
func (s *Session) Client() *Client { return s.client }

// sessionLinks are the connections of a session as its client sees them.
type sessionLinks struct{ *conn.Upkeep[*sessionLink] }

func (s sessionLinks) Live(ctx context.Context) (*invoke.Link, error) {
	l, err := s.Upkeep.Live(ctx)
	if err != nil {
		return nil, err
	}
	return l.Link, nil
}

func (s sessionLinks) Now() *invoke.Link {
	if l := s.Upkeep.Now(); l != nil {
		return l.Link
	}
	return nil
}

// Publish sends messages in this order, and returns nil when the server has
// acknowledged all of them. A Holdfast that runs with its default durability does so
// after its fsync.
//
// When the connection is lost, Publish goes on over the next one that resumes the MQTT
// session: what has no acknowledgement is sent again, with DUP and in its order
// [MQTT-4.4.0-1], so the server may publish it twice.
//
// [ErrInvalidOption] means that every server would refuse one of them; nothing was sent.
// A [*RejectedError] is the server's refusal of one of them, [ErrTooLarge] means that
// one is larger than it takes. With [ErrUnknownOutcome], some may have been published: ctx
// has ended, or the server has lost the session. After the end of ctx the session still
// sends what had no acknowledgement over the next connection.
func (s *Session) Publish(ctx context.Context, messages ...Message) error {
	for i := range messages {
		if err := (*wireMessage)(&messages[i]).Check(); err != nil {
			return fmt.Errorf("publish to %q: %w: %w", messages[i].Topic, ErrInvalidOption, err)
		}
	}
	ctx, cancel := s.conn.Bound(ctx)
	defer cancel()
	l, err := s.conn.Live(ctx)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for i := range messages {
		if n := messages[i].SizeBytes(); n > l.LimitBytes() {
			return fmt.Errorf("publish to %s: %w: %d bytes, the limit is %d bytes", messages[i].Topic, ErrTooLarge, n, l.LimitBytes())
		}
	}
	encode := func(i int) func([]byte, uint16) []byte { return (*wireMessage)(&messages[i]).Append }
	if i, sent, err := conn.Publish(ctx, s.conn, l, len(messages), encode); err != nil {
		if err = l.Judge(err); sent && !isRefusal(err) {
			err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return fmt.Errorf("publish to %s: %w", messages[i].Topic, err)
	}
	return nil
}

// Subscribe subscribes to all of the filters, at QoS 1. Their messages come by
// [Session.Messages]. It returns when the server has granted all of them; from then on
// the session has them, through reconnects too. Subscribing again to a filter gets its
// retained messages again.
//
// A filter that the server refuses is a [*RejectedError], and none of the filters is
// subscribed to. After another error, of the context for example, some of them may be
// at the server until the next call or the next connection; repeat the call, or
// unsubscribe.
func (s *Session) Subscribe(ctx context.Context, filters ...string) error {
	return s.change(ctx, "subscribe", filters, s.subscriptions.Add)
}

// Unsubscribe ends subscriptions, also those that a former process left in the session.
// It returns when the server has confirmed it; after an error the session repeats it on
// the next connection. Messages that were received before can still come by
// [Session.Messages]. A filter that was not subscribed to is no error.
func (s *Session) Unsubscribe(ctx context.Context, filters ...string) error {
	return s.change(ctx, "unsubscribe", filters, s.subscriptions.Remove)
}

// change makes a change of the subscriptions, on as many connections as it takes.
func (s *Session) change(ctx context.Context, op string, filters []string, do func(context.Context, subscriptions.Link, []string) error) error {
	if err := valid.Filters(filters); err != nil {
		return fmt.Errorf("%s: %w: %w", op, ErrInvalidOption, err)
	}
	ctx, cancel := s.conn.Bound(ctx)
	defer cancel()
	for {
		l, err := s.conn.Live(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		err = do(ctx, l, filters)
		switch {
		case err == nil:
			return nil
		case isRefusal(err), errors.Is(err, ErrTooLarge), ctx.Err() != nil:
			return fmt.Errorf("%s: %w", op, err)
		}
		select {
		case <-l.Dead():
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", op, ctx.Err())
		}
	}
}

// Messages gives the messages that come by the session's subscriptions, in order, until
// ctx ends, the session is closed or the loop is left. Its last element is an error: the
// context's, or [ErrClosed].
//
//	for d, err := range s.Messages(ctx) {
//		if err != nil { return err }
//		…
//		d.Ack()
//	}
//
// Messages that a resumed session held at the server come too, among them those of
// subscriptions made by a former process. Messages that come while no loop takes them
// wait: those at QoS 1 until the server has 1,024 that are not acknowledged and sends no
// more, and at most 1,024 of those that were published at QoS 0; the rest of these are
// dropped and logged. Each message goes to one loop if several run at once.
func (s *Session) Messages(ctx context.Context) iter.Seq2[Delivery, error] {
	return func(yield func(Delivery, error) bool) {
		for {
			d, err := s.inbox.Take(ctx, s.conn.Context().Done())
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// Expiry is for how long the server keeps the session without connection, as
// [WithSessionExpiry] has asked; the server may keep it for a shorter time.
func (s *Session) Expiry() time.Duration { return s.cfg.sessionExpiry }

// MaxPacketSize is the largest packet, in bytes, that the server takes, as it said
// when it was reached last; 0: any.
func (s *Session) MaxPacketSize() uint32 { return s.client.MaxPacketSize() }

// sessionLink is one connection of a Session.
type sessionLink struct {
	*invoke.Link
	session *Session
	acks    *conn.Acks // of the messages that were received
}

// connect makes a link, and brings the server's subscriptions in step.
func (s *Session) connect() (*sessionLink, error) {
	ctx, cancel := s.cfg.Attempt(s.conn.Context())
	defer cancel()
	l := &sessionLink{session: s}
	var err error
	l.Link, err = invoke.New(ctx, s.requests, l.received)
	if err != nil {
		return nil, err
	}
	l.acks = l.Acks()
	s.inbox.Open(l) // messages come as soon as the CONNACK
	expiry := uint32(min(math.Ceil(s.cfg.sessionExpiry.Seconds()), math.MaxUint32))
	// Before the first request of the client of the session, messages that wait could take all places of
	// its Receive Maximum, and the response would have none until some are acknowledged.
	connect := &mqtt.Connect{SessionExpiry: expiry, RequestResponseInfo: true}
	if q := s.cfg.queueFull; q != "" {
		connect.Raw = mqtt.AppendUserProp(nil, "holdfast-queue-full", string(q))
	}
	present, err := l.Handshake(ctx, connect)
	if err != nil {
		return nil, err
	}
	if err := s.subscriptions.Restore(ctx, l, present); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Wait implements conn.Link. A session whose client ID was made up here is not left
// behind at the server, because no process can resume it [MQTT-3.14.2-2].
func (l *sessionLink) Wait(ctx context.Context) error {
	select {
	case <-l.Done():
		return l.WhyEnded()
	case <-ctx.Done():
	}
	l.CloseWith(&mqtt.Disconnect{HasSessionExpiry: l.session.cfg.randomID})
	return ErrClosed
}

// received gets every message of the connection, in order.
func (l *sessionLink) received(p *mqtt.Publish) {
	d := Delivery{Message: Message(message.Of[UserProperties, UserProperty](p)), Redelivered: p.Dup}
	if p.QoS > 0 {
		d.acks, d.number, d.packetID = l.acks, l.acks.Expect(p.PacketID), p.PacketID
	}
	if !l.session.inbox.Put(l, d, p.QoS > 0) {
		l.session.cfg.Logger.Warn("a message at QoS 0 was dropped: too many wait to be taken from Session.Messages", "topic", d.Topic, "waiting", inboxBound)
	}
}
