package clientconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

func TestHandshake(t *testing.T) {
	t.Parallel()
	connack := func(ack mqtt.Connack) []byte { return mqtt.AppendConnack(nil, mqtt.V5, &ack) }
	for name, test := range map[string]struct {
		answer []byte
		want   string // in the error; "": none
	}{
		"accepted":                       {connack(mqtt.Connack{}), ""},
		"refused":                        {connack(mqtt.Connack{Code: mqtt.NotAuthorized, ReasonString: "no"}), "CONNACK: Not authorized (0x87): no"},
		"DISCONNECT":                     {mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.ServerBusy}), "DISCONNECT: Server busy (0x89)"},
		"another packet":                 {mqtt.AppendPingresp(nil), "the answer to CONNECT is no CONNACK"},
		"no packet":                      {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), "the server broke the protocol"},
		"the end":                        {nil, "no CONNACK: EOF"},
		"a session after a clean start":  {connack(mqtt.Connack{SessionPresent: true}), "session is present"},
		"an authentication method":       {connack(mqtt.Connack{AuthMethod: "m"}), "Authentication Method"},
		"larger than the client allows":  {connack(mqtt.Connack{ReasonString: strings.Repeat("x", 1000)}), "larger than the maximum packet size"},
		"Receive Maximum 0":              {[]byte("\x20\x06\x00\x00\x03\x21\x00\x00"), "must not be 0"},
		"a CONNACK that is cut in parts": {connack(mqtt.Connack{})[:3], "no CONNACK: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := dial(t, Config{MaxPacketBytes: 1000})
			go func() {
				_, _ = s.Conn.Next(time.Now().Add(patience))
				_, _ = s.Write(test.answer)
				if test.want != "" {
					_ = s.Close()
				}
			}()
			_, err := c.Connect(within(t), &mqtt.Connect{CleanStart: true})
			switch {
			case test.want == "" && err == nil:
				c.Disconnect(&mqtt.Disconnect{})
				<-c.Done()
			case err == nil || test.want == "" || !strings.Contains(err.Error(), test.want):
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// The CONNECT announces what the client takes, and the context bounds the wait for the answer.
func TestConnectThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	c, s := dial(t, Config{})
	ctx, cancel := context.WithCancelCause(within(t))
	heard := make(chan mqtt.Connect, 1)
	go func() {
		f, err := s.Conn.Next(time.Now().Add(patience))
		var hello mqtt.Connect
		if err == nil {
			_ = hello.Decode(f.Clone().Body)
		}
		heard <- hello
		cancel(nil)
	}()
	if _, err := c.Connect(ctx, &mqtt.Connect{ReceiveMaximum: 5}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	if hello := <-heard; hello.Version != mqtt.V5 || hello.ReceiveMaximum != 5 || hello.MaximumPacketSize != DefaultMaxPacketBytes {
		t.Errorf("CONNECT %+v", hello)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is not closed: %v", err)
	}
}

// What a server must not send gets a DISCONNECT that says why, and ends the connection with
// an error that says what was wrong.
func TestServerThatBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bytes []byte
		code  mqtt.ReasonCode
		want  string
	}{
		"a second CONNACK":              {mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{}), mqtt.ProtocolError, "second CONNACK"},
		"AUTH":                          {mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.Reauthenticate, AuthMethod: []byte("m"), HasAuthMethod: true}), mqtt.ProtocolError, "AUTH"},
		"PINGREQ":                       {mqtt.AppendPingreq(nil), mqtt.ProtocolError, "must not send"},
		"a topic alias":                 {mqtt.AppendDelivery(nil, mqtt.V5, &mqtt.Delivery{Topic: []byte("t"), Alias: 1}), mqtt.TopicAliasInvalid, "topic alias"},
		"QoS 2":                         {delivery(2, 1), mqtt.ProtocolError, "QoS 2"},
		"more than Receive Maximum":     {append(append(delivery(1, 1), delivery(1, 2)...), delivery(1, 3)...), mqtt.ReceiveMaximumExceeded, "Receive Maximum"},
		"a packet that is too large":    {append([]byte{0x30, 0xe7, 0x07}, make([]byte, 10)...), mqtt.PacketTooLarge, "maximum packet size"},
		"what is no packet":             {[]byte{0, 0}, mqtt.MalformedPacket, "type 0"},
		"PUBREC for a message at QoS 1": {ack(mqtt.PUBREC, 1, 0), mqtt.ProtocolError, "not of the kind"},
		"SUBACK for a message":          {mqtt.AppendSuback(nil, mqtt.V5, 1, []mqtt.ReasonCode{0}, ""), mqtt.ProtocolError, "not of the kind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, s := connect(t, Config{MaxPacketBytes: 1000, Received: func(*mqtt.Publish) {}}, mqtt.Connect{ReceiveMaximum: 2}, mqtt.Connack{})
			o := publish(t, c, 1)
			s.publish()
			go s.Write(test.bytes)
			s.wantDisconnect(test.code)
			<-c.Done()
			var broken *mqtt.Error
			if err := c.Err(); !errors.As(err, &broken) || broken.Code != test.code || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %v and %q", err, test.code, test.want)
			}
			if got := <-o; got.Type != lost.Type {
				t.Errorf("the message under way got %+v", got)
			}
		})
	}
}

