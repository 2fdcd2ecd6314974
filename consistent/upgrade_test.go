package consistent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A new version of a program subscribed to more than the old one, which runs again after a
// rollback. What it has no handler for is not lost.
func TestMessagesWithoutAHandlerAreDeadLetters(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	id := client.WithClientID("instance")
	next := dial(t, addr, id)
	if err := next.Subscribe(t.Context(), "$share/tellers/withdrawals/+"); err != nil {
		t.Fatal(err)
	}
	_ = next.Close()
	o := observe(t, addr, "dead-letters/bank")
	for i := range 10 {
		m := message(fmt.Sprint(i), deposit{"ann", i})
		m.Topic = "withdrawals/ann"
		o.publish(t, m)
	}
	run(t, bank(t, dial(t, addr, id), consistent.WithShare("tellers")))
	letters := make(map[string]bool)
	for range 10 {
		m := o.next(t)
		reason, _ := m.UserProperties.Get(consistent.DeadLetterReason)
		from, _ := m.UserProperties.Get(consistent.DeadLetterSourceTopic)
		if from != "withdrawals/ann" || reason != consistent.ErrNoHandler.Error() {
			t.Errorf("a dead letter from %s because %q", from, reason)
		}
		letters[string(m.Payload)] = true
	}
	if len(letters) != 10 {
		t.Errorf("dead letters %v, want 10 different ones", letters)
	}
}

// dies runs a processor until it has stored the first message; nothing is published. Its
// connection is lost then.
func dies(t *testing.T, b *consistenttest.Broker, m consistent.Message, start func(c consistent.Conn) *consistent.Processor) {
	t.Helper()
	c := &memory{Conn: b.Connect("p")}
	stored := make(chan struct{})
	var once sync.Once
	c.publish = func([]consistent.Message, func() error) error {
		once.Do(func() { close(stored) })
		return errInjected
	}
	stop := run(t, start(c))
	b.Publish(m)
	<-stored
	stop()
	_ = c.Close()
}

// A program whose state has got another field publishes what the one before it has stored.
func TestFieldAddedToTheState(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	dies(t, b, message("1", deposit{"ann", 10}), func(c consistent.Conn) *consistent.Processor { return bank(t, c) })
	type richer struct {
		account
		Currency string
	}
	p := newProcessor(t, b.Connect("p"), "bank", quickly)
	_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s richer, m deposit) (richer, []consistent.Message, error) {
		booked, out, err := book(c, s.account, m)
		return richer{booked, "EUR"}, out, err
	})
	run(t, p)
	settle(t, b)
	wantDeadLetters(t, b)
	if out := b.Published("balances/+"); len(out) != 1 || string(out[0].Payload) != `{"Account":"ann","Balance":10}` {
		t.Errorf("published %v", out)
	}
}

// A message was stored, and its processor was away for longer than messages are remembered:
// its outputs leave, while a new message of that age is a dead letter.
func TestOutputsLeaveAfterKeep(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	now := time.Now()
	clock := func(ahead time.Duration) consistent.Option {
		return consistent.WithNow(func() time.Time { return now.Add(ahead) })
	}
	event := func(id string) consistent.Message {
		m := message(id, deposit{"ann", 10})
		m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "time", Value: now.Format(time.RFC3339Nano)})
		return m
	}
	dies(t, b, event("1"), func(c consistent.Conn) *consistent.Processor {
		return bank(t, c, consistent.WithKeep(time.Hour), clock(0))
	})
	run(t, bank(t, b.Connect("p"), consistent.WithKeep(time.Hour), clock(2*time.Hour)))
	settle(t, b)
	wantDeadLetters(t, b)
	if out := b.Published("balances/+"); len(out) != 1 {
		t.Errorf("published %v, want the one output", out)
	}
	b.Publish(event("1"), event("2")) // the first waits, the second may be a duplicate of one that was forgotten
	settle(t, b)
	wantDeadLetters(t, b, consistent.ErrTooOld.Error())
	wantState(t, b, "bank/ann", `{"Balance":10,"Deposits":1}`)
}

// keeps is a connection that notes for how long a message was last asked to be remembered.
type keeps struct {
	*memory
	last *atomic.Int64
}

func (k keeps) Transact(ctx context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	k.last.Store(int64(r.Keep))
	return k.memory.Transact(ctx, r)
}

// A sender's clock is ahead, so its messages look younger than they are: they are
// remembered for that much longer, and refused beyond it.
func TestSenderWhoseClockIsAhead(t *testing.T) {
	t.Parallel()
	for path, start := range paths {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := consistenttest.NewBroker()
			c := keeps{&memory{Conn: b.Connect("p")}, new(atomic.Int64)}
			c.store = func(r consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error) {
				c.last.Store(int64(r.Keep))
				return carryOut()
			}
			now := time.Now()
			run(t, start(t, c, consistent.WithKeep(48*time.Hour), consistent.WithMaxSkew(10*time.Minute), consistent.WithNow(func() time.Time { return now })))
			c.last.Store(0) // what the processor has asked
			ahead := func(id string, d time.Duration) consistent.Message {
				m := message(id, deposit{"ann", 10})
				m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "time", Value: now.Add(d).Format(time.RFC3339Nano)})
				return m
			}
			b.Publish(ahead("1", 10*time.Minute), ahead("2", 10*time.Minute+time.Second))
			settle(t, b)
			wantDeadLetters(t, b, consistent.ErrTimeAhead.Error())
			wantState(t, b, "bank/ann", `{"Balance":10,"Deposits":1}`)
			// A duplicate passes for young until now + 10 min + 48 h.
			if got := time.Duration(c.last.Load()); got < 48*time.Hour+10*time.Minute {
				t.Errorf("the message is remembered for %v, want 48h10m", got)
			}
		})
	}
}

