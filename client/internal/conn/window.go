package conn

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/log"
	"github.com/eclipse/paho.golang/paho/session"
)

// window is what paho calls a session, for connections that start clean and
// end with the connection: the packet IDs in use, and the send quota
// [MQTT-4.9.0-1]. paho's own keeps a copy of each packet to send it again
// later. Here that must not happen: each request decides whether it is repeated after a
// reconnect.
//
// A slot of the quota is free again with the PUBACK, whether or not the caller
// still waits for the answer.
type window struct {
	// refused is called with the correlation data of a request whose PUBACK
	// carries an error. It must not block.
	refused func(correlation []byte, err error) // nil: refusals only go to the caller
	// rejected makes an error of a PUBACK's reason code and Reason String.
	rejected func(code byte, reason string) error
	// manual: messages are acknowledged by puback, not when paho has handed them over.
	manual bool

	quota chan struct{} // one element per slot in use; made by ConAckReceived
	lost  chan struct{} // closed when the connection is lost

	mu         sync.Mutex
	conn       io.Writer             // under mu: nil when lost
	next       uint16                // under mu: the packet ID given out last
	open       map[uint16]openPacket // under mu
	disconnect *packets.Disconnect   // under mu: the server's DISCONNECT, if it sent one
}

// openPacket is a PUBLISH or SUBSCRIBE that isn't acknowledged yet.
type openPacket struct {
	acked       chan<- packets.ControlPacket // buffered by paho
	publish     bool
	correlation []byte
}

var errQoS2 = errors.New("the server sent a QoS 2 message to a QoS 1 subscription")

func newWindow(rejected func(byte, string) error, refused func([]byte, error)) *window {
	return &window{rejected: rejected, refused: refused, lost: make(chan struct{}), open: make(map[uint16]openPacket)}
}

// ConAckReceived implements session.SessionManager.
func (w *window) ConAckReceived(conn io.Writer, _ *packets.Connect, ack *packets.Connack) error {
	slots := 65535 // [MQTT-3.2.2.3.3]: the default
	if ack.Properties != nil && ack.Properties.ReceiveMaximum != nil {
		slots = int(*ack.Properties.ReceiveMaximum)
	}
	if slots == 0 {
		return errors.New("the server announced a Receive Maximum of 0, which is a protocol error")
	}
	w.quota = make(chan struct{}, slots)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
	return nil
}

// AddToSession implements session.SessionManager: it waits for a slot, if the
// packet needs one, and gives the packet its identifier.
func (w *window) AddToSession(ctx context.Context, p session.Packet, acked chan<- packets.ControlPacket) error {
	o := openPacket{acked: acked}
	if pub, ok := p.(*packets.Publish); ok {
		o.publish = true
		o.correlation = pub.Properties.CorrelationData
		select {
		case w.quota <- struct{}{}:
		default:
			select {
			case w.quota <- struct{}{}:
			case <-w.lost:
				return session.ErrNoConnection
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	id, err := w.admit(o)
	if err != nil {
		if o.publish {
			<-w.quota
		}
		return err
	}
	p.SetIdentifier(id)
	return nil
}

func (w *window) admit(o openPacket) (uint16, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return 0, session.ErrNoConnection
	}
	for range 65535 {
		if w.next++; w.next == 0 {
			w.next = 1
		}
		if _, used := w.open[w.next]; !used {
			w.open[w.next] = o
			return w.next, nil
		}
	}
	return 0, session.ErrPacketIdentifiersExhausted
}

// PacketReceived implements session.SessionManager.
func (w *window) PacketReceived(p *packets.ControlPacket, publishes chan<- *packets.Publish) error {
	switch p.Content.(type) {
	case *packets.Publish:
		pub := p.Content.(*packets.Publish)
		if pub.QoS == 2 {
			return errQoS2
		}
		publishes <- pub // has room for ReceiveMaximum messages
	case *packets.Puback, *packets.Suback, *packets.Unsuback:
		w.acknowledged(p)
	}
	return nil
}

func (w *window) acknowledged(p *packets.ControlPacket) {
	w.mu.Lock()
	o, known := w.open[p.PacketID()]
	delete(w.open, p.PacketID())
	w.mu.Unlock()
	if !known {
		return
	}
	if o.publish {
		<-w.quota
	}
	if ack, ok := p.Content.(*packets.Puback); ok && ack.ReasonCode >= 0x80 && w.refused != nil {
		w.refused(o.correlation, w.rejection(ack))
	}
	o.acked <- *p
}

func (w *window) rejection(ack *packets.Puback) error {
	reason := ""
	if ack.Properties != nil {
		reason = ack.Properties.ReasonString
	}
	return w.rejected(ack.ReasonCode, reason)
}

// Ack implements session.SessionManager: the message has been handed over.
func (w *window) Ack(pub *packets.Publish) error {
	if pub.QoS != 1 || w.manual {
		return nil
	}
	return w.puback(pub.PacketID)
}

// puback acknowledges a message.
func (w *window) puback(packetID uint16) error {
	w.mu.Lock()
	conn := w.conn
	w.mu.Unlock()
	if conn == nil {
		return session.ErrNoConnection
	}
	ack := packets.Puback{PacketID: packetID, Properties: &packets.Properties{}}
	_, err := ack.WriteTo(conn)
	return err
}

// ConnectionLost implements session.SessionManager: callers that wait for an
// acknowledgement get the empty packet, which is paho's sign that none will come.
func (w *window) ConnectionLost(d *packets.Disconnect) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d != nil && w.disconnect == nil {
		w.disconnect = d
	}
	if w.conn == nil {
		return nil
	}
	w.conn = nil
	close(w.lost)
	for id, o := range w.open {
		o.acked <- packets.ControlPacket{}
		delete(w.open, id)
	}
	return nil
}

// disconnected is the DISCONNECT that the server sent, or nil.
func (w *window) disconnected() *packets.Disconnect {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.disconnect
}

// Close implements session.SessionManager.
func (w *window) Close() error { return w.ConnectionLost(nil) }

// SetErrorLogger implements session.SessionManager.
func (*window) SetErrorLogger(log.Logger) {}

// SetDebugLogger implements session.SessionManager.
func (*window) SetDebugLogger(log.Logger) {}
