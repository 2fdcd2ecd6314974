package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"holdfast/client"
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
	in := make(inbox, 2000)
	if err := s.Subscribe(t.Context(), filters, func(d client.Delivery) { in <- d }); err != nil {
		t.Fatal(err)
	}
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

func text(topic, payload string) client.ApplicationMessage {
	return client.ApplicationMessage{Topic: topic, Payload: []byte(payload)}
}

func TestSessionPassesMessagesOnUnaltered(t *testing.T) {
	t.Parallel()
	addr := sharedServer(t).addr
	in := subscribe(t, dialSession(t, addr), "unaltered/+")
	sent := client.ApplicationMessage{
		Topic: "unaltered/1", Payload: []byte("21.5"), ContentType: "text/plain", ResponseTopic: "answers", CorrelationData: []byte{0, 1, 2},
		UserProperties: client.UserProperties{{Name: "id", Value: "7"}, {Name: "id", Value: "8"}, {Name: "a", Value: ""}}, UTF8: true, Expiry: time.Hour,
	}
	if err := dialSession(t, addr).Publish(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	got := in.next(t)
	got.Ack()
	got.Expiry = time.Hour // it has become less
	if fmt.Sprint(got.ApplicationMessage) != fmt.Sprint(sent) {
		t.Errorf("got  %v\nsent %v", got.ApplicationMessage, sent)
	}
	if id, ok := got.UserProperties.Get("id"); id != "7" || !ok {
		t.Errorf("Get gave %q, %v: not the first", id, ok)
	}
}

func TestSessionPublishesInOrderAndWaitsForAll(t *testing.T) {
	t.Parallel()
	addr := sharedServer(t).addr
	in := subscribe(t, dialSession(t, addr), "in-order")
	var messages []client.ApplicationMessage
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
	s := startServer(t, "--max-packet-size", "10000")
	session := dialSession(t, s.addr)
	var rejected *client.RejectedError
	if err := session.Publish(t.Context(), text("$SYS/mine", "x")); !errors.As(err, &rejected) {
		t.Errorf("a topic of the server's: %v", err)
	}
	if err := session.Publish(t.Context(), text("large", string(make([]byte, 10000)))); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := session.Subscribe(t.Context(), []string{"a/#/b"}, func(client.Delivery) {}); !errors.As(err, &rejected) {
		t.Errorf("a filter that is none: %v", err)
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
	data := t.TempDir()
	s := startServer(t, "--data", data)
	session := dialSession(t, s.addr, client.WithClientID("survivor"))
	in := subscribe(t, session, "work")
	publisher := dialSession(t, s.addr)
	if err := publisher.Publish(t.Context(), text("work", "1"), text("work", "2"), text("work", "3")); err != nil {
		t.Fatal(err)
	}
	first, second, third := in.next(t), in.next(t), in.next(t)
	second.Ack() // waits for the first
	s.kill()
	next, err := launch("--listen", s.addr, "--data", data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.stop)
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
	addr := sharedServer(t).addr
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
	session := dialSession(t, sharedServer(t).addr)
	_ = session.Close()
	if err := session.Publish(context.Background(), text("a", "b")); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Publish: %v", err)
	}
	if err := session.Subscribe(context.Background(), []string{"a"}, func(client.Delivery) {}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Subscribe: %v", err)
	}
	if _, err := client.DialSession(t.Context(), "127.0.0.1:1"); err == nil {
		t.Error("nobody listens there")
	}
}
