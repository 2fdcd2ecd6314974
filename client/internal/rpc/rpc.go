// Package rpc sends requests over one MQTT connection and finds the answer of each: a
// request is a PUBLISH with a response topic and correlation data, and its answer comes
// to that topic with the same data [MQTT-4.10]. What is in a request and in an answer is
// the caller's business.
package rpc

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/client/internal/conn"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/clientconn"
)

// ErrUnsent marks failures before a request was handed to the connection: repeating it
// is always safe.
var ErrUnsent = errors.New("the request was not sent")

// Link is one connection, from its CONNECT to its end. Requests go out through it and
// never move to another: after its end each of them fails. R is what an answer is.
type Link[R any] struct {
	*conn.Conn
	responseTopic string
	decode        func(*mqtt.Publish) (R, error)
	other         func(*mqtt.Publish) (taken bool)

	listening   atomic.Bool   // the server has granted the subscription to the response topic
	subscribing chan struct{} // has an element while a goroutine subscribes to it

	mu    sync.Mutex
	calls map[uint64]*Call[R] // under mu; nil when the link is dead
	cause error               // under mu: why it is dead
	dead  chan struct{}       // closed when calls is nil
}

// Call is a request under way.
type Call[R any] struct {
	link *Link[R]
	id   uint64
	seen func(R, error)
	done chan answer[R] // buffered; gets exactly one, unless the caller gave up
}

type answer[R any] struct {
	reply R
	err   error
}

// callIDs numbers the requests of this process; with the instance's random
// bytes they make correlation data unique.
var callIDs atomic.Uint64

// instance is this process' part of the correlation data, so that an answer to a
// former client with the same client ID is never taken for one to this client.
var instance = func() (b [8]byte) {
	rand.Read(b[:])
	return b
}()

// New dials, and makes a link; its user connects ([conn.Conn.Handshake]). decode makes an answer
// of a message that came to the response topic. other gets all other messages, and says whether
// it sees to their acknowledgement. Both are called by the goroutine that reads the connection,
// in the order of the messages, get views that are valid until they return, and must not block.
func New[R any](ctx context.Context, cfg *conn.Config, responseTopic string, decode func(*mqtt.Publish) (R, error), other func(*mqtt.Publish) (taken bool)) (*Link[R], error) {
	l := &Link[R]{
		responseTopic: responseTopic,
		decode:        decode,
		other:         other,
		subscribing:   make(chan struct{}, 1),
		calls:         make(map[uint64]*Call[R]),
		dead:          make(chan struct{}),
	}
	var err error
	l.Conn, err = conn.New(ctx, cfg, l.received)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Listen subscribes to the response topic, unless that is done.
func (l *Link[R]) Listen(ctx context.Context) error {
	if l.listening.Load() {
		return nil
	}
	select {
	case l.subscribing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.subscribing }()
	if l.listening.Load() {
		return nil
	}
	if err := l.Subscribe(ctx, l.responseTopic); err != nil {
		return fmt.Errorf("subscribe to the response topic %s: %w", l.responseTopic, err)
	}
	l.listening.Store(true)
	return nil
}

// Dead is closed when the connection has ended and its calls have failed.
func (l *Link[R]) Dead() <-chan struct{} { return l.dead }

// Kill fails the open calls and all that come later. It implements conn.Link.
func (l *Link[R]) Kill(cause error) {
	l.mu.Lock()
	open := l.calls
	l.calls, l.cause = nil, cause
	l.mu.Unlock()
	close(l.dead)
	for _, c := range open {
		c.done <- answer[R]{err: cause}
	}
}

// Start sends a request and returns without waiting for the answer. encode appends the
// PUBLISH at QoS 1, with this packet identifier and this correlation data, once there is room
// for it; see [clientconn.Conn.Send]. seen, if not nil, gets the answer in the goroutine that
// reads the connection, hence in order with the messages around it, and must not block. An
// error that is ErrUnsent means that the server has received nothing of the request.
//
// The first request of a link subscribes to the response topic, if Listen has not.
func (l *Link[R]) Start(ctx context.Context, encode func(dst []byte, packetID uint16, correlation []byte) []byte, seen func(R, error)) (*Call[R], error) {
	c := &Call[R]{link: l, id: callIDs.Add(1), seen: seen, done: make(chan answer[R], 1)}
	if err := l.Listen(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsent, err)
	}
	if err := l.register(c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsent, err)
	}
	err := l.Send(ctx, 1, c, func(dst []byte, packetID uint16) []byte {
		correlation := c.correlation()
		return encode(dst, packetID, correlation[:])
	})
	if err != nil {
		l.Forget(c)
		return nil, fmt.Errorf("%w: %w", ErrUnsent, err)
	}
	return c, nil // if the connection has just ended, Kill comes
}

func (l *Link[R]) register(c *Call[R]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls == nil {
		return l.cause
	}
	l.calls[c.id] = c
	return nil
}

// Forget gives a call up; its answer, should it come, is dropped.
func (l *Link[R]) Forget(c *Call[R]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, c.id)
}

// Result waits for the answer to a call, and gives it up when ctx ends.
func (l *Link[R]) Result(ctx context.Context, c *Call[R]) (R, error) {
	return l.await(ctx, c, true)
}

// Await is Result for a call whose seen gets the answer also after ctx has ended.
func (l *Link[R]) Await(ctx context.Context, c *Call[R]) (R, error) {
	return l.await(ctx, c, false)
}

func (l *Link[R]) await(ctx context.Context, c *Call[R], forget bool) (R, error) {
	select {
	case a := <-c.done:
		return a.reply, a.err
	case <-ctx.Done():
		if forget {
			l.Forget(c)
		}
		select {
		case a := <-c.done: // it came just now
			return a.reply, a.err
		default:
			var none R
			return none, ctx.Err()
		}
	}
}

// correlation is 16 bytes: the process' own and the call's number.
func (c *Call[R]) correlation() (b [16]byte) {
	copy(b[:], instance[:])
	binary.BigEndian.PutUint64(b[8:], c.id)
	return b
}

// take removes the call that correlation data belongs to; nil if it has been
// given up, or is not of this process.
func (l *Link[R]) take(correlation []byte) *Call[R] {
	if len(correlation) != 16 || !bytes.Equal(correlation[:8], instance[:]) {
		return nil
	}
	return l.takeID(binary.BigEndian.Uint64(correlation[8:]))
}

func (l *Link[R]) takeID(id uint64) *Call[R] {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[id]
	delete(l.calls, id)
	return c
}

// Acknowledged implements clientconn.Pending: it fails a call whose PUBACK carries an error.
func (c *Call[R]) Acknowledged(o clientconn.Outcome) {
	if o.Code.Failed() && c.link.takeID(c.id) != nil {
		var none R
		c.answered(none, c.link.Judge(o.Err()))
	}
}

// Lost implements clientconn.Pending. Kill fails the call.
func (c *Call[R]) Lost() {}

// received gets every message of the connection, in order.
func (l *Link[R]) received(p *mqtt.Publish) {
	if string(p.Topic) == l.responseTopic {
		l.deliver(p)
	} else if l.other(p) {
		return
	}
	l.Acknowledge(p.QoS, p.PacketID)
}

func (l *Link[R]) deliver(p *mqtt.Publish) {
	if c := l.take(p.Props.CorrelationData); c != nil {
		c.answered(l.decode(p))
	}
}

func (c *Call[R]) answered(r R, err error) {
	if c.seen != nil {
		c.seen(r, err)
	}
	c.done <- answer[R]{r, err}
}
