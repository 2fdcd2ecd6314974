package clientconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/fromserver"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

const (
	// LargestPacketBytes is the largest packet that MQTT has.
	LargestPacketBytes = 268_435_460
	// DefaultMaxPacketBytes is the largest packet that a server may send unless Config says
	// otherwise.
	DefaultMaxPacketBytes = 64 << 20
)

// Config is how a connection behaves. Only Received must be given.
type Config struct {
	// Received gets each message, in order, on the goroutine that reads the connection. It
	// must not block, and what it gets are views that are valid until it returns. A message
	// above QoS 0 is to be acknowledged by [Conn.Acknowledge], then or later; duplicates at
	// QoS 2 are filtered out.
	Received func(*mqtt.Publish)
	// MaxPacketBytes is the largest packet that the server may send, from 1 to
	// LargestPacketBytes; 0: DefaultMaxPacketBytes. The CONNECT announces it. A larger packet
	// ends the connection before memory is allocated for it.
	MaxPacketBytes uint32
	// QoS2 is what the client has received at QoS 2; without it a message at QoS 2 ends the
	// connection. It outlives the connection, as the MQTT session does.
	QoS2 *Unreleased
	// Sent is what the client has sent by SendKept and the server has not acknowledged; without
	// it such messages are lost with the connection. It outlives the connection, as the MQTT
	// session does.
	Sent *Unacknowledged
}

// ReasonError is an error that the server sent: a CONNACK, PUBACK, PUBREC, PUBCOMP, SUBACK,
// UNSUBACK or DISCONNECT whose code says that something failed, or any DISCONNECT.
type ReasonError struct {
	Packet mqtt.Type
	Code   mqtt.ReasonCode
	Reason string // the Reason String, often empty
	Filter int    // of SUBACK and UNSUBACK: the number of the filter, from 0
}

func (e *ReasonError) Error() string {
	s := fmt.Sprintf("%v: %v (0x%02X)", e.Packet, e.Code, byte(e.Code))
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

var (
	// ErrEnded means that the connection has ended. [Conn.Err] says why.
	ErrEnded = errors.New("the connection has ended")
	// ErrTooLarge means that a packet is larger than the server takes. It was not sent.
	ErrTooLarge = errors.New("larger than the server accepts")

	errClosed     = errors.New("the connection was closed by this client")
	errNoAnswer   = errors.New("the server has sent nothing for more than the keep-alive interval, not even an answer to PINGREQ")
	errUnreadAcks = errors.New("the server sends messages without reading their acknowledgements")
)

// Conn is one connection. Its methods are safe for concurrent use after Connect.
type Conn struct {
	nc             net.Conn
	cfg            Config
	receiveMaximum int32
	maxPacket      uint32 // bytes that the server takes; 0: any
	out            *output
	window         window
	pings          pings
	receiving      atomic.Int32  // messages above QoS 0 that are not acknowledged
	resumed        chan struct{} // closed when the messages of earlier connections have been sent again

	// The reader's.
	in     *fromserver.Reader
	packet fromserver.Packet
	reads  atomic.Uint64 // how often bytes have come

	done chan struct{} // closed at the end
	err  error         // why it has ended; read after done

	mu     sync.Mutex
	failed error // under mu: why this client has ended it
}

// New prepares a connection over nc, which belongs to it from now on.
func New(nc net.Conn, cfg Config) *Conn {
	if cfg.MaxPacketBytes == 0 {
		cfg.MaxPacketBytes = DefaultMaxPacketBytes
	}
	c := &Conn{nc: nc, cfg: cfg, out: newOutput(nc), in: fromserver.NewReader(nc, int(cfg.MaxPacketBytes)), resumed: make(chan struct{}), done: make(chan struct{})}
	c.window.init()
	return c
}

// Connect sends the CONNECT and waits for the CONNACK. It fills in the version and the
// Maximum Packet Size of the CONNECT. A refusal is a [*ReasonError]. When Connect fails,
// nothing is left of the connection. Messages may come before it returns.
func (c *Conn) Connect(ctx context.Context, connect *mqtt.Connect) (*mqtt.Connack, error) {
	connect.Version = mqtt.V5
	if connect.MaximumPacketSize = c.cfg.MaxPacketBytes; connect.MaximumPacketSize >= LargestPacketBytes {
		connect.MaximumPacketSize = 0
	}
	c.receiveMaximum = int32(connect.ReceiveMaximum)
	if c.receiveMaximum == 0 {
		c.receiveMaximum = 65_535
	}
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(time.Unix(1, 0)) })
	err := c.handshake(connect)
	if !stop() { // the deadline is set, or will be
		err = fmt.Errorf("no CONNACK: %w", ctx.Err())
	}
	if err != nil {
		_ = c.nc.Close()
		return nil, err
	}
	ack := c.packet.Connack
	c.maxPacket = ack.MaximumPacketSize
	if c.cfg.QoS2 != nil && !ack.SessionPresent {
		c.cfg.QoS2.clear()
	}
	keepAlive := connect.KeepAlive
	if ack.HasServerKeepAlive { // [MQTT-3.1.2-21]
		keepAlive = ack.ServerKeepAlive
	}
	again := c.resume(ack.SessionPresent)
	c.window.open(ack.ReceiveMaximum, again)
	go c.out.write()
	go c.run()
	if len(again) > 0 {
		go c.sendAgain(again)
	} else {
		close(c.resumed)
	}
	c.pings.start(c, time.Duration(keepAlive)*time.Second)
	return &ack, nil
}