// A SUBACK or UNSUBACK has a code for each filter.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{})
	ctx := within(t)
	subscribe := func() <-chan error {
		two := &mqtt.Subscribe{Subscriptions: []mqtt.Subscription{{Filter: []byte("a")}, {Filter: []byte("b"), QoS: 1}}}
		done := make(chan error, 1)
		go func() { done <- c.Subscribe(ctx, two) }()
		return done
	}
	answer := func(codes ...mqtt.ReasonCode) {
		t.Helper()
		var p mqtt.Subscribe
		if err := p.Decode(mqtt.V5, s.next().Body); err != nil || len(p.Subscriptions) != 2 {
			t.Errorf("%+v, %v", p, err)
		}
		s.send(mqtt.AppendSuback(nil, mqtt.V5, p.PacketID, codes, "why"))
	}
	done := subscribe()
	answer(0, 1)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	done = subscribe()
	answer(0, mqtt.NotAuthorized)
	var refused *ReasonError
	if err := <-done; !errors.As(err, &refused) || *refused != (ReasonError{mqtt.SUBACK, mqtt.NotAuthorized, "why", 1}) {
		t.Errorf("%v", err)
	}
	unsubscribed := make(chan error, 1)
	go func() { unsubscribed <- c.Unsubscribe(ctx, &mqtt.Unsubscribe{Filters: [][]byte{[]byte("a")}}) }()
	var p mqtt.Unsubscribe
	if err := p.Decode(mqtt.V5, s.next().Body); err != nil {
		t.Fatal(err)
	}
	s.send(mqtt.AppendUnsuback(nil, mqtt.V5, p.PacketID, []mqtt.ReasonCode{mqtt.NoSubscriptionExisted}, ""))
	if err := <-unsubscribed; err != nil {
		t.Error(err)
	}
	done = subscribe()
	answer(0)
	if err := <-done; !errors.Is(err, ErrEnded) {
		t.Errorf("one code for two filters: %v", err)
	}
}

