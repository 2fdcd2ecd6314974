package crashtest

import (
	"errors"
	"fmt"
	"net"
	"time"

	"holdfast/internal/mqtt"
)

// maxPacket bounds what a link accepts, in bytes.
const maxPacket = 1 << 20

// link is one MQTT 5 connection of one goroutine: packets in, packets out, and
// nothing by itself. A test's own client keeps what a library would hide: which
// packet identifier came when, with DUP or without, and what was acknowledged
// at the moment the broker died.
type link struct {
	nc    net.Conn
	in    []byte // read from the socket
	taken int    // of in, handed out as packets
	out   []byte // to be sent by flush
}

// packet is what came; Body is a view, valid until the next one is read.
type packet struct {
	Type   mqtt.Type
	Header byte
	Body   []byte
}

// errRefused is a CONNACK that says no.
var errRefused = errors.New("connection refused by the broker")

// dial connects a client. The CONNACK may still say that there is no session.
func dial(addr string, c mqtt.Connect) (*link, *mqtt.Connack, error) {
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, nil, err
	}
	c.Version, c.RequestProblemInfo = mqtt.V5, true
	if c.ReceiveMaximum == 0 {
		c.ReceiveMaximum = 65535
	}
	k := &link{nc: nc}
	k.out = mqtt.AppendConnect(k.out, &c)
	p, err := k.exchange()
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	var ack mqtt.Connack
	if err := ack.Decode(mqtt.V5, p.Body); err != nil || p.Type != mqtt.CONNACK {
		nc.Close()
		return nil, nil, fmt.Errorf("%w: %v in answer to CONNECT (%v)", errBroken, p.Type, err)
	}
	if ack.Code.Failed() {
		nc.Close()
		return nil, nil, fmt.Errorf("%w: %v %s", errRefused, ack.Code, ack.ReasonString)
	}
	return k, &ack, nil
}

// errBroken is what no broker may send, dying or not.
var errBroken = errors.New("the broker broke the protocol")

func (k *link) close() { k.nc.Close() }

// exchange flushes and reads the next packet.
func (k *link) exchange() (packet, error) {
	if err := k.flush(); err != nil {
		return packet{}, err
	}
	return k.read()
}

func (k *link) flush() error {
	if len(k.out) == 0 {
		return nil
	}
	_, err := k.nc.Write(k.out)
	k.out = k.out[:0]
	return err
}

// read blocks until there is a whole packet, or the connection's end. Nothing
// bounds it but the life of the broker, which is bounded.
func (k *link) read() (packet, error) {
	for {
		p, ok, err := k.next()
		if ok || err != nil {
			return p, err
		}
		if err := k.fill(); err != nil {
			return packet{}, err
		}
	}
}

// readFor is read that gives up after a while: ok is false then.
func (k *link) readFor(d time.Duration) (p packet, ok bool, err error) {
	if p, ok, err = k.next(); ok || err != nil {
		return p, ok, err
	}
	if err := k.nc.SetReadDeadline(time.Now().Add(d)); err != nil {
		return packet{}, false, err
	}
	err = k.fill()
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return packet{}, false, k.nc.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return packet{}, false, err
	}
	if err := k.nc.SetReadDeadline(time.Time{}); err != nil {
		return packet{}, false, err
	}
	p, err = k.read()
	return p, err == nil, err
}

// next hands out a packet that has been read whole; ok is false if there is none.
func (k *link) next() (p packet, ok bool, err error) {
	header, body, n, _, err := mqtt.Split(k.in[k.taken:], maxPacket)
	if err != nil {
		return packet{}, false, fmt.Errorf("%w: %w", errBroken, err)
	}
	if n == 0 {
		return packet{}, false, nil
	}
	k.taken += n
	p = packet{Type: mqtt.TypeOf(header), Header: header, Body: body}
	if p.Type == mqtt.DISCONNECT {
		var d mqtt.Disconnect
		_ = d.Decode(mqtt.V5, body)
		return p, false, fmt.Errorf("%w: DISCONNECT %v %s", errRefused, d.Code, d.ReasonString)
	}
	return p, true, nil
}

func (k *link) fill() error {
	k.in = append(k.in[:0], k.in[k.taken:]...)
	k.taken = 0
	if cap(k.in)-len(k.in) < 4<<10 {
		k.in = append(make([]byte, 0, 2*cap(k.in)+16<<10), k.in...)
	}
	n, err := k.nc.Read(k.in[len(k.in):cap(k.in)])
	k.in = k.in[:len(k.in)+n]
	if n > 0 {
		return nil
	}
	return err
}

// ack queues an acknowledgement.
func (k *link) ack(t mqtt.Type, id uint16, code mqtt.ReasonCode) {
	k.out = mqtt.AppendAck(k.out, mqtt.V5, t, id, code, "")
}

// subscribe subscribes to one filter as the only thing that is under way: what
// comes before the SUBACK is handed to other. It gives the code granted.
func (k *link) subscribe(filter string, qos byte, other func(packet) error) (mqtt.ReasonCode, error) {
	const id = 65535
	k.out = mqtt.AppendSubscribe(k.out, mqtt.V5, &mqtt.Subscribe{
		PacketID: id, Subscriptions: []mqtt.Subscription{{Filter: []byte(filter), QoS: qos}},
	})
	for {
		p, err := k.exchange()
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
			return 0, fmt.Errorf("%w: SUBACK (%v)", errBroken, err)
		}
		return ack.Codes[0], nil
	}
}

// goodbye ends the connection with DISCONNECT and waits until the broker, which
// has then read everything, closes it.
func (k *link) goodbye(d mqtt.Disconnect) error {
	k.out = mqtt.AppendDisconnect(k.out, mqtt.V5, &d)
	if err := k.flush(); err != nil {
		return err
	}
	for {
		if _, err := k.read(); err != nil {
			k.close()
			return nil
		}
	}
}
