package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func dialSession(t *testing.T, address string, opts ...client.Option) *client.Session {
	t.Helper()
	s, err := client.DialSession(t.Context(), address, append([]client.Option{client.WithBackoff(10*time.Millisecond, 50*time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// inbox is where a test finds what a session received.
type inbox chan client.Delivery

func subscribe(t *testing.T, s *client.Session, filters ...string) inbox {
	t.Helper()
	if err := s.Subscribe(t.Context(), filters...); err != nil {
		t.Fatal(err)
	}
	return receive(t, s)
}

func receive(t *testing.T, s *client.Session) inbox {
	in := make(inbox, 2000)
	go func() {
		for d, err := range s.Messages(t.Context()) {
			if err != nil {
				return
			}
			in <- d
		}
	}()
	return in
}

func (in inbox) next(t *testing.T) client.Delivery {
	t.Helper()
	select {
	case d := <-in:
		return d
	case <-time.After(patience):
		t.Fatal("no message came")
		return client.Delivery{}
	}
}

func text(topic, payload string) client.Message {
	return client.Message{Topic: topic, Payload: []byte(payload)}
}

func TestSessionPassesMessagesOnUnaltered(t *testing.T) {
	t.Parallel()
	addr := testserver.Shared().Addr
	in := subscribe(t, dialSession(t, addr), "unaltered/+")
	sent := client.Message{
		Topic: "unaltered/1", Payload: []byte("21.5"), ContentType: "text/plain", ResponseTopic: "answers", CorrelationData: []byte{0, 1, 2},
		UserProperties: client.UserProperties{{Name: "id", Value: "7"}, {Name: "id", Value: "8"}, {Name: "a", Value: ""}}, UTF8: true, Expiry: time.Hour,
	}
	if err := dialSession(t, addr).Publish(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	got := in.next(t)
	got.Ack()
	got.Expiry = time.Hour // it has become less
	if fmt.Sprint(got.Message) != fmt.Sprint(sent) {
		t.Errorf("got  %v\nsent %v", got.Message, sent)
	}
	if id, ok := got.UserProperties.Get("id"); id != "7" || !ok {
		t.Errorf("Get gave %q, %v: not the first", id, ok)
	}
}

func TestSessionPublishesInOrderAndWaitsForAll(t *testing.T) {
	t.Parallel()
	addr := testserver.Shared().Addr
	in := subscribe(t, dialSession(t, addr), "in-order")
	var messages []client.Message
	for i := range 500 {
		messages = append(messages, text("in-order", fmt.Sprint(i)))
	}
	if err := dialSession(t, addr).Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		d := in.next(t)
		d.Ack()
		if string(d.Payload) != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, d.Payload)
		}
	}
}

func TestSessionRefusals(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--max-packet-size", "10000")
	session := dialSession(t, s.Addr)
	var rejected *client.RejectedError
	if err := session.Publish(t.Context(), text("$SYS/mine", "x")); !errors.As(err, &rejected) {
		t.Errorf("a topic of the server's: %v", err)
	}
	if err := session.Publish(t.Context(), text("large", string(make([]byte, 10000)))); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	for _, m := range []client.Message{text("", "x"), text("a/#", "x"), {Topic: "a", UserProperties: client.UserProperties{{Name: "\xff"}}}} {
		if err := session.Publish(t.Context(), m); !errors.Is(err, client.ErrInvalidOption) || errors.Is(err, client.ErrUnknownOutcome) {
			t.Errorf("a message that cannot be sent: %v", err)
		}
	}
	// The topics of requests belong to the store.
	if err := session.Subscribe(t.Context(), "mine/#", protocol.InvokeTopic); !errors.As(err, &rejected) || !errors.Is(err, client.ErrNotAuthorized) || rejected.Code != client.ReasonNotAuthorized {
		t.Errorf("a filter of the server's: %v", err)
	}
	for _, filters := range [][]string{{}, {""}, {"a/#/b"}, {"ok", "a+"}, {"\xff"}} {
		if err := session.Subscribe(t.Context(), filters...); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("Subscribe(%q): %v", filters, err)
		}
		if err := session.Unsubscribe(t.Context(), filters...); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("Unsubscribe(%q): %v", filters, err)
		}
	}
	if got := session.MaxPacketSize(); got != 10000 {
		t.Errorf("the server takes %d bytes", got)
	}
}

// What was not acknowledged before the server died comes again, in order, and so
// does what was published meanwhile; an acknowledgement of the old connection
// doesn't count for the new.
func TestSessionSurvivesTheServer(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--listen", testserver.FreeAddress())
	session := dialSession(t, s.Addr, client.WithClientID("survivor"))
	in := subscribe(t, session, "work")
	publisher := dialSession(t, s.Addr)
	if err := publisher.Publish(t.Context(), text("work", "1"), text("work", "2"), text("work", "3")); err != nil {
		t.Fatal(err)
	}
	first, second, third := in.next(t), in.next(t), in.next(t)
	second.Ack() // waits for the first
	s.Restart()
	again := []client.Delivery{in.next(t), in.next(t), in.next(t)}
	first.Ack()
	third.Ack()
	var got []string
	for _, d := range again {
		got = append(got, string(d.Payload))
		if !d.Redelivered {
			t.Errorf("%s came again without DUP", d.Payload)
		}
	}
	if !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Fatalf("came again: %q", got)
	}
	for _, d := range again {
		d.Ack()
		d.Ack()
	}
	if err := publisher.Publish(t.Context(), text("work", "4")); err != nil {
		t.Fatal(err)
	}
	if d := in.next(t); string(d.Payload) != "4" {
		t.Errorf("then came %q", d.Payload)
	}
}

