package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func mustSubscribe(t *testing.T, s *client.Session, filters ...string) {
	t.Helper()
	if err := s.Subscribe(within(t, patience), filters...); err != nil {
		t.Fatalf("Subscribe(%q): %v", filters, err)
	}
}

func mustPublish(t *testing.T, s *client.Session, messages ...client.Message) {
	t.Helper()
	if err := s.Publish(within(t, patience), messages...); err != nil {
		t.Fatal(err)
	}
}

// wantNext checks the topic of the message that comes next, and acknowledges it.
func (in inbox) wantNext(t *testing.T, topic string) {
	t.Helper()
	d := in.next(t)
	d.Ack()
	if d.Topic != topic {
		t.Fatalf("a message on %q came, want one on %q", d.Topic, topic)
	}
}

// A Subscribe that the server refuses leaves none of its filters behind, and can be
// repeated without the one that was refused.
func TestRefusedSubscribeCanBeRepeated(t *testing.T) {
	t.Parallel()
	s := dialSession(t, testserver.Shared().Addr)
	in := receive(t, s)
	mustSubscribe(t, s, "repeat/before")
	err := s.Subscribe(t.Context(), "repeat/1", protocol.InvokeTopic, "repeat/2")
	if !errors.Is(err, client.ErrNotAuthorized) {
		t.Fatalf("%v, want ErrNotAuthorized", err)
	}
	mustPublish(t, s, text("repeat/1", ""), text("repeat/2", ""), text("repeat/before", ""))
	in.wantNext(t, "repeat/before")

	mustSubscribe(t, s, "repeat/1", "repeat/2")
	mustPublish(t, s, text("repeat/1", ""), text("repeat/2", ""))
	in.wantNext(t, "repeat/1")
	in.wantNext(t, "repeat/2")
}

// A Subscribe whose answer did not come in time may have been carried out. Repeated, it
// works; not repeated, it is taken back with the next call.
func TestUnansweredSubscribe(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testserver.Shared().Addr)
	s, other := dialSession(t, p.addr), dialSession(t, testserver.Shared().Addr)
	in := receive(t, s)
	p.hold()
	for _, filter := range []string{"unanswered/kept", "unanswered/dropped"} {
		if err := s.Subscribe(within(t, 20*time.Millisecond), filter); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v, want DeadlineExceeded", err)
		}
	}
	p.release()
	mustSubscribe(t, s, "unanswered/kept")
	mustPublish(t, other, text("unanswered/dropped", ""), text("unanswered/kept", ""))
	in.wantNext(t, "unanswered/kept")
}

func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testserver.Shared().Addr)
	s, other := dialSession(t, p.addr), dialSession(t, testserver.Shared().Addr)
	in := receive(t, s)
	mustSubscribe(t, s, "unsubscribe/1", "unsubscribe/2", "unsubscribe/3")
	if err := s.Unsubscribe(t.Context(), "unsubscribe/1", "unsubscribe/never"); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, other, text("unsubscribe/1", ""), text("unsubscribe/2", ""))
	in.wantNext(t, "unsubscribe/2")

	// An Unsubscribe that gets no answer is repeated on the next connection.
	p.hold()
	if err := s.Unsubscribe(within(t, 20*time.Millisecond), "unsubscribe/2"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want DeadlineExceeded", err)
	}
	p.cut()
	p.release()
	mustSubscribe(t, s, "unsubscribe/4") // on the next connection
	mustPublish(t, other, text("unsubscribe/1", ""), text("unsubscribe/2", ""), text("unsubscribe/3", ""), text("unsubscribe/4", ""))
	in.wantNext(t, "unsubscribe/3")
	in.wantNext(t, "unsubscribe/4")
}

// A server that has lost its data gets the subscriptions again, without those that were
// ended.
func TestForgottenSessionIsSubscribedAgain(t *testing.T) {
	t.Parallel()
	addr := testserver.FreeAddress()
	server := testserver.Run(t, "--listen", addr)
	s := dialSession(t, addr)
	in := receive(t, s)
	mustSubscribe(t, s, "forgotten/1", "forgotten/2")
	if err := s.Unsubscribe(t.Context(), "forgotten/1"); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	testserver.Run(t, "--listen", addr)
	other := dialSession(t, addr)
	eventually(t, "the session is there again", func() bool { return s.Publish(within(t, patience), text("forgotten/x", "")) == nil })
	mustPublish(t, other, text("forgotten/1", ""), text("forgotten/2", ""))
	in.wantNext(t, "forgotten/2")
}

// What a former process has subscribed to can be ended by its successor.
func TestUnsubscribeFromAFormerProcess(t *testing.T) {
	t.Parallel()
	id := client.WithClientID("successor")
	former := dialSession(t, testserver.Shared().Addr, id)
	mustSubscribe(t, former, "former/1", "former/2")
	_ = former.Close()
	s := dialSession(t, testserver.Shared().Addr, id)
	if err := s.Unsubscribe(t.Context(), "former/1"); err != nil {
		t.Fatal(err)
	}
	in := receive(t, s)
	mustPublish(t, s, text("former/1", ""), text("former/2", ""))
	in.wantNext(t, "former/2")
}

// A loop over the messages can be left and begun again; the end of its context is its
// last element.
func TestMessagesLoop(t *testing.T) {
	t.Parallel()
	s := dialSession(t, testserver.Shared().Addr)
	mustSubscribe(t, s, "loop")
	mustPublish(t, s, text("loop", "1"), text("loop", "2"), text("loop", "3"))
	ctx, cancel := context.WithCancelCause(within(t, patience))
	var got string
	take := func(n int) {
		for d, err := range s.Messages(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			d.Ack()
			if got += string(d.Payload); len(got) == n {
				return
			}
		}
	}
	take(1)
	take(3)
	if got != "123" {
		t.Errorf("got %q", got)
	}
	enough := errors.New("enough")
	cancel(enough)
	n := 0
	for d, err := range s.Messages(ctx) {
		n++
		if err != enough || d.Topic != "" {
			t.Errorf("%+v, %v; want the cause of the context's end", d, err)
		}
	}
	if n != 1 {
		t.Errorf("%d elements, want the error alone", n)
	}
}

func TestNewDelivery(t *testing.T) {
	t.Parallel()
	acked := 0
	d := client.NewDelivery(text("a", "b"), true, func() { acked++ })
	d.Ack()
	if acked != 1 || d.Topic != "a" || !d.Redelivered {
		t.Errorf("%+v, acknowledged %d times", d, acked)
	}
	client.NewDelivery(text("a", "b"), false, nil).Ack() // does nothing
}
