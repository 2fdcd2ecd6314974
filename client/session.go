package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// Session publishes and receives messages at QoS 1, over a connection of its own
// that repairs itself. Its MQTT session outlives the connection, so that what is
// published meanwhile waits at the server ([WithSessionExpiry] says for how long).
// A process that is to find its messages again after a restart needs a client ID
// that stays ([WithClientID]); one without gives its session up in [Session.Close].
//
// Messages are acknowledged by whoever processes them, when they have: see
// [Delivery]. It is safe for concurrent use.
type Session struct {
	upkeep[*sessionLink]
	filters    []string // under mu: set once
	subscribed bool     // under mu: the server has granted filters, in this session

	receiving sync.Mutex
	deliver   func(Delivery) // under receiving: nil until Subscribe
	held      []Delivery     // under receiving: what came before; the Receive Maximum bounds it
}

// Delivery is a message that was received.
type Delivery struct {
	ApplicationMessage
	// Redelivered: it may have been delivered before (the DUP flag [MQTT-3.3.1-1]).
	Redelivered bool
	// Ack acknowledges the message: the server forgets it. It belongs to the
	// connection over which the message came, and does nothing once that is lost:
	// the message comes again. Acknowledgements leave in the order of the messages
	// [MQTT-4.6.0-2], so one that is missing holds the later ones back, and after
	// 1,024 of them the server sends nothing more. Calling it twice is harmless.
	Ack func()
}

// DialSession connects like [Dial], and fails if the first attempt fails. Of the
// options, those of a state store's requests mean nothing here.
func DialSession(ctx context.Context, address string, opts ...Option) (*Session, error) {
	s := &Session{}
	if err := s.configure(address, opts); err != nil {
		return nil, err
	}
	go s.run(s.connect, func(*sessionLink) {}, s.lost)
	if err := s.awaitFirst(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// ClientID returns the MQTT client ID in use.
func (s *Session) ClientID() string { return s.cfg.clientID }

// Close disconnects. What waits for an acknowledgement fails with [ErrClosed];
// what was received and not acknowledged comes again to whoever resumes the
// session. Close returns when nothing of the session runs any more.
func (s *Session) Close() error {
	s.stop()
	return nil
}

// Subscribe subscribes to all of the filters, at QoS 1, and has deliver called with
// each message that comes, in order, by one goroutine at a time: deliver must
// not block for long. Messages that a resumed session held come too, among them
// those of subscriptions made by a former process. It can be called once.
//
// A filter that the server refuses is a [*RejectedError].
func (s *Session) Subscribe(ctx context.Context, filters []string, deliver func(Delivery)) error {
	s.mu.Lock()
	if s.filters != nil {
		s.mu.Unlock()
		return errors.New("subscribe: this session has its subscriptions already")
	}
	s.filters = append([]string{}, filters...)
	s.mu.Unlock()
	for {
		l, err := s.live(ctx)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		if err = s.ensureSubscribed(ctx, l, true); err == nil {
			break
		}
		var rejected *RejectedError
		if errors.As(err, &rejected) || ctx.Err() != nil {
			return err
		}
		select {
		case <-l.dead:
		case <-ctx.Done():
			return fmt.Errorf("subscribe: %w", ctx.Err())
		}
	}
	s.receiving.Lock()
	defer s.receiving.Unlock()
	for _, d := range s.held {
		deliver(d)
	}
	s.held, s.deliver = nil, deliver
	return nil
}

// ensureSubscribed makes the subscriptions, unless the session has them.
func (s *Session) ensureSubscribed(ctx context.Context, l *sessionLink, present bool) error {
	s.mu.Lock()
	filters, done := s.filters, s.subscribed && present
	s.mu.Unlock()
	if done || len(filters) == 0 {
		return nil
	}
	for _, filter := range filters {
		if err := l.subscribe(ctx, filter, nil); err != nil {
			return fmt.Errorf("subscribe to %s: %w", filter, err)
		}
	}
	s.mu.Lock()
	s.subscribed = true
	s.mu.Unlock()
	return nil
}

// Publish sends messages in this order, and returns nil when the server has
// acknowledged all of them: with its fsync behind it, if the server has such.
//
// A [*RejectedError] is the server's refusal of one of them, [ErrTooLarge] means that
// one is larger than it takes. With [ErrUnknownOutcome], some may have been published.
func (s *Session) Publish(ctx context.Context, messages ...ApplicationMessage) error {
	l, err := s.live(ctx)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for i := range messages {
		if n := messages[i].SizeBytes(); l.maxPacket > 0 && n > int64(l.maxPacket) {
			return fmt.Errorf("publish to %s: %w: %d bytes, the limit is %d bytes", messages[i].Topic, ErrTooLarge, n, l.maxPacket)
		}
	}
	acks := make([]chan packets.ControlPacket, 0, len(messages))
	for i := range messages {
		ack, err := l.send(ctx, &messages[i])
		if err != nil {
			return fmt.Errorf("publish to %s: %w: %w", messages[i].Topic, ErrUnknownOutcome, err)
		}
		acks = append(acks, ack)
	}
	for i, ack := range acks {
		if err := l.acknowledgement(ctx, ack); err != nil {
			return fmt.Errorf("publish to %s: %w", messages[i].Topic, err)
		}
	}
	return nil
}

// MaxPacketSize is the largest packet, in bytes, that the server takes, as it said
// when it was reached last; 0: any.
func (s *Session) MaxPacketSize() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return 0
	}
	return s.link.maxPacket
}

