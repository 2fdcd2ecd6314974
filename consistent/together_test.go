package consistent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// On the state-based path, messages of one key that wait share a STORE.

// inLine is how many messages wait behind the first one.
const inLine = 10

// fence is the account of a message that comes when all others wait.
const fence = "fence"

// line is a connection whose first output waits until all other messages have come.
type line struct {
	*conn
	addr           string
	begun, waiting chan struct{}                                       // closed when the first output waits, and when it need not any more
	fault          func(ms []consistent.Message) error                 // instead of publishing; nil: none
	before         func(r *consistent.TxnRequest)                      // before a STORE of several messages; nil: nothing
	special        map[string]consistent.HandlerFunc[account, deposit] // of messages with these IDs

	mu     sync.Mutex
	now    time.Time // under mu: by the processor's clock, which only handlers move
	stores []int     // under mu: how many messages each STORE of several had that was carried out
	dones  []int     // under mu: likewise, DONEs of several
}

func newLine(t *testing.T, opts ...client.Option) *line {
	addr := testserver.Start(t).Addr
	l := &line{conn: &conn{Connection: dial(t, addr, opts...)}, addr: addr, begun: make(chan struct{}), waiting: make(chan struct{}), now: time.Now(), special: make(map[string]consistent.HandlerFunc[account, deposit])}
	l.several = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		all := requests(r)
		i := slices.IndexFunc(all, func(r consistent.TxnRequest) bool { return len(r.Messages) > 1 })
		if i >= 0 && l.before != nil {
			l.before(&all[i])
		}
		result, err := carryOut()
		l.mu.Lock()
		defer l.mu.Unlock()
		if i >= 0 && err == nil && result.Outcome == txn.Committed {
			l.stores = append(l.stores, len(all[i].Messages))
		}
		for _, r := range all {
			if len(r.Done) > 1 && err == nil && result.Outcome == txn.Committed {
				l.dones = append(l.dones, len(r.Done))
			}
		}
		return result, err
	}
	var first sync.Once
	l.publish = func(ms []consistent.Message, carryOut func() error) error {
		first.Do(func() { close(l.begun) })
		<-l.waiting
		if l.fault != nil {
			if err := l.fault(ms); err != nil {
				return err
			}
		}
		return carryOut()
	}
	return l
}

// clock is the processor's: a machine that is busy has no message out of a STORE.
func (l *line) clock() consistent.Option {
	return consistent.WithNow(func() time.Time {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.now
	})
}

// takes has a handler take some time.
func (l *line) takes(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = l.now.Add(d)
}

// start runs a processor, and has messages wait in line: the first one, and what is given.
func (l *line) start(t *testing.T, behind []string, opts ...consistent.Option) (o *observer, stop func()) {
	t.Helper()
	o = observe(t, l.addr, "balances/+", "dead-letters/bank")
	p := newProcessor(t, l, "bank", append([]consistent.Option{quickly, consistent.WithAttempts(2), l.clock()}, opts...)...)
	_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		if d.Account == fence {
			close(l.waiting)
			return s, nil, nil
		}
		if special := l.special[strings.TrimPrefix(c.MessageID(), "event:4:test")]; special != nil {
			return special(c, s, d)
		}
		return book(c, s, d)
	})
	stop = run(t, p)
	o.publish(t, message("0", deposit{"ann", 1}))
	<-l.begun
	for _, id := range behind {
		o.publish(t, message(id, deposit{"ann", 1}))
	}
	o.publish(t, message(fence, deposit{fence, 1}))
	return o, stop
}

func ids() (all []string) {
	for i := range inLine {
		all = append(all, fmt.Sprint(i+1))
	}
	return all
}

// expectInOrder demands that the outputs of deposits of 1 are first published in their order, and
// that all are confirmed; and how many messages each STORE of several has had.
func (l *line) expectInOrder(t *testing.T, o *observer, c *consistent.Connection, stores ...int) {
	t.Helper()
	seen := make(map[string]bool)
	for i := range inLine + 1 {
		got := string(o.next(t).Payload)
		for seen[got] { // without its DONE it is published again
			got = string(o.next(t).Payload)
		}
		seen[got] = true
		if want := fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1); got != want {
			t.Errorf("output %d is %s", i+1, got)
		}
	}
	l.expectConfirmed(t, c)
	if s, _ := state(t, c, "bank/ann"); s != fmt.Sprintf(`{"Balance":%d,"Deposits":%[1]d}`, inLine+1) {
		t.Errorf("the state is %s", s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.stores, stores) {
		t.Errorf("STOREs with %v messages, want %v", l.stores, stores)
	}
}

func (l *line) expectConfirmed(t *testing.T, c *consistent.Connection) {
	t.Helper()
	for _, id := range append(ids(), "0") {
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			r, err := c.Load(t.Context(), "bank/ann", "event:4:test"+id)
			if err == nil && r.Status == client.Confirmed {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("message %s: %+v, %v", id, r, err)
			}
		}
	}
}

