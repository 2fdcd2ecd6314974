package abuse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// link is one MQTT 5 connection: packets out, packets in, and nothing automatic.
// One goroutine may write while another reads.
type link struct {
	nc     net.Conn
	in     *bufio.Reader
	id     string
	packet uint16 // the last packet identifier used
	reply  string // topic for responses
	asked  uint64 // requests sent
}

func newLink(nc net.Conn) *link { return &link{nc: nc, in: bufio.NewReaderSize(nc, 4<<10)} }

// packet is what came.
type packet struct {
	header byte
	body   []byte
}

func (p packet) typ() mqtt.Type { return mqtt.TypeOf(p.header) }

// write sends bytes as they are; it gives up after a while without progress.
func (k *link) write(b []byte, limit time.Duration) error {
	if err := k.nc.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := k.nc.Write(b)
	return err
}

// maxAnswer is the largest packet that a link reads.
const maxAnswer = 16 << 20

// read waits for the next packet until the deadline.
func (k *link) read(deadline time.Time) (p packet, err error) {
	if err := k.nc.SetReadDeadline(deadline); err != nil {
		return p, err
	}
	if p.header, err = k.in.ReadByte(); err != nil {
		return p, err
	}
	size, shift := 0, 0
	for {
		b, err := k.in.ReadByte()
		if err != nil {
			return p, err
		}
		size |= int(b&0x7F) << shift
		if shift += 7; b < 0x80 {
			break
		}
		if shift > 21 {
			return p, errors.New("the server sent a malformed length")
		}
	}
	if size > maxAnswer {
		return p, fmt.Errorf("the server sent a packet of %d bytes", size)
	}
	p.body = make([]byte, size)
	_, err = io.ReadFull(k.in, p.body)
	return p, err
}

// await reads until a packet of the type comes, and passes over the others.
func (k *link) await(want mqtt.Type, deadline time.Time) (packet, error) {
	for {
		p, err := k.read(deadline)
		if err != nil {
			return p, fmt.Errorf("waiting for %v: %w", want, err)
		}
		switch p.typ() {
		case want:
			return p, nil
		case mqtt.DISCONNECT:
			var d mqtt.Disconnect
			_ = d.Decode(mqtt.V5, p.body)
			return p, fmt.Errorf("waiting for %v: DISCONNECT %v %s", want, d.Code, d.ReasonString)
		}
	}
}

// connect introduces the client; it has a session of its own if expiry, in
// seconds, isn't 0.
func (k *link) connect(id string, expiry uint32, limit time.Duration) error {
	k.id = id
	hello := mqtt.Connect{
		Version: mqtt.V5, ClientID: []byte(id), CleanStart: expiry == 0, SessionExpiry: expiry,
		ReceiveMaximum: 65535, RequestProblemInfo: true,
	}
	if err := k.write(mqtt.AppendConnect(nil, &hello), limit); err != nil {
		return fmt.Errorf("CONNECT: %w", err)
	}
	p, err := k.await(mqtt.CONNACK, time.Now().Add(limit))
	if err != nil {
		return err
	}
	var ack mqtt.Connack
	if err := ack.Decode(mqtt.V5, p.body); err != nil {
		return err
	}
	if ack.Code.Failed() {
		return fmt.Errorf("CONNACK %v %s", ack.Code, ack.ReasonString)
	}
	return nil
}

// subscribe subscribes to filters in one packet and waits for its SUBACK.
func (k *link) subscribe(qos byte, limit time.Duration, filters ...string) error {
	if err := k.write(k.subscription(qos, filters...), limit); err != nil {
		return fmt.Errorf("SUBSCRIBE: %w", err)
	}
	p, err := k.await(mqtt.SUBACK, time.Now().Add(limit))
	if err != nil {
		return err
	}
	var ack mqtt.Suback
	if err := ack.Decode(mqtt.V5, p.body); err != nil {
		return err
	}
	for _, code := range ack.Codes {
		if code.Failed() {
			return fmt.Errorf("SUBACK %v %s", code, ack.ReasonString)
		}
	}
	return nil
}

func (k *link) subscription(qos byte, filters ...string) []byte {
	s := mqtt.Subscribe{PacketID: k.nextID()}
	for _, f := range filters {
		s.Subscriptions = append(s.Subscriptions, mqtt.Subscription{Filter: []byte(f), QoS: qos})
	}
	return mqtt.AppendSubscribe(nil, mqtt.V5, &s)
}