var (
	errNotConnack    = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "the answer to CONNECT is no CONNACK"}
	errConnackMethod = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "a CONNACK has an Authentication Method that the CONNECT did not have"}
)

func (c *Conn) handshake(connect *mqtt.Connect) error {
	if max(len(connect.ClientID), len(connect.Username), len(connect.Password)) > wire.MaxString {
		return fmt.Errorf("a client ID, user name or password is longer than %d bytes", wire.MaxString)
	}
	if _, err := c.nc.Write(mqtt.AppendConnect(nil, connect)); err != nil {
		return fmt.Errorf("no CONNACK: %w", err)
	}
	f, err := c.in.Next()
	if err == nil {
		err = c.packet.Decode(mqtt.V5, f)
	}
	var broken *mqtt.Error
	switch ack := &c.packet.Connack; {
	case errors.As(err, &broken):
		return protocolError(broken)
	case err != nil:
		return fmt.Errorf("no CONNACK: %w", err)
	case c.packet.Type == mqtt.DISCONNECT:
		return c.disconnected()
	case c.packet.Type != mqtt.CONNACK:
		return protocolError(errNotConnack)
	case ack.Code.Failed():
		return &ReasonError{mqtt.CONNACK, ack.Code, ack.ReasonString, 0}
	case ack.AuthMethod != "" && !connect.HasAuthMethod: // [MQTT-4.12.0-6]
		return protocolError(errConnackMethod)
	case ack.SessionPresent && connect.CleanStart: // [MQTT-3.2.2-2]
		return protocolError(&mqtt.Error{Code: mqtt.ProtocolError, Reason: "a CONNACK says that a session is present after a clean start"})
	}
	return nil
}

// protocolError says what the server has done wrong.
func protocolError(e *mqtt.Error) error {
	return fmt.Errorf("the server broke the protocol: %s (%v): %w", e.Reason, e.Code, e)
}

// MaxPacket is the largest packet, in bytes, that the server takes; 0: any.
func (c *Conn) MaxPacket() uint32 { return c.maxPacket }

// Done is closed when the connection has ended, and each Pending has been told so, but for
// those of messages that outlive it.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says, after Done, why the connection has ended: a [*ReasonError] for the server's
// DISCONNECT, otherwise what this client found wrong, otherwise what the socket said.
func (c *Conn) Err() error { return c.err }

// Send sends a PUBLISH at QoS 1 or 2, and does not wait for its acknowledgement. It waits
// for room in the output, and for a slot of the server's Receive Maximum. encode appends the
// packet with the identifier that it is given; it must not block, nor call the connection.
// After an error nothing has been sent, and pending is told nothing.
func (c *Conn) Send(ctx context.Context, qos byte, pending Pending, encode func(dst []byte, packetID uint16) []byte) error {
	if err := c.awaitTurn(ctx); err != nil {
		return err
	}
	return c.request(ctx, request{pending: pending, packet: mqtt.PUBLISH, qos: qos}, encode)
}

// SendKept is Send for a message that outlives the connection, if there is Config.Sent: until
// it is acknowledged, the connections that resume the session send it again.
func (c *Conn) SendKept(ctx context.Context, qos byte, pending Pending, encode func(dst []byte, packetID uint16) []byte) error {
	if err := c.awaitTurn(ctx); err != nil {
		return err
	}
	return c.request(ctx, request{pending: pending, packet: mqtt.PUBLISH, qos: qos, kept: c.cfg.Sent != nil}, encode)
}

