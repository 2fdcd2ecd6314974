package clientconn

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// publishText sends a message whose payload is text, and returns what gets its outcome.
func publishText(t *testing.T, c *Conn, qos byte, text string) outcomes {
	t.Helper()
	o := make(outcomes, 1)
	if err := sendText(within(t), c, qos, text, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func sendText(ctx context.Context, c *Conn, qos byte, text string, o outcomes) error {
	payload := []byte(text)
	defer clear(payload) // it is the caller's again
	return c.SendKept(ctx, qos, o, func(dst []byte, id uint16) []byte {
		return mqtt.AppendPublish(dst, mqtt.V5, &mqtt.Publish{QoS: qos, PacketID: id, Topic: []byte("t"), Payload: payload})
	})
}

// wantPublish checks the next packet, and returns its packet identifier.
func (s *server) wantPublish(text string, dup bool) (id uint16) {
	s.t.Helper()
	p := s.publish()
	if string(p.Payload) != text || p.Dup != dup {
		s.t.Fatalf("PUBLISH %q, DUP %v; want %q, %v", p.Payload, p.Dup, text, dup)
	}
	return p.PacketID
}

// lose ends a connection as a network does.
func lose(c *Conn, s *server) {
	_ = s.Close()
	<-c.Done()
}

// resumable connects with a session, which the server has still if present says so.
func resumable(t *testing.T, sent *Unacknowledged, present bool, receiveMaximum uint16) (*Conn, *server) {
	t.Helper()
	return connect(t, Config{Sent: sent}, mqtt.Connect{}, mqtt.Connack{SessionPresent: present, ReceiveMaximum: receiveMaximum})
}

// When a session is resumed, what the server has not acknowledged is sent again with DUP,
// under its packet identifiers and in its order, and before what is new [MQTT-4.4.0-1].
func TestUnacknowledgedMessagesAreSentAgain(t *testing.T) {
	t.Parallel()
	sent := new(Unacknowledged)
	c, s := resumable(t, sent, false, 10)
	first, released, acknowledged, last := publishText(t, c, 1, "first"), publishText(t, c, 2, "released"), publishText(t, c, 1, "acknowledged"), publishText(t, c, 2, "last")
	firstID, releasedID, acknowledgedID, lastID := s.wantPublish("first", false), s.wantPublish("released", false), s.wantPublish("acknowledged", false), s.wantPublish("last", false)
	s.send(ack(mqtt.PUBREC, releasedID, 0), ack(mqtt.PUBACK, acknowledgedID, 0))
	s.wantAck(mqtt.PUBREL, releasedID, 0)
	if o := <-acknowledged; o.Err() != nil {
		t.Errorf("%+v", o)
	}
	lose(c, s)

	// It is lost again, when a part was sent: this server takes two at a time.
	c, s = resumable(t, sent, true, 2)
	if id := s.wantPublish("first", true); id != firstID {
		t.Errorf("packet identifier %d, it was %d", id, firstID)
	}
	s.wantAck(mqtt.PUBREL, releasedID, 0)
	lose(c, s)

	c, s = resumable(t, sent, true, 2)
	later, ctx, failed := make(outcomes, 1), within(t), make(chan error, 1)
	go func() { failed <- sendText(ctx, c, 1, "later", later) }()
	s.wantPublish("first", true)
	s.wantAck(mqtt.PUBREL, releasedID, 0)
	s.send(ack(mqtt.PUBACK, firstID, 0))
	if id := s.wantPublish("last", true); id != lastID {
		t.Errorf("packet identifier %d, it was %d", id, lastID)
	}
	s.send(ack(mqtt.PUBCOMP, releasedID, 0), ack(mqtt.PUBREC, lastID, 0))
	laterID := uint16(0)
	for range 2 { // which of them is first depends on who is faster
		switch f := s.next().Clone(); f.Type() {
		case mqtt.PUBREL:
			s.send(ack(mqtt.PUBCOMP, lastID, 0))
		case mqtt.PUBLISH:
			var p mqtt.Publish
			if err := p.Decode(mqtt.V5, f.Header, f.Body); err != nil || p.Dup || string(p.Payload) != "later" {
				t.Errorf("PUBLISH %+v, %v", p, err)
			}
			laterID = p.PacketID
		}
	}
	if slices.Contains([]uint16{0, releasedID, lastID}, laterID) {
		t.Errorf("the new message has packet identifier %d", laterID)
	}
	s.send(ack(mqtt.PUBACK, laterID, 0))
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for _, o := range []outcomes{first, released, last, later} {
		if got := <-o; got.Type == lost.Type || got.Err() != nil {
			t.Errorf("outcome %+v", got)
		}
	}
	lose(c, s)
	if again := sent.take(); len(again) != 0 {
		t.Errorf("%d messages are to be sent again, all were acknowledged", len(again))
	}
}

// A server that has not kept the session does not know what it has taken.
func TestUnacknowledgedMessagesOfALostSession(t *testing.T) {
	t.Parallel()
	sent := new(Unacknowledged)
	c, s := resumable(t, sent, false, 10)
	o := publishText(t, c, 1, "x")
	s.wantPublish("x", false)
	lose(c, s)
	c, s = resumable(t, sent, false, 10)
	if got := <-o; got.Type != lost.Type {
		t.Errorf("outcome %+v, want lost", got)
	}
	publishText(t, c, 1, "y")
	s.wantPublish("y", false)
}

// Without another connection they are lost when their owner says so.
func TestDropOfUnacknowledgedMessages(t *testing.T) {
	t.Parallel()
	sent := new(Unacknowledged)
	c, s := resumable(t, sent, false, 2)
	o, request := publishText(t, c, 1, "x"), publish(t, c, 1)
	s.wantPublish("x", false)
	s.wantPublish("", false)
	ctx, waiting := within(t), make(chan error, 1)
	go func() { waiting <- c.SendKept(ctx, 1, make(outcomes, 1), message(1)) }()
	lose(c, s)
	if err := <-waiting; !errors.Is(err, ErrEnded) {
		t.Errorf("a message that was not sent: %v, want ErrEnded", err)
	}
	select {
	case got := <-o:
		t.Errorf("outcome %+v before the session has ended", got)
	default:
	}
	if got := <-request; got.Type != lost.Type {
		t.Errorf("a message that does not outlive its connection: outcome %+v, want lost", got)
	}
	sent.Drop()
	if got := <-o; got.Type != lost.Type {
		t.Errorf("outcome %+v, want lost", got)
	}
}

// A message that the server does not take any more is lost, and frees its slot.
func TestUnacknowledgedMessageThatIsTooLargeNow(t *testing.T) {
	t.Parallel()
	sent := new(Unacknowledged)
	c, s := resumable(t, sent, false, 10)
	large := publishText(t, c, 1, string(make([]byte, 200)))
	publishText(t, c, 1, "small")
	s.publish()
	s.wantPublish("small", false)
	lose(c, s)
	_, s = connect(t, Config{Sent: sent}, mqtt.Connect{}, mqtt.Connack{SessionPresent: true, ReceiveMaximum: 1, MaximumPacketSize: 100})
	s.wantPublish("small", true)
	if got := <-large; got.Type != lost.Type {
		t.Errorf("outcome %+v, want lost", got)
	}
}

// A message for which the server ends the connection is given up after three connections, so that
// others get through. A server that is shut down, or a connection that breaks, blames no message.
func TestMessageThatEndsConnectionsIsGivenUp(t *testing.T) {
	t.Parallel()
	sent := new(Unacknowledged)
	c, s := resumable(t, sent, false, 10)
	bad := publishText(t, c, 1, "bad")
	end := func(code mqtt.ReasonCode) {
		t.Helper()
		s.send(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: code, ReasonString: []byte("why")}))
		<-c.Done()
		c, s = resumable(t, sent, true, 10)
	}
	s.wantPublish("bad", false)
	for _, code := range []mqtt.ReasonCode{mqtt.ServerShuttingDown, mqtt.AdministrativeAction, mqtt.QuotaExceeded, mqtt.ServerShuttingDown, mqtt.MalformedPacket} {
		end(code)
		s.wantPublish("bad", true)
	}
	lose(c, s)
	c, s = resumable(t, sent, true, 10)
	s.wantPublish("bad", true)
	select {
	case o := <-bad:
		t.Fatalf("given up after two connections: %+v", o)
	default:
	}
	end(mqtt.QuotaExceeded)
	var said *ReasonError
	if o := <-bad; !errors.As(o.Err(), &said) || said.Packet != mqtt.DISCONNECT || said.Code != mqtt.QuotaExceeded || said.Reason != "why" {
		t.Errorf("outcome %+v", o)
	}
	good := publishText(t, c, 1, "good")
	s.send(ack(mqtt.PUBACK, s.wantPublish("good", false), 0))
	if o := <-good; o.Err() != nil || o.Type == lost.Type {
		t.Errorf("outcome %+v", o)
	}
}