func (k *link) nextID() uint16 {
	if k.packet++; k.packet == 0 {
		k.packet = 1
	}
	return k.packet
}

// takeReplies subscribes to the topic that responses to this client go to.
func (k *link) takeReplies(limit time.Duration) error {
	k.reply = "clients/" + k.id + "/reply"
	return k.subscribe(0, limit, k.reply)
}

// command is a request to the state store, its response to go to k.reply.
func (k *link) command(user []byte, args ...[]byte) (publish, correlation []byte) {
	k.asked++
	correlation = fmt.Appendf(nil, "%d", k.asked)
	user = mqtt.AppendUserProp(append([]byte(nil), user...), protocol.TimeProperty, fmt.Sprintf("%d:0:abuse", time.Now().UnixMilli()))
	return mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: k.nextID(), Topic: []byte(protocol.InvokeTopic),
		Props: mqtt.PublishProps{
			HasResponseTopic: true, ResponseTopic: []byte(k.reply),
			HasCorrelationData: true, CorrelationData: correlation, Raw: user,
		},
		Payload: protocol.AppendCommand(nil, args...),
	}), correlation
}

// ask sends a request to the state store and waits for its response.
func (k *link) ask(limit time.Duration, args ...string) (protocol.Response, error) {
	return k.askWith(nil, limit, args...)
}

// askWith is ask with user properties, encoded.
func (k *link) askWith(user []byte, limit time.Duration, args ...string) (protocol.Response, error) {
	fields := make([][]byte, len(args))
	for i, a := range args {
		fields[i] = []byte(a)
	}
	publish, correlation := k.command(user, fields...)
	if err := k.write(publish, limit); err != nil {
		return protocol.Response{}, fmt.Errorf("%s: %w", args[0], err)
	}
	deadline := time.Now().Add(limit)
	for {
		p, err := k.read(deadline)
		if err != nil {
			return protocol.Response{}, fmt.Errorf("%s: waiting for the response: %w", args[0], err)
		}
		switch p.typ() {
		case mqtt.PUBLISH:
			var m mqtt.Publish
			if err := m.DecodeDelivery(mqtt.V5, p.header, p.body); err != nil {
				return protocol.Response{}, err
			}
			if bytes.Equal(m.Props.CorrelationData, correlation) {
				return protocol.ParseReply(m.Payload)
			}
		case mqtt.PUBACK:
			var a mqtt.Ack
			if err := a.Decode(mqtt.V5, mqtt.PUBACK, p.body); err != nil {
				return protocol.Response{}, err
			}
			if a.Code.Failed() {
				return protocol.Response{}, fmt.Errorf("%s: PUBACK %v %s", args[0], a.Code, a.ReasonString)
			}
		case mqtt.DISCONNECT:
			var d mqtt.Disconnect
			_ = d.Decode(mqtt.V5, p.body)
			return protocol.Response{}, fmt.Errorf("%s: DISCONNECT %v %s", args[0], d.Code, d.ReasonString)
		}
	}
}

// publish is a PUBLISH packet.
func (k *link) publish(qos byte, retain bool, topic string, payload []byte) []byte {
	p := mqtt.Publish{QoS: qos, Retain: retain, Topic: []byte(topic), Payload: payload}
	if qos > 0 {
		p.PacketID = k.nextID()
	}
	return mqtt.AppendPublish(nil, mqtt.V5, &p)
}

// pipeline sends n packets that each get an acknowledgement of the type given, at
// most window of them under way, and returns how many were acknowledged.
func (k *link) pipeline(n, window int, ack mqtt.Type, limit time.Duration, build func(i int) []byte) (acked int, err error) {
	for sent := 0; acked < n; {
		for ; sent < n && sent-acked < window; sent++ {
			if err := k.write(build(sent), limit); err != nil {
				return acked, err
			}
		}
		if _, err := k.await(ack, time.Now().Add(limit)); err != nil {
			return acked, err
		}
		acked++
	}
	return acked, nil
}

// drain reads and throws away whatever comes, until the connection ends.
func (k *link) drain() {
	_ = k.nc.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, k.in)
}

// close ends the connection at once, and leaves no socket behind that waits.
func (k *link) close() {
	if tcp, ok := k.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = k.nc.Close()
}
