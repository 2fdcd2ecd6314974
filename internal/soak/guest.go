package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
)

// link is an MQTT connection that does what no library does: it leaves without a word, in
// the middle of a packet, or speaks MQTT 3.1.1.
type link struct {
	*wire.Conn
	version mqtt.Version
	reader  sync.WaitGroup
	lost    chan struct{} // closed when the reader has ended
	why     error         // of that; read after lost

	mu   sync.Mutex
	next uint16 // under mu: packet identifier
}

// maxPacket is how much a link reads, in bytes.
const maxPacket = 1 << 20

// patience is how long a write or an answer may take.
const patience = 30 * time.Second

// enter connects, and acknowledges from then on whatever comes.
func (v *visit) enter(hello mqtt.Connect) (*link, error) {
	servers, err := dial.To(v.url(), v.server.tls)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), patience)
	defer cancel()
	nc, err := servers.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	hello.ClientID, hello.KeepAlive, hello.RequestProblemInfo = []byte(v.id), 30, true
	k := &link{Conn: wire.New(nc, maxPacket), version: hello.Version, lost: make(chan struct{})}
	if err := k.WriteFor(mqtt.AppendConnect(nil, &hello), patience); err != nil {
		nc.Close()
		return nil, fmt.Errorf("CONNECT: %w", err)
	}
	p, err := k.Next(time.Now().Add(patience))
	var ack mqtt.Connack
	if err == nil && p.Type() == mqtt.CONNACK {
		err = ack.Decode(k.version, p.Body)
	}
	if err != nil || p.Type() != mqtt.CONNACK || ack.Code.Failed() {
		nc.Close()
		return nil, fmt.Errorf("CONNECT is answered with %v %v (%w)", p.Type(), ack.Code, err)
	}
	v.inside.Add(1)
	k.reader.Go(func() {
		k.why = k.read()
		close(k.lost)
	})
	return k, nil
}

// read takes packets until the connection ends, and acknowledges them.
func (k *link) read() error {
	for {
		p, err := k.Next(time.Time{})
		if err != nil {
			return err
		}
		var answer []byte
		switch typ := p.Type(); typ {
		case mqtt.PUBLISH:
			var m mqtt.Publish
			if err := m.DecodeDelivery(k.version, p.Header, p.Body); err != nil {
				return err
			}
			if m.QoS > 0 {
				ack := mqtt.PUBACK
				if m.QoS == 2 {
					ack = mqtt.PUBREC
				}
				answer = mqtt.AppendAck(nil, k.version, ack, m.PacketID, 0, "")
			}
		case mqtt.PUBREC, mqtt.PUBREL:
			var a mqtt.Ack
			if err := a.Decode(k.version, typ, p.Body); err != nil {
				return err
			}
			ack := mqtt.PUBREL
			if typ == mqtt.PUBREL {
				ack = mqtt.PUBCOMP
			}
			if !a.Code.Failed() {
				answer = mqtt.AppendAck(nil, k.version, ack, a.PacketID, 0, "")
			}
		case mqtt.DISCONNECT:
			var d mqtt.Disconnect
			_ = d.Decode(k.version, p.Body)
			return fmt.Errorf("DISCONNECT %v %s", d.Code, d.ReasonString)
		}
		if answer != nil {
			if err := k.send(answer); err != nil {
				return err
			}
		}
	}
}

func (k *link) send(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.WriteFor(b, patience)
}

// nextID is a packet identifier. A link has few of them under way.
func (k *link) nextID() uint16 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next++; k.next == 0 {
		k.next = 1
	}
	return k.next
}

func (k *link) subscribe(filter string, qos byte) error {
	return k.send(mqtt.AppendSubscribe(nil, k.version, &mqtt.Subscribe{
		PacketID: k.nextID(), Subscriptions: []mqtt.Subscription{{Filter: []byte(filter), QoS: qos}},
	}))
}