// A server that remembers messages for a shorter time than the processor counts on: Run
// says so, at once or when a message is stored.
func TestKeepThatIsNotGranted(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.MaxRemember, c.Remember = time.Hour, time.Hour }).Addr
	if err := bank(t, dial(t, addr)).Run(t.Context()); !errors.Is(err, consistent.ErrKeepTooShort) {
		t.Errorf("Run: %v", err)
	}
	c := &conn{Connection: dial(t, addr)}
	c.store = func(_ consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error) {
		r, err := carryOut()
		r.Keep = time.Minute // the server was started again with another setting
		return r, err
	}
	p := bank(t, c, consistent.WithKeep(30*time.Minute))
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context()) }()
	<-p.Subscribed()
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 1}))
	o.next(t)
	select {
	case err := <-done:
		if !errors.Is(err, consistent.ErrKeepTooShort) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		t.Error("Run does not end")
	}
}

// DONE names the version that the message has produced.
func TestDoneNamesTheVersion(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	c := &memory{Conn: b.Connect("p")}
	versions := make(chan any, 10)
	c.store = func(_ consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error) {
		r, err := carryOut()
		versions <- r.Version
		return r, err
	}
	c.done = func(r consistent.DoneRequest, carryOut func() (bool, error)) (bool, error) {
		versions <- r.Version
		return carryOut()
	}
	run(t, bank(t, c))
	b.Publish(message("1", deposit{"ann", 1}))
	if stored, done := <-versions, <-versions; stored != done {
		t.Errorf("DONE of version %v, want %v", done, stored)
	}
}

// A handler does without a value that it can't get. A replay can't get it either.
func TestFailedCaptureIsRemembered(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	c := &memory{Conn: b.Connect("p")}
	var tries, taken atomic.Int64
	c.publish = func(_ []consistent.Message, carryOut func() error) error {
		if tries.Add(1) == 1 {
			return errInjected
		}
		return carryOut()
	}
	p := newProcessor(t, c, "shop", quickly, consistent.WithAttempts(3))
	_ = consistent.Handle(p, "in", sameKey[string], func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
		price, err := consistent.Capture(c, "price", func() (int, error) {
			switch taken.Add(1); m {
			case "terminal":
				return 0, consistent.Terminal(errors.New("never"))
			default:
				return 0, errors.New("no price today")
			}
		})
		if m != "without" {
			return s, nil, err
		}
		again, errAgain := consistent.Capture(c, "price", func() (int, error) { return 7, nil })
		var failed *consistent.CaptureError
		if !errors.As(err, &failed) || failed.Text != "no price today" || again != price || errAgain.Error() != err.Error() {
			return s, nil, consistent.Terminal(fmt.Errorf("captured %d, %v, then %d, %v", price, err, again, errAgain))
		}
		return s + 1, []consistent.Message{consistent.JSON("out", err.Error())}, nil
	})
	run(t, p)
	b.Publish(consistenttest.Event("1", consistent.JSON("in", "without")))
	settle(t, b)
	wantDeadLetters(t, b)
	if out := b.Published("out"); len(out) != 1 || string(out[0].Payload) != `"capture \"price\": no price today"` || taken.Load() != 1 {
		t.Errorf("published %v, taken %d times", out, taken.Load())
	}
	b.Publish(consistenttest.Event("2", consistent.JSON("in", "terminal")))
	settle(t, b)
	wantDeadLetters(t, b, `capture "price": never`)
	if n := taken.Load(); n != 2 {
		t.Errorf("after a terminal error, taken %d times, want 2", n)
	}
	b.Publish(consistenttest.Event("3", consistent.JSON("in", "returned")))
	settle(t, b)
	if n := taken.Load(); n != 2+3 {
		t.Errorf("of a handler that returns the error, taken %d times in all, want 5", n)
	}
}

// A duplicate that waits behind another message of its key takes nothing from outside.
func TestNoCaptureForADuplicate(t *testing.T) {
	t.Parallel()
	for path, opts := range map[string][]consistent.Option{"state-based": {consistent.Replay()}, "transactions": nil} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			b := consistenttest.NewBroker()
			c := &memory{Conn: b.Connect("p")}
			confirmed := make(chan struct{}, 10)
			if path == "state-based" {
				c.done = func(_ consistent.DoneRequest, carryOut func() (bool, error)) (bool, error) {
					defer func() { confirmed <- struct{}{} }()
					return carryOut()
				}
			}
			m := &counts{}
			var taken atomic.Int64
			begun, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			p := transactional(t, c, "shop", append(opts, quickly, consistent.WithMetrics(m))...)
			_ = consistent.Handle(p, "in", sameKey[string], func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
				if m == "slow" {
					once.Do(func() { close(begun) })
					<-goOn
				}
				_, _ = consistent.Capture(c, "price", func() (int64, error) { return taken.Add(1), nil }) // an error does not stop it
				return s + 1, nil, nil
			})
			run(t, p)
			first := consistenttest.Event("1", consistent.JSON("in", "first"))
			b.Publish(first)
			m.reach(t, consistent.CountProcessed, 1)
			if path == "state-based" {
				<-confirmed
			}
			b.Publish(consistenttest.Event("2", consistent.JSON("in", "slow")))
			<-begun
			b.Publish(first, consistenttest.Event("3", consistent.JSON("in", "third")))
			close(goOn)
			settle(t, b)
			wantDeadLetters(t, b)
			wantState(t, b, "shop/k", "3")
			if n := taken.Load(); n != 3 {
				t.Errorf("three messages and a duplicate have captured %d times", n)
			}
		})
	}
}