// lost forgets what was received and not handed over: it comes again.
func (s *Session) lost() {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	s.held = nil
}

// sessionLink is one connection of a Session.
type sessionLink struct {
	*pipe
	session *Session
	acks    acks
	dead    chan struct{} // closed after the connection's end
}

// connect makes a link, with the subscriptions if the server has forgotten them.
func (s *Session) connect() (*sessionLink, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.timeout)
	defer cancel()
	l := &sessionLink{session: s, dead: make(chan struct{})}
	var err error
	l.pipe, err = newPipe(ctx, s.cfg, nil, l.received)
	if err != nil {
		return nil, err
	}
	l.window.manual = true
	l.acks.window = l.window
	expiry := uint32(min(math.Ceil(s.cfg.sessionExpiry.Seconds()), math.MaxUint32))
	present, err := l.handshake(ctx, &paho.Connect{Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry}})
	if err != nil {
		return nil, err
	}
	if err := s.ensureSubscribed(ctx, l, present); err != nil {
		l.pipe.close()
		return nil, err
	}
	return l, nil
}

// wait implements connection. A session that nobody can resume, because its client
// ID was made up here, is not left behind [MQTT-3.14.2-2].
func (l *sessionLink) wait(ctx context.Context) error {
	select {
	case <-l.paho.Done():
		return l.whyEnded()
	case <-ctx.Done():
	}
	bye := &paho.Disconnect{}
	if l.cfg.randomID {
		bye.Properties = &paho.DisconnectProperties{SessionExpiryInterval: ptr(uint32(0))}
	}
	_ = l.paho.Disconnect(bye)
	return ErrClosed
}

// kill implements connection: the window has told those who wait.
func (l *sessionLink) kill(error) { close(l.dead) }

// received gets every message of the connection, in order.
func (l *sessionLink) received(m paho.PublishReceived) (bool, error) {
	d := Delivery{ApplicationMessage: applicationMessage(m.Packet), Redelivered: m.Packet.Duplicate(), Ack: func() {}}
	if m.Packet.QoS > 0 {
		d.Ack = l.acks.expect(m.Packet.PacketID)
	}
	s := l.session
	s.receiving.Lock()
	defer s.receiving.Unlock()
	if s.deliver == nil {
		s.held = append(s.held, d)
	} else {
		s.deliver(d)
	}
	return true, nil
}

// send writes a PUBLISH; its PUBACK comes through the channel.
func (l *sessionLink) send(ctx context.Context, m *ApplicationMessage) (chan packets.ControlPacket, error) {
	if err := l.wire.waitRoom(ctx); err != nil {
		return nil, err
	}
	p := m.packet().Packet()
	ack := make(chan packets.ControlPacket, 1)
	if err := l.window.AddToSession(ctx, p, ack); err != nil {
		return nil, err
	}
	if _, err := p.WriteTo(l.wire); err != nil {
		return nil, err
	}
	return ack, nil
}

func (l *sessionLink) acknowledgement(ctx context.Context, ack <-chan packets.ControlPacket) error {
	select {
	case p := <-ack:
		puback, ok := p.Content.(*packets.Puback)
		switch {
		case !ok: // what the window says when the connection is lost
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, errConnectionLost)
		case puback.ReasonCode >= 0x80:
			return rejection(puback)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
	}
}

// acks sends the PUBACKs of one connection in the order of its messages.
type acks struct {
	window *window

	mu    sync.Mutex
	first uint64        // under mu: the number of open[0], counted from the connection's start
	open  []expectedAck // under mu: the messages from the oldest that is not acknowledged on
}

type expectedAck struct {
	packetID uint16
	given    bool
}

// expect notes a message and returns what acknowledges it.
func (a *acks) expect(packetID uint16) func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := a.first + uint64(len(a.open))
	a.open = append(a.open, expectedAck{packetID: packetID})
	return func() { a.give(number) }
}

func (a *acks) give(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if number < a.first {
		return // given before
	}
	a.open[number-a.first].given = true
	for len(a.open) > 0 && a.open[0].given {
		a.window.puback(a.open[0].packetID)
		a.open = a.open[1:]
		a.first++
	}
}

// WithSessionExpiry sets for how long the server keeps a [Session] without
// connection, and the messages for it, in whole seconds up to 2³²−2 s. The
// default is one day. A [Client] has no such session.
func WithSessionExpiry(d time.Duration) Option {
	return optionFunc(func(c *config) { c.sessionExpiry = d })
}