func (k *link) publish(topic string, qos byte, retain bool, expiry time.Duration, payload []byte) error {
	p := mqtt.Publish{QoS: qos, Retain: retain, Topic: []byte(topic), Payload: payload}
	if qos > 0 {
		p.PacketID = k.nextID()
	}
	if expiry > 0 && k.version == mqtt.V5 {
		p.Props.HasMessageExpiry, p.Props.MessageExpiry = true, uint32(expiry/time.Second)
	}
	return k.send(mqtt.AppendPublish(nil, k.version, &p))
}

// check gives the error by which the server has ended the connection, if it has.
func (k *link) check() error {
	select {
	case <-k.lost:
		return fmt.Errorf("the server has ended a connection: %w", k.why)
	default:
		return nil
	}
}

// leave ends a connection in one of the ways in which clients do.
func (v *visit) leave(k *link) {
	switch v.random.IntN(4) {
	case 0, 1:
		_ = k.send(mqtt.AppendDisconnect(nil, k.version, &mqtt.Disconnect{}))
	case 2: // in the middle of a packet
		_ = k.send([]byte{0x30, 100, 0, 5, 's', 'o'})
	}
	k.abandon()
	v.inside.Add(-1)
}

// abandon closes the network connection.
func (k *link) abandon() {
	if tcp, ok := k.Conn.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = k.Close()
	k.reader.Wait()
}

// guest publishes and subscribes at every QoS, with a will, and retains.
func guest(v *visit) error {
	will := mqtt.Will{Topic: fmt.Appendf(nil, "soak/will/%d", v.client), Payload: []byte("gone"), QoS: 1, DelayInterval: uint32(v.client % 3)}
	k, err := v.enter(mqtt.Connect{Version: mqtt.V5, CleanStart: v.number%2 == 0, SessionExpiry: uint32(v.Life / time.Second), HasWill: true, Will: will})
	if err != nil {
		return err
	}
	defer v.leave(k)
	if err := k.subscribe(fmt.Sprintf("soak/will/%d", (v.client+variety)%v.Clients), 2); err != nil {
		return err
	}
	if err := k.subscribe(fmt.Sprintf("soak/retained/%d/#", v.client%10), 1); err != nil {
		return err
	}
	return v.operate(func() error {
		payload := make([]byte, 16<<v.random.IntN(9))
		switch v.random.IntN(4) {
		case 0:
			return errors.Join(k.check(), k.publish(fmt.Sprintf("soak/retained/%d/%d", v.random.IntN(10), v.random.IntN(100)), 1, true, lasting, payload))
		case 1:
			return errors.Join(k.check(), k.publish("soak/work", 1, false, lasting, payload))
		}
		return errors.Join(k.check(), k.publish(v.topic(), byte(v.random.IntN(3)), false, lasting, payload))
	})
}

// oldGuest speaks MQTT 3.1.1.
func oldGuest(v *visit) error {
	k, err := v.enter(mqtt.Connect{Version: mqtt.V311, CleanStart: true})
	if err != nil {
		return err
	}
	defer v.leave(k)
	if err := k.subscribe(fmt.Sprintf("soak/old/%d", v.client), 2); err != nil {
		return err
	}
	return v.operate(func() error {
		return errors.Join(k.check(), k.publish(fmt.Sprintf("soak/old/%d", v.client), byte(v.random.IntN(3)), false, 0, []byte("to myself")))
	})
}

// member takes its part of what is published to a shared subscription.
func member(v *visit) error {
	k, err := v.enter(mqtt.Connect{Version: mqtt.V5, CleanStart: true})
	if err != nil {
		return err
	}
	defer v.leave(k)
	if err := k.subscribe("$share/workers/soak/work", 1); err != nil {
		return err
	}
	return v.operate(k.check)
}

// silent is connected, sends a ping now and then, and is only there.
func silent(v *visit) error {
	k, err := v.enter(mqtt.Connect{Version: mqtt.V5, CleanStart: true})
	if err != nil {
		return err
	}
	defer v.leave(k)
	return v.operate(func() error {
		sleep(v.ctx, 10*time.Second)
		return errors.Join(k.check(), k.send(mqtt.AppendPingreq(nil)))
	})
}
