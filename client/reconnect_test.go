package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// fastRetry keeps the tests' pauses short.
func fastRetry() client.Option { return client.WithBackoff(time.Millisecond, 20*time.Millisecond) }

func TestReadsSurviveABrokenConnection(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testserver.Shared().Addr)
	c := dial(t, p.addr, fastRetry())
	mustSet(t, c, key(t, "k"), "v")

	// Given a Get whose answer is held back …
	p.hold()
	answer := make(chan error, 1)
	go func() {
		v, found, err := c.Get(within(t, patience), key(t, "k"))
		if err == nil && (!found || string(v.Bytes) != "v") {
			err = fmt.Errorf("read %q, found %v", v.Bytes, found)
		}
		answer <- err
	}()
	eventually(t, "the request is under way", func() bool { return p.passed("\r\nGET\r\n") })
	// … when the connection breaks, then it is asked again on a new one.
	p.cut()
	p.release()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if n := p.connections(); n < 2 {
		t.Errorf("%d connections, want a second one", n)
	}
}

func TestWritesWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		sends string // a part of the request that is in no earlier one
		write func(context.Context, *client.Client, string) error
		want  error
	}{
		{"Set", "\r\nnew\r\n", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Set(ctx, k, []byte("new"))
			return err
		}, client.ErrUnknownOutcome},
		{"Del", "\r\nDEL\r\n", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Del(ctx, k)
			return err
		}, client.ErrUnknownOutcome},
		{"Del on condition of a value", "\r\nVDEL\r\n", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Del(ctx, k, client.IfValue([]byte("old")))
			return err
		}, client.ErrUnknownOutcome},
		{"Set, retried", "\r\nnew\r\n", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Set(ctx, k, []byte("new"), client.RetryWrites())
			return err
		}, nil},
		{"Del, retried", "\r\nDEL\r\n", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Del(ctx, k, client.RetryWrites())
			return err
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, testserver.Shared().Addr)
			c := dial(t, p.addr, fastRetry())
			k := key(t, "k")
			mustSet(t, c, k, "old")
			p.hold()
			answer := make(chan error, 1)
			go func() { answer <- test.write(within(t, patience), c, k) }()
			eventually(t, "the request is under way", func() bool { return p.passed(test.sends) })
			p.cut()
			p.release()
			if err := <-answer; !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			// Whatever became of it, the client goes on.
			mustSet(t, c, k, "later")
		})
	}
}

// A write that was never sent is simply sent later.
func TestUnsentWritesWait(t *testing.T) {
	t.Parallel()
	p := startProxy(t, testserver.Shared().Addr)
	c := dial(t, p.addr, fastRetry())
	p.refuse(true)
	p.cut()
	eventually(t, "the client has noticed", func() bool {
		_, _, err := c.Get(within(t, 5*time.Millisecond), key(t, "k"))
		return errors.Is(err, client.ErrNotConnected)
	})
	answer := make(chan error, 1)
	go func() { _, err := c.Set(within(t, patience), key(t, "k"), nil); answer <- err }()
	p.refuse(false)
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

// A server that dies and comes back is the same server.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	s := testserver.Run(t, "--listen", testserver.FreeAddress())
	c := dial(t, s.Addr, fastRetry())
	w, err := c.Watch(context.Background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, c, "k", "before")
	if e := next(t, w); string(e.Value) != "before" {
		t.Fatalf("event %+v", e)
	}
	was := mustGet(t, c, "k").Version

	s.Restart()
	if v := mustGet(t, c, "k"); string(v.Bytes) != "before" || v.Version != was {
		t.Errorf("after the restart: %q %v, want what was acknowledged", v.Bytes, v.Version)
	}
	mustSet(t, c, "k", "after")
	if e := next(t, w); string(e.Value) != "after" || e.Version.Compare(was) <= 0 {
		t.Errorf("event %+v, want the write after the restart", e)
	}
}

// Two clients with one ID: the elder is thrown out, says so, and comes back.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	s := testserver.Shared()
	id := strings.NewReplacer("/", "-", "#", "-").Replace(key(t, "id"))
	// Its write may be on its way when the other one takes over.
	elder := dial(t, s.Addr, client.WithClientID(id), client.WithBackoff(100*time.Millisecond, time.Second), client.RetryWrites())
	younger := dial(t, s.Addr, client.WithClientID(id))
	_ = younger.Close()
	mustSet(t, elder, key(t, "k"), "v")
}

// A client that another one with the same client ID has taken the place of says so.
func TestTakeover(t *testing.T) {
	t.Parallel()
	addr := testserver.Shared().Addr
	id := client.WithClientID("takeover")
	first := dial(t, addr, id, client.WithBackoff(time.Hour, time.Hour))
	dial(t, addr, id)
	eventually(t, "the first client knows why", func() bool {
		_, _, err := first.Get(within(t, 10*time.Millisecond), key(t, "k"))
		var disconnected *client.DisconnectError
		return errors.Is(err, client.ErrNotConnected) && errors.As(err, &disconnected) && disconnected.Code == client.ReasonSessionTakenOver
	})
}
