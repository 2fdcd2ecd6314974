package client_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// take receives the next messages of a session.
func take(t *testing.T, s *client.Session, n int) []client.Delivery {
	t.Helper()
	var got []client.Delivery
	for d, err := range s.Messages(within(t, patience)) {
		if err != nil {
			t.Fatalf("%d of %d messages came: %v", len(got), n, err)
		}
		if got = append(got, d); len(got) == n {
			break
		}
	}
	return got
}

// settling is a session of that name that has received the payloads by a topic.
func settling(t *testing.T, srv *testserver.Server, name string, payloads ...string) (*client.Session, []client.Delivery) {
	t.Helper()
	s := session(t, srv.Addr, name)
	if err := s.Subscribe(within(t, patience), name+"/in"); err != nil {
		t.Fatal(err)
	}
	for _, p := range payloads {
		if err := s.Publish(within(t, patience), client.Message{Topic: name + "/in", Payload: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
	return s, take(t, s, len(payloads))
}

func session(t *testing.T, addr, name string) *client.Session {
	t.Helper()
	s, err := client.DialSession(within(t, patience), addr, client.WithClientID(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func payloads(ds []client.Delivery) (p []string) {
	for _, d := range ds {
		p = append(p, string(d.Payload))
	}
	return p
}

// A message that a transaction has settled does not come again, those beside it do.
func TestSettle(t *testing.T) {
	t.Parallel()
	srv := testserver.Start(t)
	s, ds := settling(t, srv, "settle", "a", "b", "c", "d")
	set := func(value string) txn.Write { return txn.Key("settle/state").Set([]byte(value)) }
	r, err := s.Client().Txn().Then(set("b")).Once("settle/state", "b", 0).Settle(ds[1]).Commit(within(t, patience))
	if err != nil || r.Outcome != txn.Committed {
		t.Fatalf("settling one: %+v, %v", r, err)
	}
	ds[1].Ack() // does nothing: its packet identifier may be another message's by now
	if _, err := s.Client().Txn().Settle(ds[1]).Commit(within(t, patience)); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("settling it again: %v", err)
	}
	r, err = s.Client().Txn().Then(set("c")).Once("settle/state", "b", 0).Settle(ds[2]).Commit(within(t, patience))
	if err != nil || r.Outcome != txn.AlreadyDone {
		t.Errorf("one that was done already: %+v, %v", r, err)
	}
	r, err = s.Client().Txn().If(txn.Key("settle/state").Absent()).Settle(ds[2], ds[3]).Commit(within(t, patience))
	if err != nil || r.Outcome != txn.ConditionFailed || string(r.Failed.Value) != "b" {
		t.Errorf("one whose condition does not hold: %+v, %v", r, err)
	}
	r, err = s.Client().Txn().Settle(ds[3]).Commit(within(t, patience))
	if err != nil || r.Outcome != txn.Committed {
		t.Errorf("settling after that: %+v, %v", r, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := session(t, srv.Addr, "settle")
	if got := payloads(take(t, again, 2)); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("%q come again, want a and c", got)
	}
}

// A delivery whose connection was lost cannot be settled, and is not mistaken for the message
// that has its packet identifier on the next connection.
func TestSettleAfterAReconnect(t *testing.T) {
	t.Parallel()
	srv := testserver.Start(t)
	s, ds := settling(t, srv, "stale", "a")
	if !ds[0].CanSettle() {
		t.Error("a message of a connection that stands can't be settled")
	}
	session(t, srv.Addr, "stale").Close() // it takes the session over for a moment
	again := take(t, s, 1)[0]
	if ds[0].CanSettle() {
		t.Error("a message of a connection that is lost can be settled")
	}
	_, err := s.Client().Txn().Then(txn.Key("stale/state").Set(nil)).Settle(ds[0]).Commit(within(t, patience))
	if !errors.Is(err, client.ErrStaleDelivery) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("settling a message of a connection that is lost: %v", err)
	}
	other := dial(t, srv.Addr)
	if _, err := other.Txn().Settle(again).Commit(within(t, patience)); !errors.Is(err, client.ErrStaleDelivery) {
		t.Errorf("settling over another connection: %v", err)
	}
	if _, err := s.Client().Txn().Settle(client.NewDelivery(client.Message{}, false, nil)).Commit(within(t, patience)); !errors.Is(err, client.ErrInvalidOption) {
		t.Errorf("settling what did not come from a session: %v", err)
	}
	if r, err := s.Client().Txn().Settle(again).Commit(within(t, patience)); err != nil || r.Outcome != txn.Committed {
		t.Errorf("settling the message that came again: %+v, %v", r, err)
	}
}

// More messages are settled than the Receive Maximum allows at once, each while as many as it
// allows are under way.
func TestSettleReleasesThePlace(t *testing.T) {
	t.Parallel()
	srv := testserver.Start(t)
	s := session(t, srv.Addr, "places")
	if err := s.Subscribe(within(t, patience), "places/in"); err != nil {
		t.Fatal(err)
	}
	const messages = 3000
	published := make(chan error, 1)
	go func() {
		sender, err := client.DialSession(t.Context(), srv.Addr)
		if err == nil {
			for i := 0; i < messages && err == nil; i += 100 {
				batch := make([]client.Message, 100)
				for j := range batch {
					batch[j] = client.Message{Topic: "places/in", Payload: fmt.Append(nil, i+j)}
				}
				err = sender.Publish(t.Context(), batch...)
			}
			err = errors.Join(err, sender.Close())
		}
		published <- err
	}()
	for i := 0; i < messages; i += 30 {
		x := s.Client().Txn()
		for j, d := range take(t, s, 30) {
			if string(d.Payload) != fmt.Sprint(i+j) {
				t.Fatalf("message %q came as number %d", d.Payload, i+j)
			}
			x.Settle(d)
		}
		if r, err := x.Commit(within(t, patience)); err != nil || r.Outcome != txn.Committed {
			t.Fatalf("settling: %+v, %v", r, err)
		}
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
}

// More messages wait for a session than its Receive Maximum allows at once. The first request of its
// client gets its response although none of them is acknowledged.
func TestRequestBesideMessagesThatWait(t *testing.T) {
	t.Parallel()
	srv := testserver.Start(t)
	s := session(t, srv.Addr, "waits")
	if err := s.Subscribe(within(t, patience), "waits/in"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	const messages = 1100
	sender := session(t, srv.Addr, "sender")
	if err := sender.Publish(within(t, patience), slices.Repeat([]client.Message{{Topic: "waits/in"}}, messages)...); err != nil {
		t.Fatal(err)
	}
	s = session(t, srv.Addr, "waits")
	waiting := take(t, s, 1023) // as many as come
	if _, err := s.Client().Set(within(t, patience), "waits/key", []byte("1")); err != nil {
		t.Errorf("while %d messages are not acknowledged: %v", len(waiting), err)
	}
	for _, d := range waiting {
		d.Ack()
	}
	take(t, s, messages-len(waiting))
}

// The client of a session does all that a client does, watches included, also after a
// reconnect; they are closed together.
func TestClientOfASession(t *testing.T) {
	t.Parallel()
	srv := testserver.Start(t)
	s := session(t, srv.Addr, "both")
	w, err := s.Client().Watch(within(t, patience), "both/key")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().Set(within(t, patience), "both/key", []byte("1")); err != nil {
		t.Fatal(err)
	}
	if e := next(t, w); string(e.Value) != "1" {
		t.Errorf("got %+v", e)
	}
	session(t, srv.Addr, "both").Close()
	other := dial(t, srv.Addr)
	if _, err := other.Set(within(t, patience), "both/key", []byte("2")); err != nil {
		t.Fatal(err)
	}
	for e := range w.Chan() {
		if string(e.Value) == "2" {
			break
		}
	}
	if v, found, err := s.Client().Get(within(t, patience), "both/key"); err != nil || !found || string(v.Bytes) != "2" {
		t.Errorf("got %q, %v, %v", v.Bytes, found, err)
	}
	if err := s.Client().Close(); err != nil {
		t.Error(err)
	}
	if err := s.Publish(within(t, patience), client.Message{Topic: "t"}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
