package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/client"
)

// fastRetry keeps the tests' pauses short.
func fastRetry() client.Option { return client.WithBackoff(time.Millisecond, 20*time.Millisecond) }

func TestReadsSurviveABrokenConnection(t *testing.T) {
	t.Parallel()
	p := startProxy(t, sharedServer(t).addr)
	c := dial(t, p.addr, fastRetry())
	mustSet(t, c, key(t, "k"), "v")

	// Given a Get whose answer is held back …
	p.hold()
	before := p.sent()
	answer := make(chan error, 1)
	go func() {
		v, found, err := c.Get(within(t, patience), key(t, "k"))
		if err == nil && (!found || string(v.Bytes) != "v") {
			err = fmt.Errorf("read %q, found %v", v.Bytes, found)
		}
		answer <- err
	}()
	eventually(t, "the request is under way", func() bool { return p.sent() > before })
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
		write func(context.Context, *client.Client, string) error
		want  error
	}{
		{"Set", func(ctx context.Context, c *client.Client, k string) error {
			_, _, err := c.Set(ctx, k, []byte("new"))
			return err
		}, client.ErrUnknownOutcome},
		{"Del", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Del(ctx, k)
			return err
		}, client.ErrUnknownOutcome},
		{"VDel", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.VDel(ctx, k, []byte("old"))
			return err
		}, client.ErrUnknownOutcome},
		{"Set, retried", func(ctx context.Context, c *client.Client, k string) error {
			_, _, err := c.Set(ctx, k, []byte("new"), client.RetryWrites())
			return err
		}, nil},
		{"Del, retried", func(ctx context.Context, c *client.Client, k string) error {
			_, err := c.Del(ctx, k, client.RetryWrites())
			return err
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, sharedServer(t).addr)
			c := dial(t, p.addr, fastRetry())
			k := key(t, "k")
			mustSet(t, c, k, "old")
			p.hold()
			before := p.sent()
			answer := make(chan error, 1)
			go func() { answer <- test.write(within(t, patience), c, k) }()
			eventually(t, "the request is under way", func() bool { return p.sent() > before })
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
	p := startProxy(t, sharedServer(t).addr)
	c := dial(t, p.addr, fastRetry())
	p.refuse(true)
	p.cut()
	eventually(t, "the client has noticed", func() bool {
		_, _, err := c.Get(within(t, 5*time.Millisecond), key(t, "k"))
		return errors.Is(err, client.ErrNotConnected)
	})
	answer := make(chan error, 1)
	go func() { _, _, err := c.Set(within(t, patience), key(t, "k"), nil); answer <- err }()
	p.refuse(false)
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

// A server that dies and comes back is the same server.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := launch("--listen", "127.0.0.1:0", "--data", dir)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, first.addr, fastRetry())
	w, err := c.Watch(context.Background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	mustSet(t, c, "k", "before")
	if e := next(t, w); string(e.Value) != "before" {
		t.Fatalf("event %+v", e)
	}
	was := mustGet(t, c, "k").Version

	first.kill()
	second, err := launch("--listen", first.addr, "--data", dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.stop)
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
	s := sharedServer(t)
	id := strings.NewReplacer("/", "-", "#", "-").Replace(key(t, "id"))
	// Its write may be on its way when the other one takes over.
	elder := dial(t, s.addr, client.WithClientID(id), client.WithBackoff(100*time.Millisecond, time.Second), client.RetryWrites())
	younger := dial(t, s.addr, client.WithClientID(id))
	_ = younger.Close()
	mustSet(t, elder, key(t, "k"), "v")
}