// awaitTurn waits until the messages of earlier connections have been sent again, and for
// room in the output.
func (c *Conn) awaitTurn(ctx context.Context) error {
	select {
	case <-c.resumed:
	default:
		select {
		case <-c.resumed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return c.out.waitRoom(ctx)
}

// SendQoS0 sends a PUBLISH at QoS 0, when there is room in the output.
func (c *Conn) SendQoS0(ctx context.Context, encode func(dst []byte) []byte) error {
	if err := c.out.waitRoom(ctx); err != nil {
		return err
	}
	return c.out.append(c.maxPacket, encode)
}

// request sends a packet that will be acknowledged.
func (c *Conn) request(ctx context.Context, r request, encode func(dst []byte, packetID uint16) []byte) error {
	id, err := c.window.enter(ctx, r)
	if err != nil {
		return err
	}
	if r.kept {
		return c.publishKept(id, encode)
	}
	err = c.out.append(c.maxPacket, func(dst []byte) []byte { return encode(dst, id) })
	if err != nil && !c.window.leave(id) {
		return nil // pending has been told that it is lost
	}
	return err
}

// Subscribe sends a SUBSCRIBE and waits for the answer. The error is a [*ReasonError] if the
// server refuses a filter; it may have granted others. It fills in the packet identifier.
func (c *Conn) Subscribe(ctx context.Context, s *mqtt.Subscribe) error {
	w := make(answer, 1)
	err := c.request(ctx, request{pending: w, packet: mqtt.SUBSCRIBE, filters: len(s.Subscriptions)}, func(dst []byte, id uint16) []byte {
		s.PacketID = id
		return mqtt.AppendSubscribe(dst, mqtt.V5, s)
	})
	return w.await(ctx, err)
}

// Unsubscribe sends an UNSUBSCRIBE and waits for the answer, like Subscribe. A filter that
// the server does not have is no error.
func (c *Conn) Unsubscribe(ctx context.Context, u *mqtt.Unsubscribe) error {
	w := make(answer, 1)
	err := c.request(ctx, request{pending: w, packet: mqtt.UNSUBSCRIBE, filters: len(u.Filters)}, func(dst []byte, id uint16) []byte {
		u.PacketID = id
		return mqtt.AppendUnsubscribe(dst, mqtt.V5, u)
	})
	return w.await(ctx, err)
}

// answer is a Pending that a goroutine waits for.
type answer chan error

func (a answer) Acknowledged(o Outcome) { a <- o.Err() }
func (a answer) Lost()                  { a <- ErrEnded }

func (a answer) await(ctx context.Context, sent error) error {
	if sent != nil {
		return sent
	}
	select {
	case err := <-a:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Acknowledge acknowledges a message of QoS 1 (PUBACK) or 2 (PUBREC); at QoS 0 it does
// nothing. Messages are to be acknowledged in their order [MQTT-4.6.0-2], each once.
func (c *Conn) Acknowledge(qos byte, packetID uint16) {
	switch qos {
	case 1:
		c.receiving.Add(-1)
		c.acknowledge(mqtt.PUBACK, packetID, mqtt.Success)
	case 2:
		c.cfg.QoS2.add(packetID)
		c.acknowledge(mqtt.PUBREC, packetID, mqtt.Success)
	}
}

// Settle counts a message at QoS 1 as acknowledged, as from here on a request that asks the
// server to acknowledge it by itself may have been carried out: the server has the message's place
// of the Receive Maximum again when it sends the answer, and perhaps a moment before.
func (c *Conn) Settle() { c.receiving.Add(-1) }

// Unsettle takes Settle back, when the answer says that nothing was acknowledged.
func (c *Conn) Unsettle() { c.receiving.Add(1) }

func (c *Conn) acknowledge(t mqtt.Type, packetID uint16, code mqtt.ReasonCode) {
	if err := c.out.acknowledge(t, packetID, code); err != nil {
		c.fail(err)
	}
}

// Disconnect sends a DISCONNECT, with what was to be sent before, and closes the
// connection. It tries for a second at most.
func (c *Conn) Disconnect(d *mqtt.Disconnect) {
	c.mu.Lock()
	if c.failed == nil {
		c.failed = errClosed
	}
	c.mu.Unlock()
	c.out.close(d)
}

// fail ends the connection without a word.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.failed == nil {
		c.failed = err
	}
	c.mu.Unlock()
	_ = c.nc.Close()
}

// Unreleased has the packet identifiers of the messages at QoS 2 that were received and not
// released [MQTT-4.3.3-10]: the receiver's part of an MQTT session. Its zero value is ready.
type Unreleased struct {
	mu  sync.Mutex
	ids map[uint16]struct{} // under mu
}

func (u *Unreleased) add(packetID uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ids == nil {
		u.ids = make(map[uint16]struct{})
	}
	u.ids[packetID] = struct{}{}
}

func (u *Unreleased) has(packetID uint16) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, has := u.ids[packetID]
	return has
}

// remove reports whether the identifier was there.
func (u *Unreleased) remove(packetID uint16) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, had := u.ids[packetID]
	delete(u.ids, packetID)
	return had
}

func (u *Unreleased) clear() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ids = nil
}
