package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/fromserver"
)

// side is the link's connection to one of the two brokers.
type side struct {
	name   string // of the broker, in errors
	nc     net.Conn
	in     *fromserver.Reader
	packet fromserver.Packet
	out    *output

	version   mqtt.Version
	ack       mqtt.Connack
	maxPacket int // bytes that the broker takes; 0: any
	maxQoS    byte
	retains   bool          // the broker takes messages with RETAIN
	interval  time.Duration // between two PINGREQ; 0: none is needed
}

// Refusal is a packet by which a broker says that it does not go on.
type Refusal struct {
	By     string // which broker
	Packet mqtt.Type
	Code   mqtt.ReasonCode
	Reason string // the Reason String; often empty
}

func (r *Refusal) Error() string {
	text := fmt.Sprintf("%s answers %v %v (0x%02X)", r.By, r.Packet, r.Code, byte(r.Code))
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

// connectTime is how long a broker may take for a connection and its CONNACK.
const connectTime = 10 * time.Second

// connect sends the CONNECT and awaits the CONNACK. maxPacket is the largest packet, in
// bytes, that the link takes.
func connect(ctx context.Context, name string, nc net.Conn, c *mqtt.Connect, maxPacket int) (*side, error) {
	s := &side{name: name, nc: nc, version: c.Version, in: fromserver.NewReader(nc, maxPacket), out: newOutput(nc), maxQoS: 2, retains: true}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	err := s.handshake(c)
	if !stop() {
		err = fmt.Errorf("%s sends no CONNACK: %w", name, ctx.Err())
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	s.ack = s.packet.Connack
	s.maxPacket = int(s.ack.MaximumPacketSize)
	if s.ack.HasMaximumQoS {
		s.maxQoS = s.ack.MaximumQoS
	}
	if s.ack.HasRetainAvailable {
		s.retains = s.ack.RetainAvailable
	}
	keepAlive := c.KeepAlive
	if s.ack.HasServerKeepAlive { // [MQTT-3.1.2-21]
		keepAlive = s.ack.ServerKeepAlive
	}
	if keepAlive == 0 {
		keepAlive = uint16(DefaultKeepAlive / time.Second)
	}
	s.interval = time.Duration(keepAlive) * time.Second * 3 / 4
	return s, nil
}

func (s *side) handshake(c *mqtt.Connect) error {
	if _, err := s.nc.Write(mqtt.AppendConnect(nil, c)); err != nil {
		return fmt.Errorf("%s takes no CONNECT: %w", s.name, err)
	}
	f, err := s.in.Next()
	if err == nil {
		err = s.packet.Decode(s.version, f)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s sends no CONNACK: %w", s.name, err)
	case s.packet.Type == mqtt.DISCONNECT:
		return s.disconnected()
	case s.packet.Type != mqtt.CONNACK:
		return fmt.Errorf("%s answers CONNECT with %v", s.name, s.packet.Type)
	case s.packet.Connack.Code.Failed():
		return &Refusal{s.name, mqtt.CONNACK, s.packet.Connack.Code, s.packet.Connack.ReasonString}
	}
	return nil
}

func (s *side) disconnected() error {
	d := &s.packet.Disconnect
	return &Refusal{s.name, mqtt.DISCONNECT, d.Code, string(d.ReasonString)}
}

// next waits for a packet.
func (s *side) next() error {
	for {
		f, ok, err := s.in.Buffered()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if ok {
			if err := s.decode(f); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			return nil
		}
		if err := s.nc.SetReadDeadline(time.Now().Add(2 * s.interval)); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := s.in.Fill(); err != nil {
			if netErr := net.Error(nil); errors.As(err, &netErr) && netErr.Timeout() {
				err = errors.New("it sends nothing, not even an answer to PINGREQ")
			}
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
}

// decode decodes a packet. A panic, which would be a defect, ends the connection only.
func (s *side) decode(f fromserver.Frame) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("this program failed to decode a packet; please report this: %v\n%s", p, debug.Stack())
		}
	}()
	return s.packet.Decode(s.version, f)
}

// acknowledge appends an acknowledgement.
func (s *side) acknowledge(t mqtt.Type, packetID uint16, code mqtt.ReasonCode) {
	s.out.append(func(dst []byte) []byte { return mqtt.AppendAck(dst, s.version, t, packetID, code, "") })
}

// leave sends a DISCONNECT, if the broker takes it at once.
func (s *side) leave() {
	_ = s.nc.SetWriteDeadline(time.Now().Add(time.Second))
	if <-s.out.gone; !s.out.part {
		_, _ = s.nc.Write(mqtt.AppendDisconnect(nil, s.version, &mqtt.Disconnect{}))
	}
}

const (
	// filtersAtOnce is how many filters a SUBSCRIBE has at most.
	filtersAtOnce = 16
	// lastPacketID is the packet identifier of the first SUBSCRIBE; the next ones count down.
	// A broker gives its own messages identifiers from 1 upwards, which the link passes on,
	// so the two hardly ever meet, and no broker confuses them if they do.
	lastPacketID = 65535
)

// subscribe appends SUBSCRIBEs for the filters of the rules, and says how many.
func (s *side) subscribe(r rules, retainHandling byte) (n int) {
	for i := 0; i < len(r); i += filtersAtOnce {
		p := mqtt.Subscribe{PacketID: lastPacketID - uint16(i/filtersAtOnce)}
		for _, one := range r[i:min(len(r), i+filtersAtOnce)] {
			p.Subscriptions = append(p.Subscriptions, mqtt.Subscription{
				Filter: []byte(one.filter), QoS: one.qos, NoLocal: true, RetainAsPublished: true, RetainHandling: retainHandling,
			})
		}
		s.out.append(func(dst []byte) []byte { return mqtt.AppendSubscribe(dst, s.version, &p) })
		n++
	}
	return n
}

// unsubscribe appends UNSUBSCRIBEs for the filters of the rules, and says how many.
func (s *side) unsubscribe(r rules) (n int) {
	for some := range slices.Chunk(r, filtersAtOnce) {
		p := mqtt.Unsubscribe{PacketID: lastPacketID - uint16(n)}
		for _, one := range some {
			p.Filters = append(p.Filters, []byte(one.filter))
		}
		s.out.append(func(dst []byte) []byte { return mqtt.AppendUnsubscribe(dst, s.version, &p) })
		n++
	}
	return n
}

// refusedFilter is the first filter that a SUBACK refuses; empty: none.
func refusedFilter(r rules, p *mqtt.Suback) (filter string, code mqtt.ReasonCode) {
	first := int(lastPacketID-p.PacketID) * filtersAtOnce
	for i, code := range p.Codes {
		if code.Failed() && first+i < len(r) {
			return r[first+i].filter, code
		}
	}
	return "", mqtt.Success
}
