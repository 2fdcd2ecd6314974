package lives

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
)

// maxPacket bounds what a link accepts, in bytes.
const maxPacket = 1 << 20

// SessionExpiry is how long sessions live without a connection, in seconds.
const SessionExpiry = 24 * 3600

// Link is one MQTT 5 connection of one goroutine: packets in, packets out, and
// nothing automatic. A test's own client records what a library would hide: which
// packet identifier came when, with DUP or without, and what was acknowledged
// at the moment the broker died.
type Link struct {
	*wire.Conn
	Out []byte // to be sent by Flush

	doors *Entrances // nil: of one server
	at    *entrance
}

// Packet is what came; Body is a view, valid until the next one is read.
type Packet struct {
	Type   mqtt.Type
	Header byte
	Body   []byte
}

// errRefused is a CONNACK or DISCONNECT with an error.
var errRefused = errors.New("connection refused or ended by the broker")

// Dial connects a client: in a cluster to a node at random. The caller looks whether the
// CONNACK says that there is a session.
func Dial(l *Life, c mqtt.Connect) (*Link, *mqtt.Connack, error) {
	if l.Doors == nil {
		return dial(nil, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr)
		}, c)
	}
	at, err := l.Doors.choose()
	if err != nil {
		return nil, nil, err
	}
	k, ack, err := dial(at, at.dial, c)
	if err != nil {
		return nil, nil, err
	}
	if err := l.Doors.enter(k); err != nil {
		k.Close()
		return nil, nil, err
	}
	return k, ack, nil
}

// dial connects to a node or, with nil, to one server.
func dial(at *entrance, connect Dialer, c mqtt.Connect) (*Link, *mqtt.Connack, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	nc, err := connect(ctx)
	if err != nil {
		return nil, nil, at.ended(err)
	}
	c.Version, c.RequestProblemInfo = mqtt.V5, true
	if c.ReceiveMaximum == 0 {
		c.ReceiveMaximum = 65535
	}
	k := &Link{Conn: wire.New(nc, maxPacket), at: at}
	k.Out = mqtt.AppendConnect(k.Out, &c)
	p, err := k.Exchange()
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	var ack mqtt.Connack
	if err := ack.Decode(mqtt.V5, p.Body); err != nil || p.Type != mqtt.CONNACK {
		nc.Close()
		return nil, nil, fmt.Errorf("%w: %v in answer to CONNECT (%v)", ErrBroken, p.Type, err)
	}
	if ack.Code.Failed() {
		nc.Close()
		return nil, nil, at.refused(ack.Code, string(ack.ReasonString))
	}
	return k, &ack, nil
}

// ErrBroken is about what no broker may send, not even right before a kill.
var ErrBroken = errors.New("the broker broke the protocol")

// Exchange flushes and reads the next packet.
func (k *Link) Exchange() (Packet, error) {
	if err := k.Flush(); err != nil {
		return Packet{}, err
	}
	return k.Read()
}

// Flush sends what is in Out.
func (k *Link) Flush() error {
	if len(k.Out) == 0 {
		return nil
	}
	_, err := k.Write(k.Out)
	k.Out = k.Out[:0]
	if err != nil {
		k.gone()
	}
	return k.at.ended(err)
}

// Read blocks until a whole packet has come, or the connection has ended: at the latest
// at the end of the life, which is bounded.
func (k *Link) Read() (Packet, error) { return k.take(k.Next(time.Time{})) }

// ReadFor is Read with a timeout; ok is false if no packet has come until then.
func (k *Link) ReadFor(d time.Duration) (p Packet, ok bool, err error) {
	p, err = k.take(k.Next(time.Now().Add(d)))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return Packet{}, false, nil
	}
	return p, err == nil, err
}

// take makes an error of what a client must not get, and of a DISCONNECT.
func (k *Link) take(read wire.Packet, err error) (Packet, error) {
	switch {
	case errors.Is(err, wire.ErrMalformed):
		return Packet{}, fmt.Errorf("%w: %w", ErrBroken, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Packet{}, err
	case err != nil:
		k.gone()
		return Packet{}, k.at.ended(err)
	case read.Type() == mqtt.DISCONNECT:
		var d mqtt.Disconnect
		_ = d.Decode(mqtt.V5, read.Body)
		k.gone()
		return Packet{}, k.at.refused(d.Code, string(d.ReasonString))
	}
	return Packet{Type: read.Type(), Header: read.Header, Body: read.Body}, nil
}

// InCluster says whether the connection is to a node of a cluster.
func (k *Link) InCluster() bool { return k.at != nil }

// gone notes that the connection has ended.
func (k *Link) gone() {
	if k.doors != nil {
		k.doors.leave(k)
	}
}

// Close closes the connection.
func (k *Link) Close() error {
	k.gone()
	return k.Conn.Close()
}

// Ack queues an acknowledgement.
func (k *Link) Ack(t mqtt.Type, id uint16, code mqtt.ReasonCode) {
	k.Out = mqtt.AppendAck(k.Out, mqtt.V5, t, id, code, "")
}

// Subscribe subscribes to one filter and waits for the SUBACK, whose reason code it
// returns. Packets that come before the SUBACK go to other.
func (k *Link) Subscribe(filter string, qos byte, other func(Packet) error) (mqtt.ReasonCode, error) {
	const id = 65535
	k.Out = mqtt.AppendSubscribe(k.Out, mqtt.V5, &mqtt.Subscribe{
		PacketID: id, Subscriptions: []mqtt.Subscription{{Filter: []byte(filter), QoS: qos}},
	})
	for {
		p, err := k.Exchange()
		if err != nil {
			return 0, err
		}
		if p.Type != mqtt.SUBACK {
			if err := other(p); err != nil {
				return 0, err
			}
			continue
		}
		var ack mqtt.Suback
		if err := ack.Decode(mqtt.V5, p.Body); err != nil || ack.PacketID != id || len(ack.Codes) != 1 {
			return 0, fmt.Errorf("%w: SUBACK (%v)", ErrBroken, err)
		}
		return ack.Codes[0], nil
	}
}

// Disconnect sends DISCONNECT and waits until the broker closes the connection: it has read
// everything then.
func (k *Link) Disconnect(d mqtt.Disconnect) error {
	k.Out = mqtt.AppendDisconnect(k.Out, mqtt.V5, &d)
	if err := k.Flush(); err != nil {
		return err
	}
	for {
		if _, err := k.Read(); err != nil {
			k.Close()
			return nil
		}
	}
}