// expectDones demands how many messages each request for several DONEs has had.
func (l *line) expectDones(t *testing.T, dones ...int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.dones, dones) {
		t.Errorf("DONEs of %v messages, want %v", l.dones, dones)
	}
}

func TestMessagesInLineShareAStore(t *testing.T) {
	t.Parallel()
	l, m := newLine(t), &counts{}
	o, _ := l.start(t, ids(), consistent.WithMetrics(m))
	l.expectInOrder(t, o, l.Connection, inLine)
	m.reach(t, consistent.CountProcessed, inLine+2) // and the fence
	l.expectDones(t, inLine)
	if m.get(consistent.CountReplayed)+m.get(consistent.CountRetry)+m.get(consistent.CountConflict) > 0 {
		t.Errorf("counted %v", m.of)
	}
}

// The output of one message cannot be published: those behind it wait, and each of them is replayed
// on the state that it was processed on.
func TestOutputsInLineKeepTheirOrder(t *testing.T) {
	t.Parallel()
	l, m := newLine(t), &counts{}
	var failed once
	l.fault = func(ms []consistent.Message) error {
		if strings.HasSuffix(string(ms[0].Payload), `:6}`) && failed.first() {
			return errInjected
		}
		return nil
	}
	o, _ := l.start(t, ids(), consistent.WithMetrics(m))
	l.expectInOrder(t, o, l.Connection, inLine)
	m.reach(t, consistent.CountReplayed, inLine-4)
	l.expectDones(t, 4) // of those before it
	if m.get(consistent.CountNonDeterministic) > 0 {
		t.Errorf("counted %v", m.of)
	}
}

// The process ends between the STORE of messages in line and their outputs. The next one publishes
// them, in their order.
func TestKilledBehindAStoreOfMessagesInLine(t *testing.T) {
	t.Parallel()
	name := client.WithClientID("instance")
	l := newLine(t, name)
	killed, gone := make(chan struct{}), make(chan struct{})
	l.fault = func(ms []consistent.Message) error {
		if strings.HasSuffix(string(ms[0].Payload), `:6}`) {
			close(killed)
			<-gone
			return errInjected
		}
		return nil
	}
	o, stop := l.start(t, ids())
	<-killed
	_ = l.Close()
	close(gone)
	stop()
	next := dial(t, l.addr, name)
	run(t, bank(t, next))
	l.expectInOrder(t, o, next, inLine)
}

// Another instance changes the state before the STORE: the messages are handled again, on that.
func TestConflictOfMessagesInLine(t *testing.T) {
	t.Parallel()
	l, m := newLine(t), &counts{}
	var changed once
	l.before = func(r *consistent.TxnRequest) {
		if changed.first() {
			if _, err := l.Client().Set(t.Context(), r.Key, []byte(`{"Balance":1001,"Deposits":1}`)); err != nil {
				t.Error(err)
			}
		}
	}
	o, _ := l.start(t, ids(), consistent.WithMetrics(m))
	o.next(t)
	for i := range inLine {
		if got, want := string(o.next(t).Payload), fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1002); got != want {
			t.Errorf("output %d is %s", i+2, got)
		}
	}
	l.expectConfirmed(t, l.Connection)
	if m.get(consistent.CountConflict) != 1 || m.get(consistent.CountRetry) != 0 {
		t.Errorf("counted %v", m.of)
	}
}

// A message comes again and waits among new ones. It has no effect, and they have theirs.
func TestDuplicateInLine(t *testing.T) {
	t.Parallel()
	l, m := newLine(t), &counts{}
	o, _ := l.start(t, append(append(ids()[:5:5], "0"), ids()[5:]...), consistent.WithMetrics(m))
	for i := range inLine + 1 {
		if got, want := string(o.next(t).Payload), fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1); got != want {
			t.Errorf("output %d is %s", i+1, got)
		}
	}
	l.expectConfirmed(t, l.Connection)
	m.reach(t, consistent.CountProcessed, inLine+2)
}

// A message in line that cannot share a STORE, or fails, is processed alone, in its order.
func TestOneOfMessagesInLineIsAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handle consistent.HandlerFunc[account, deposit]
		stores []int
	}{
		"it takes a value from outside": {func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
			if _, err := consistent.Capture(c, "price", func() (int, error) { return 1, nil }); err != nil {
				return s, nil, err
			}
			return book(c, s, d)
		}, []int{4}},
		"it sets a timer": {func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
			s, out, err := book(c, s, d)
			return s, append(out, consistent.After(time.Hour, consistent.Message{Topic: "later"})), err
		}, []int{4}},
		"it fails at first": {func() consistent.HandlerFunc[account, deposit] {
			var failed once
			return func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
				if failed.first() {
					return s, nil, errInjected
				}
				return book(c, s, d)
			}
		}(), []int{4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			l.special["5"] = c.handle
			o, _ := l.start(t, ids())
			l.expectInOrder(t, o, l.Connection, c.stores...)
		})
	}
}