func TestReceiveMaximumOfTheServer(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{ReceiveMaximum: 2})
	first, second := publish(t, c, 1), publish(t, c, 2)
	p, q := s.publish(), s.publish()
	ctx, cancel := context.WithTimeout(within(t), 10*time.Millisecond)
	defer cancel()
	if err := c.Send(ctx, 1, nil, message(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the third of two: %v, want DeadlineExceeded", err)
	}
	// An acknowledgement makes room; one of what is not under way does not, and neither does
	// the first half of a QoS 2 handshake.
	s.send(ack(mqtt.PUBACK, 999, 0), ack(mqtt.PUBREC, q.PacketID, 0))
	s.wantAck(mqtt.PUBREL, q.PacketID, 0)
	ctx, cancel = context.WithTimeout(within(t), 10*time.Millisecond)
	defer cancel()
	if err := c.Send(ctx, 1, nil, message(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("after that: %v, want DeadlineExceeded", err)
	}
	s.send(ack(mqtt.PUBACK, p.PacketID, mqtt.QuotaExceeded))
	if o := <-first; o.Type != mqtt.PUBACK || o.Err() == nil {
		t.Errorf("%+v", o)
	}
	publish(t, c, 1)
	s.publish()
	s.send(ack(mqtt.PUBCOMP, q.PacketID, 0))
	if o := <-second; o.Type != mqtt.PUBCOMP || o.Err() != nil {
		t.Errorf("%+v", o)
	}
	publish(t, c, 1)
	s.publish()
}

func TestPacketIdentifiers(t *testing.T) {
	t.Parallel()
	var w window
	w.init()
	w.open(65_535, nil)
	w.next = 65_533 // they are about to start over, and 0 is none [MQTT-2.2.1-3]
	w.used[1] = request{}
	seen := make(map[uint16]bool)
	for range 5 {
		id, err := w.enter(context.Background(), request{packet: mqtt.SUBSCRIBE})
		if err != nil || id <= 1 || seen[id] {
			t.Errorf("%d, %v", id, err)
		}
		seen[id] = true
	}
	for range 65_535 - 6 {
		if _, err := w.enter(context.Background(), request{packet: mqtt.SUBSCRIBE}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.enter(context.Background(), request{packet: mqtt.SUBSCRIBE}); !errors.Is(err, errNoIDs) {
		t.Errorf("one more than there are: %v", err)
	}
}

// The sender's part of QoS 2 (MQTT 5, section 4.3.3).
func TestSendingAtQoS2(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{})
	refused, taken := publish(t, c, 2), publish(t, c, 2)
	p, q := s.publish(), s.publish()
	s.send(ack(mqtt.PUBREC, p.PacketID, mqtt.NotAuthorized))
	if o := <-refused; o.Err() == nil {
		t.Errorf("%+v", o)
	}
	for range 2 { // it may come twice
		s.send(ack(mqtt.PUBREC, q.PacketID, mqtt.NoMatchingSubscribers))
		s.wantAck(mqtt.PUBREL, q.PacketID, 0)
	}
	s.send(ack(mqtt.PUBCOMP, q.PacketID, 0), ack(mqtt.PUBREC, 77, 0))
	if o := <-taken; o.Err() != nil {
		t.Errorf("%+v", o)
	}
	s.wantAck(mqtt.PUBREL, 77, mqtt.PacketIdentifierNotFound)
}

// The receiver's part of QoS 2: what was acknowledged is not handed over again, over this
// connection or the next one of the session.
func TestReceivingAtQoS2(t *testing.T) {
	t.Parallel()
	var c *Conn
	got := make(chan uint16, 10)
	cfg := acknowledging(&c, got)
	cfg.QoS2 = new(Unreleased)
	resume := func(present bool) *server {
		var s *server
		c, s = connect(t, cfg, mqtt.Connect{ReceiveMaximum: 2}, mqtt.Connack{SessionPresent: present})
		return s
	}
	s := resume(false)
	for range 2 {
		s.send(delivery(2, 7))
		s.wantAck(mqtt.PUBREC, 7, 0)
	}
	for id := uint16(8); id < 12; id++ { // Receive Maximum is 2, and 7 is one of them
		s.send(delivery(2, id))
		s.wantAck(mqtt.PUBREC, id, 0)
		s.send(ack(mqtt.PUBREL, id, 0))
		s.wantAck(mqtt.PUBCOMP, id, 0)
	}
	s.send(ack(mqtt.PUBREL, 8, 0))
	s.wantAck(mqtt.PUBCOMP, 8, mqtt.PacketIdentifierNotFound)
	_ = s.Close()
	<-c.Done()

	s = resume(true)
	s.send(delivery(2, 7))
	s.wantAck(mqtt.PUBREC, 7, 0)
	s.send(ack(mqtt.PUBREL, 7, 0))
	s.wantAck(mqtt.PUBCOMP, 7, 0)
	s.send(delivery(2, 12))
	s.wantAck(mqtt.PUBREC, 12, 0)
	_ = s.Close()
	<-c.Done()

	s = resume(false) // the server has forgotten the session
	s.send(delivery(2, 12))
	s.wantAck(mqtt.PUBREC, 12, 0)
	close(got)
	var ids []uint16
	for id := range got {
		ids = append(ids, id)
	}
	if want := "[7 8 9 10 11 12 12]"; fmt.Sprint(ids) != want {
		t.Errorf("received %v, want %v", ids, want)
	}
}

// At the end of a connection all that waits is told so, and the server's reason counts.
func TestEndOfAConnection(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{ReceiveMaximum: 1})
	o := publish(t, c, 1)
	s.publish()
	ctx, waiting := within(t), make(chan error, 1)
	go func() { waiting <- c.Send(ctx, 1, nil, message(1)) }()
	s.send(mqtt.AppendDisconnect(nil, mqtt.V5, &mqtt.Disconnect{Code: mqtt.SessionTakenOver, ReasonString: []byte("bye")}))
	if got := <-o; got.Type != lost.Type {
		t.Errorf("the message under way got %+v", got)
	}
	if err := <-waiting; !errors.Is(err, ErrEnded) {
		t.Errorf("the message that waited for a slot: %v", err)
	}
	<-c.Done()
	var said *ReasonError
	if !errors.As(c.Err(), &said) || *said != (ReasonError{mqtt.DISCONNECT, mqtt.SessionTakenOver, "bye", 0}) {
		t.Errorf("it ended with %v", c.Err())
	}
	for _, qos := range []byte{1, 2} {
		if err := c.Send(within(t), qos, nil, message(qos)); !errors.Is(err, ErrEnded) {
			t.Errorf("Send at QoS %d: %v", qos, err)
		}
		c.Acknowledge(1, 1) // does nothing
	}
	if err := c.SendQoS0(within(t), func(dst []byte) []byte { return dst }); !errors.Is(err, ErrEnded) {
		t.Errorf("SendQoS0: %v", err)
	}
	c.Disconnect(&mqtt.Disconnect{})
}

func TestDisconnect(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{})
	publish(t, c, 1)
	go c.Disconnect(&mqtt.Disconnect{HasSessionExpiry: true})
	s.publish() // what was to be sent comes first
	s.wantDisconnect(mqtt.NormalDisconnection)
	<-c.Done()
	if !errors.Is(c.Err(), errClosed) {
		t.Errorf("it ended with %v", c.Err())
	}
}

// A packet that is larger than the server takes is not sent, and takes no slot.
func TestPacketLargerThanTheServerTakes(t *testing.T) {
	t.Parallel()
	c, s := connect(t, Config{}, mqtt.Connect{}, mqtt.Connack{MaximumPacketSize: 100, ReceiveMaximum: 1})
	sized := func(bytes int) func([]byte, uint16) []byte {
		return func(dst []byte, id uint16) []byte {
			return mqtt.AppendDelivery(dst, mqtt.V5, &mqtt.Delivery{QoS: 1, PacketID: id, Topic: []byte("t"), Payload: make([]byte, bytes-8)})
		}
	}
	for range 2 {
		if err := c.Send(within(t), 1, nil, sized(101)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("one byte above the limit: %v", err)
		}
	}
	if err := c.Send(within(t), 1, make(outcomes, 1), sized(100)); err != nil {
		t.Fatal(err)
	}
	if p := s.publish(); len(p.Payload) != 92 {
		t.Errorf("%d bytes", len(p.Payload))
	}
}
