package consistent_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A message fails until another one of its key, which comes after it, is processed: it
// steps aside between two attempts.
func TestRetryLetsOthersOfItsKeyGoFirst(t *testing.T) {
	t.Parallel()
	for path, opts := range map[string][]consistent.Option{"state-based": {consistent.Replay()}, "transactions": nil} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			retryLetsOthersGoFirst(t, opts...)
		})
	}
}

func retryLetsOthersGoFirst(t *testing.T, opts ...consistent.Option) {
	t.Helper()
	b := consistenttest.NewBroker()
	p := transactional(t, b.Connect("p"), "orders", append(opts, quickly, consistent.WithAttempts(1000))...)
	_ = consistent.Handle(p, "in", sameKey[string], func(_ *consistent.Context, exists bool, m string) (bool, []consistent.Message, error) {
		switch {
		case m == "create":
			return true, nil, nil
		case !exists:
			return exists, nil, errors.New("no such order")
		}
		return exists, []consistent.Message{consistent.JSON("out", m)}, nil
	})
	run(t, p)
	b.Publish(consistenttest.Event("1", consistent.JSON("in", "pay")), consistenttest.Event("2", consistent.JSON("in", "create")))
	settle(t, b)
	wantDeadLetters(t, b)
	if out := b.Published("out"); len(out) != 1 || string(out[0].Payload) != `"pay"` {
		t.Errorf("published %v", out)
	}
}

// Keys for which the store has no room are tried again without holding the slots that
// other keys need, and without keeping others of their key back.
func TestKeysWithoutRoomDoNotStallOthers(t *testing.T) {
	t.Parallel()
	for path, start := range paths {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			// of a sixteenth of the bound, which is none here, a client that has less may go beyond it: the processor's
			// transactions and its other requests are of two clients
			addr := testserver.Start(t, func(c *server.Config) { c.MaxKeys = 15 }).Addr
			log := &logBook{}
			run(t, start(t, dial(t, addr), consistent.WithConcurrency(2), log.option()))
			o := observe(t, addr, "balances/+")
			wantBalance := func(name string, want int) {
				t.Helper()
				if m := o.next(t); string(m.Payload) != fmt.Sprintf(`{"Account":%q,"Balance":%d}`, name, want) {
					t.Fatalf("got %s, want %d of %s", m.Payload, want, name)
				}
			}
			o.publish(t, message("0", deposit{"known", 1}))
			wantBalance("known", 1)
			c, err := client.Dial(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var others []string
			for i := 0; err == nil; i++ {
				others = append(others, fmt.Sprint("other-", i))
				_, err = c.Set(t.Context(), others[i], nil)
			}
			if !errors.Is(err, client.ErrQuotaExceeded) {
				t.Fatal(err)
			}

			for _, account := range []string{"a", "b", "c", "d", "e", "f"} {
				o.publish(t, message(account, deposit{account, 1}))
			}
			o.publish(t, message("1", deposit{"known", 1}))
			wantBalance("known", 2) // or keys without room hold both slots
			if log.count("max-keys") == 0 {
				t.Error("the log does not say what there is no room for")
			}
			for _, key := range others {
				if _, err := c.Del(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			for range 6 {
				o.next(t)
			}
		})
	}
}

// The end of a saga: its state is deleted in the commit that ends it, or later by itself.
func TestStateEnds(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	c.publish = func(_ []consistent.Message, carryOut func() error) error { // each is replayed
		if err := carryOut(); err != nil || c.counted("publish")%2 == 1 {
			return errInjected
		}
		return nil
	}
	p := newProcessor(t, c, "saga", quickly, consistent.WithConcurrency(1))
	_ = consistent.Handle(p, "in/+", sameKey[string], func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
		switch m {
		case "end":
			c.Delete()
		case "end soon":
			c.ExpireIn(30 * time.Millisecond)
		case "end now":
			c.ExpireIn(0)
		}
		return s + 1, []consistent.Message{consistent.JSON("out", s+1)}, nil
	})
	run(t, p)
	o := observe(t, addr, "out")
	send := func(id, m, want string) {
		t.Helper()
		o.publish(t, consistenttest.Event(id, consistent.JSON("in/a", m)))
		for range 2 {
			if got := o.next(t); string(got.Payload) != want {
				t.Errorf("%s: published %s, want %s", m, got.Payload, want)
			}
		}
	}
	gone := func(m string) {
		t.Helper()
		if s, version := state(t, c.Connection, "saga/k"); !version.IsZero() {
			t.Errorf("after %q the state is %s", m, s)
		}
	}
	send("1", "begin", "1")
	send("2", "go on", "2")
	send("3", "end", "3")
	gone("end")
	send("4", "begin", "1")
	send("5", "end now", "2")
	gone("end now")
	send("6", "end", "1") // a saga of one message
	gone("end")
	send("7", "end soon", "1")
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, version := state(t, c.Connection, "saga/k"); version.IsZero() {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the state does not expire")
		}
	}
	send("8", "begin", "1")
}

// By a transaction, too: the state ends with the commit, or later by itself.
func TestStateEndsByATransaction(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := dial(t, addr)
	p := transactional(t, c, "saga", quickly)
	_ = consistent.Handle(p, "in/+", sameKey[string], func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
		switch m {
		case "end":
			c.Delete()
		case "end soon":
			c.ExpireIn(30 * time.Millisecond)
		}
		return s + 1, []consistent.Message{consistent.JSON("out", s+1)}, nil
	})
	run(t, p)
	o := observe(t, addr, "out")
	for i, step := range []struct{ message, want string }{
		{"begin", "1"}, {"go on", "2"}, {"end", "3"}, {"begin", "1"}, {"end", "2"}, {"end", "1"}, {"end soon", "1"},
	} {
		o.publish(t, consistenttest.Event(fmt.Sprint(i), consistent.JSON("in/a", step.message)))
		if got := o.next(t); string(got.Payload) != step.want {
			t.Errorf("%d, %s: published %s, want %s", i, step.message, got.Payload, step.want)
		}
		if s, version := state(t, c, "saga/k"); step.message == "end" && !version.IsZero() {
			t.Errorf("%d: behind the end the state is %s", i, s)
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, version := state(t, c, "saga/k"); version.IsZero() {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the state does not expire")
		}
	}
	o.publish(t, consistenttest.Event("last", consistent.JSON("in/a", "begin")))
	if got := o.next(t); string(got.Payload) != "1" {
		t.Errorf("behind its expiry the state is %s", got.Payload)
	}
}

// What waits behind the end of a saga begins with no state.
func TestMessageBehindTheEnd(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	begun, goOn := make(chan struct{}), make(chan struct{})
	p := newProcessor(t, b.Connect("p"), "saga", quickly)
	_ = consistent.Handle(p, "in", sameKey[string], func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
		if m == "end" {
			close(begun)
			<-goOn
			c.Delete()
		}
		return s + 1, []consistent.Message{consistent.JSON("out", s+1)}, nil
	})
	run(t, p)
	b.Publish(consistenttest.Event("1", consistent.JSON("in", "end")))
	<-begun
	b.Publish(consistenttest.Event("2", consistent.JSON("in", "begin")))
	close(goOn)
	settle(t, b)
	wantState(t, b, "saga/k", "1")
}