// A message in line ends the state: those behind it begin a new one.
func TestDeletionInLine(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.special["5"] = func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		c.Delete()
		return book(c, s, d)
	}
	o, _ := l.start(t, ids())
	for i := range inLine + 1 {
		if got, want := string(o.next(t).Payload), fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i%6+1); got != want {
			t.Errorf("output %d is %s, want %s", i+1, got, want)
		}
	}
	l.expectConfirmed(t, l.Connection)
}

// A server that lacks OPEN and DONE gets the messages one by one.
func TestMessagesInLineAtAnOlderServer(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.several = func(consistent.TxnRequest, func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		return consistent.TxnResult{Because: 1}, &txn.OperationError{Operation: "OPEN", Number: 3, Err: client.ErrUnknownOperation}
	}
	o, _ := l.start(t, ids())
	l.expectInOrder(t, o, l.Connection)
	if n := l.counted("store"); n != inLine+2 {
		t.Errorf("%d STOREs", n)
	}
}

// Handlers that take long do not have the outputs of other messages wait.
func TestSlowHandlersInLine(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	for _, id := range ids() {
		l.special[id] = func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
			l.takes(15 * time.Millisecond)
			return book(c, s, d)
		}
	}
	o, _ := l.start(t, ids())
	l.expectInOrder(t, o, l.Connection)
}

// What shares a STORE has at most 64 KiB of states and captured values, about, as the server keeps
// a state with each message.
func TestLargeStatesInLine(t *testing.T) {
	t.Parallel()
	for size, want := range map[int][]int{
		1 << 10:  {inLine},
		10 << 10: {3, 3, 3},
		40 << 10: nil,
	} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			p := newProcessor(t, l, "bank", l.clock())
			_ = consistent.Handle(p, "deposits/+", accountOf, func(_ *consistent.Context, s []byte, d deposit) ([]byte, []consistent.Message, error) {
				if d.Account == fence {
					close(l.waiting)
					return nil, nil, nil
				}
				s = append(slices.Grow(s[:0], size), s...)[:size]
				s[0]++
				return s, []consistent.Message{{Topic: "balances/ann", Payload: slices.Clone(s[:1])}}, nil
			}, consistent.WithStateCodec(consistent.BytesCodec{}))
			run(t, p)
			o := observe(t, l.addr, "balances/+")
			o.publish(t, message("0", deposit{"ann", 1}))
			<-l.begun
			for _, id := range ids() {
				o.publish(t, message(id, deposit{"ann", 1}))
			}
			o.publish(t, message(fence, deposit{fence, 1}))
			for i := range inLine + 1 {
				if got := o.next(t).Payload; got[0] != byte(i+1) {
					t.Errorf("output %d is %d", i+1, got)
				}
			}
			l.expectConfirmed(t, l.Connection)
			l.mu.Lock()
			defer l.mu.Unlock()
			if !slices.Equal(l.stores, want) {
				t.Errorf("STOREs with %v messages, want %v", l.stores, want)
			}
		})
	}
}

// Requests fail, lose their replies, reach the server twice and are late. The outputs of each key
// are first published in the order of the messages, and every time with the same identity.
func TestMessagesInLineThroughFaults(t *testing.T) {
	t.Parallel()
	const keys, each = 3, 100
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	var together once
	c.several = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		if slices.ContainsFunc(requests(r), func(r consistent.TxnRequest) bool { return len(r.Messages) > 1 }) {
			together.first()
		}
		return carryOut()
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	faults := consistenttest.Faults{FailBefore: 0.05, LoseReply: 0.05, RepeatStore: 0.05, DelayStore: 0.2, Delay: 5 * time.Millisecond}
	m := &counts{}
	run(t, bank(t, consistenttest.WithFaults(c, seed, faults), consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+", "dead-letters/bank")
	var all []consistent.Message
	for i := range each {
		for k := range keys {
			all = append(all, message(fmt.Sprintf("%d-%d", i, k), deposit{fmt.Sprint("account-", k), 1}))
		}
	}
	o.publish(t, all...)
	published := make(map[string]string) // payload → its identity
	next := make(map[string]int)         // topic → balance
	for len(published) < keys*each {
		got := o.next(t)
		payload := string(got.Payload)
		id, _ := got.UserProperties.Get("id")
		if before, again := published[payload]; again {
			if before != id {
				t.Fatalf("%s has the identity %s, and had %s", payload, id, before)
			}
			continue
		}
		published[payload] = id
		next[got.Topic]++
		if want := fmt.Sprintf(`{"Account":%q,"Balance":%d}`, strings.TrimPrefix(got.Topic, "balances/"), next[got.Topic]); payload != want {
			t.Fatalf("%s is first published as %s, want %s", got.Topic, payload, want)
		}
	}
	if !together.happened() || m.get(consistent.CountNonDeterministic) > 0 {
		t.Errorf("messages shared a STORE: %v; counted %v", together.happened(), m.of)
	}
}