// A process that comes back under its client ID finds what was published meanwhile,
// also before it has subscribed.
func TestSessionIsFoundAgainByTheNextProcess(t *testing.T) {
	t.Parallel()
	addr := testserver.Shared().Addr
	id := client.WithClientID("comes-back")
	former := dialSession(t, addr, id)
	subscribe(t, former, "meanwhile")
	_ = former.Close()
	if err := dialSession(t, addr).Publish(t.Context(), text("meanwhile", "you were away")); err != nil {
		t.Fatal(err)
	}
	in := subscribe(t, dialSession(t, addr, id), "meanwhile")
	if d := in.next(t); string(d.Payload) != "you were away" {
		t.Errorf("got %q", d.Payload)
	}
}

func TestSessionEndsWithClose(t *testing.T) {
	t.Parallel()
	session := dialSession(t, testserver.Shared().Addr)
	_ = session.Close()
	if err := session.Publish(context.Background(), text("a", "b")); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Publish: %v", err)
	}
	if err := session.Subscribe(context.Background(), "a"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Subscribe: %v", err)
	}
	if err := session.Unsubscribe(context.Background(), "a"); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Unsubscribe: %v", err)
	}
	for _, err := range session.Messages(context.Background()) {
		if !errors.Is(err, client.ErrClosed) {
			t.Errorf("Messages: %v", err)
		}
	}
	if _, err := client.DialSession(t.Context(), "127.0.0.1:1"); err == nil {
		t.Error("no server listens there")
	}
}

// A Publish that waits for its acknowledgement survives the connection: the session sends
// the message again over the next one.
func TestPublishSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testserver.Shared().Addr)
	s := dialSession(t, p.addr)
	in := subscribe(t, dialSession(t, testserver.Shared().Addr), "survives/+")
	mustPublish(t, s, text("survives/1", ""))
	in.wantNext(t, "survives/1")

	p.hold()
	published := make(chan error, 1)
	go func() {
		published <- s.Publish(within(t, patience), text("survives/2", "the second"), text("survives/3", "the third"))
	}()
	eventually(t, "the messages are under way", func() bool { return p.passed("the third") })
	p.cut()
	p.release()
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	// The server may have had them before: then they come twice.
	var last string
	for d := in.next(t); ; d = in.next(t) {
		d.Ack()
		if last = d.Topic; last == "survives/3" {
			break
		}
	}
	if n := p.connections(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// What becomes of a message is unknown when the session is closed before its acknowledgement,
// and when the server has lost the session.
func TestPublishOfASessionThatEnds(t *testing.T) {
	t.Parallel()
	addr := testserver.FreeAddress()
	server := testserver.Run(t, "--listen", addr)
	for _, ends := range []func(p *proxy, s *client.Session){
		func(_ *proxy, s *client.Session) { _ = s.Close() },
		func(p *proxy, _ *client.Session) {
			server.Kill()
			p.cut() // before there is another server, whose first CONNACK must not be held
			p.release()
			testserver.Run(t, "--listen", addr) // with no data
		},
	} {
		p := startProxy(t, addr)
		s := dialSession(t, p.addr)
		p.hold()
		published := make(chan error, 1)
		go func() { published <- s.Publish(within(t, patience), text("unknown", "lost?")) }()
		eventually(t, "the message is under way", func() bool { return p.passed("lost?") })
		ends(p, s)
		if err := <-published; !errors.Is(err, client.ErrUnknownOutcome) {
			t.Errorf("%v, want ErrUnknownOutcome", err)
		}
	}
}

// A message that the server takes for no reason code, but ends the connection for, is given up: the
// session goes on.
func TestMessageThatTheServerEndsConnectionsFor(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	s, err := client.DialSession(t.Context(), addr, client.WithClientID("p"), client.WithBackoff(time.Millisecond, 10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	properties := make(client.UserProperties, 1001)
	for i := range properties {
		properties[i].Name = "n"
	}
	err = s.Publish(t.Context(), client.Message{Topic: "t", UserProperties: properties})
	var disconnected *client.DisconnectError
	if !errors.Is(err, client.ErrUnknownOutcome) || !errors.As(err, &disconnected) || disconnected.Code != client.ReasonQuotaExceeded {
		t.Errorf("1,001 user properties: %v", err)
	}
	if err := s.Publish(t.Context(), client.Message{Topic: "t", UserProperties: properties[:1000]}); err != nil {
		t.Errorf("1,000 user properties: %v", err)
	}
}
