package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"holdfast/hlc"
	"holdfast/internal/protocol"
)

// packetOverheadBytes is more than everything in a request beside its payload
// and topics: headers, correlation data, timestamps.
const packetOverheadBytes = 512

// link is one connection, from its CONNECT to its end. Requests go out through
// it and never move to another: after its end each of them is told.
type link struct {
	*pipe
	responseTopic string
	notified      func(*link, notification)

	mu    sync.Mutex
	calls map[uint64]*call // under mu; nil when the link is dead
	cause error            // under mu: why it is dead
	dead  chan struct{}    // closed when calls is nil
}

// call is a request under way.
type call struct {
	id uint64
	// seen, if not nil, gets the answer in the goroutine that reads the
	// connection, so in order with the notifications around it. It must not
	// block.
	seen func(reply)
	done chan reply // buffered; gets exactly one, unless the caller gave up
}

// reply is the answer to a call, or why there is none.
type reply struct {
	protocol.Response
	version hlc.Timestamp // zero: none came
	err     error
}

// notification is a change of a watched key.
type notification struct {
	key     string
	deleted bool
	value   []byte
	version hlc.Timestamp
}

// errUnsent marks failures before the request was handed to the connection:
// repeating it is always safe.
var errUnsent = errors.New("the request was not sent")

// callIDs numbers the requests of this process; with the instance's random
// bytes they make correlation data unique.
var callIDs atomic.Uint64

// connect makes a link and its one subscription. When it fails, nothing is left
// of the connection.
func connect(ctx context.Context, cfg *config, notified func(*link, notification)) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.timeout)
	defer cancel()
	l := &link{
		responseTopic: "clients/" + cfg.clientID + "/services/statestore/_any_/command/invoke/response",
		notified:      notified,
		calls:         make(map[uint64]*call),
		dead:          make(chan struct{}),
	}
	var err error
	l.pipe, err = newPipe(ctx, cfg, l.refused, l.received)
	if err != nil {
		return nil, err
	}
	if _, err := l.handshake(ctx, &paho.Connect{CleanStart: true}); err != nil {
		return nil, err
	}
	if err := l.subscribe(ctx, l.responseTopic, nil); err != nil {
		l.close()
		return nil, fmt.Errorf("subscribe to the response topic %s: %w", l.responseTopic, err)
	}
	return l, nil
}

// kill fails the open calls and all that come later.
func (l *link) kill(cause error) {
	l.mu.Lock()
	open := l.calls
	l.calls, l.cause = nil, cause
	l.mu.Unlock()
	close(l.dead)
	for _, c := range open {
		c.done <- reply{err: cause}
	}
}

// correlation is 16 bytes: the process' own and the call's number.
func (c *call) correlation() []byte {
	b := make([]byte, 16)
	copy(b, instance[:])
	binary.BigEndian.PutUint64(b[8:], c.id)
	return b
}

// take removes the call that correlation data belongs to; nil if it has been
// given up, or was never ours.
func (l *link) take(correlation []byte) *call {
	if len(correlation) != 16 || !bytes.Equal(correlation[:8], instance[:]) {
		return nil
	}
	id := binary.BigEndian.Uint64(correlation[8:])
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[id]
	delete(l.calls, id)
	return c
}

// start sends a request and returns without waiting for the answer. An error
// that is errUnsent means that the server has seen nothing of it.
func (l *link) start(ctx context.Context, r *request, seen func(reply)) (*call, error) {
	if l.maxPacket > 0 && r.sizeBytes(l.responseTopic) > int64(l.maxPacket) {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d bytes", ErrTooLarge, len(r.payload), l.maxPacket)
	}
	if err := l.wire.waitRoom(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	c := &call{id: callIDs.Add(1), seen: seen, done: make(chan reply, 1)}
	if err := l.register(c); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	p := l.publish(ctx, r, c)
	_, err := l.paho.PublishWithOptions(ctx, p, paho.PublishOptions{Method: paho.PublishMethod_AsyncSend})
	switch {
	case err == nil, errors.Is(err, paho.ErrNetworkErrorAfterStored):
		return c, nil // in the second case kill is on its way
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		err = fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	l.forget(c)
	return nil, fmt.Errorf("%w: %w", errUnsent, err)
}

func (l *link) register(c *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls == nil {
		return l.cause
	}
	l.calls[c.id] = c
	return nil
}

// forget gives a call up; its answer, should it come, is dropped.
func (l *link) forget(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, c.id)
}

// publish builds the request's packet (protocol, section 2).
func (l *link) publish(ctx context.Context, r *request, c *call) *paho.Publish {
	user := paho.UserProperties{{Key: protocol.TimeProperty, Value: l.cfg.clock.Now().String()}}
	if r.token != nil {
		user = append(user, paho.UserProperty{Key: protocol.TokenProperty, Value: r.token.String()})
	}
	p := &paho.Publish{
		QoS:     1,
		Topic:   protocol.InvokeTopic,
		Payload: r.payload,
		Properties: &paho.PublishProperties{
			ResponseTopic:   l.responseTopic,
			CorrelationData: c.correlation(),
			User:            user,
		},
	}
	// A request that nobody waits for any more need not be carried out.
	if deadline, ok := ctx.Deadline(); ok {
		seconds := math.Ceil(time.Until(deadline).Seconds())
		p.Properties.MessageExpiry = ptr(uint32(min(max(seconds, 1), math.MaxUint32)))
	}
	return p
}

// result waits for the answer to a call.
func (l *link) result(ctx context.Context, c *call) reply {
	select {
	case r := <-c.done:
		return r
	case <-ctx.Done():
		l.forget(c)
		select {
		case r := <-c.done: // it came just now
			return r
		default:
			return reply{err: ctx.Err()}
		}
	}
}

// refused is told of a request's PUBACK that carries an error.
func (l *link) refused(correlation []byte, err error) {
	if c := l.take(correlation); c != nil {
		c.done <- reply{err: err}
	}
}

// received gets every message of the connection, in order.
func (l *link) received(m paho.PublishReceived) (bool, error) {
	p := m.Packet
	if p.Topic == l.responseTopic {
		if c := l.take(p.Properties.CorrelationData); c != nil {
			r := l.parseReply(p)
			if c.seen != nil {
				c.seen(r)
			}
			c.done <- r
		}
		return true, nil
	}
	if n, ok := l.parseNotification(p); ok {
		l.notified(l, n)
	}
	return true, nil
}
