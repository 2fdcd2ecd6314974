package consistent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// counts are the metrics of a processor.
type counts struct {
	mu sync.Mutex
	of map[consistent.Counter]int // under mu
}

func (c *counts) Count(_, _ string, which consistent.Counter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[consistent.Counter]int)
	}
	c.of[which]++
}

func (c *counts) Observe(_, _ string, _ consistent.Step, _ time.Duration) {}

func (c *counts) get(which consistent.Counter) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[which]
}

// reach waits until a counter has a value.
func (c *counts) reach(t *testing.T, which consistent.Counter, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); c.get(which) < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v is %d, never %d", which, c.get(which), n)
		}
	}
}

// atOnce is a processor that books deposits by transactions.
func atOnce(t testing.TB, c consistent.Conn, opts ...consistent.Option) *consistent.Processor {
	t.Helper()
	p := transactional(t, c, "bank", append([]consistent.Option{quickly}, opts...)...)
	_ = consistent.Handle(p, "deposits/+", accountOf, book)
	return p
}

// paths are the example on both paths.
var paths = map[string]func(testing.TB, consistent.Conn, ...consistent.Option) *consistent.Processor{"state-based": bank, "transactions": atOnce}

// The first message of a key takes a LOAD and a transaction, each other one a transaction, which
// acknowledges it, too: after the end of the connection nothing comes again.
func TestOneRequestForEachMessage(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr, client.WithClientID("instance"))}
	stop := run(t, atOnce(t, c))
	o := observe(t, addr, "balances/+")
	for i := range 20 {
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
		if m := o.next(t); string(m.Payload) != fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1) {
			t.Errorf("balance %s after %d deposits", m.Payload, i+1)
		}
	}
	stop()
	if c.counted("load") != 1 || c.counted("txn") != 20 || c.counted("store") != 0 || c.counted("publish") != 0 || c.counted("done") != 0 {
		t.Errorf("requests: %v", c.counts)
	}
	_ = c.Close()
	again := dial(t, addr, client.WithClientID("instance"))
	m := &counts{}
	run(t, atOnce(t, again, consistent.WithMetrics(m)))
	o.publish(t, message("last", deposit{"ann", 1}))
	o.next(t)
	m.reach(t, consistent.CountProcessed, 1)
	if m.get(consistent.CountProcessed) != 1 || m.get(consistent.CountConfirmed) != 0 {
		t.Errorf("after the end of the connection: %v", m.of)
	}
}

// Duplicates produce nothing, whatever the handler returns for them; a message with the ID of
// another one is a dead letter.
func TestDuplicatesOfATransaction(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	m := &counts{}
	p := transactional(t, dial(t, addr), "bank", quickly, consistent.WithMetrics(m))
	var runs atomic.Int64
	_ = consistent.Handle(p, "deposits/+", accountOf, func(_ *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		s.Deposits++
		return s, []consistent.Message{consistent.JSON("out", runs.Add(1))}, nil // not deterministic
	})
	run(t, p)
	o := observe(t, addr, "out", "dead-letters/bank")
	first := message("1", deposit{"ann", 1})
	o.publish(t, first)
	if got := o.next(t); got.Topic != "out" {
		t.Errorf("got %+v", got)
	}
	m.reach(t, consistent.CountProcessed, 1) // or the next ones would be taken for the same delivery
	o.publish(t, first, first)
	m.reach(t, consistent.CountConfirmed, 1)
	o.publish(t, message("1", deposit{"ann", 2}))
	got := o.next(t)
	if code, _ := got.UserProperties.Get(consistent.DeadLetterCode); got.Topic != "dead-letters/bank" || code != "identity-reused" {
		t.Errorf("got %+v", got)
	}
	o.publish(t, message("2", deposit{"ann", 1}))
	if got := o.next(t); got.Topic != "out" {
		t.Errorf("got %+v", got)
	}
}

// Two instances get every message and write the same key: each takes effect once, and a conflict
// brings the state with it.
func TestConflictBringsTheState(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	m := &counts{}
	run(t, atOnce(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 1}))
	o.next(t)
	m.reach(t, consistent.CountProcessed, 1)
	if _, err := c.Client().Set(t.Context(), "bank/ann", []byte(`{"Balance":100}`)); err != nil {
		t.Fatal(err)
	}
	o.publish(t, message("2", deposit{"ann", 1}))
	if got := o.next(t); string(got.Payload) != `{"Account":"ann","Balance":101}` {
		t.Errorf("got %s", got.Payload)
	}
	if _, err := c.Client().Del(t.Context(), "bank/ann"); err != nil {
		t.Fatal(err)
	}
	o.publish(t, message("3", deposit{"ann", 1}))
	if got := o.next(t); string(got.Payload) != `{"Account":"ann","Balance":1}` {
		t.Errorf("got %s", got.Payload)
	}
	m.reach(t, consistent.CountProcessed, 3)
	if c.counted("load") != 1 || m.get(consistent.CountConflict) != 2 || m.get(consistent.CountLoaded) != 1 {
		t.Errorf("%d loads, %v", c.counted("load"), m.of)
	}
	run(t, atOnce(t, dial(t, addr)))
	for i := range 50 {
		o.publish(t, message(fmt.Sprint("both", i), deposit{"ann", 1}))
	}
	for i := range 50 {
		if got := o.next(t); string(got.Payload) != fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+2) {
			t.Fatalf("output %d is %s", i, got.Payload)
		}
	}
}

// A message that the state-based path has stored, and whose outputs it could not publish, gets
// them out when the program that comes next uses transactions; and the other way round, a message
// that was processed by a transaction is confirmed.
func TestChangeOfThePath(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	before := &conn{Connection: dial(t, addr, client.WithClientID("instance"))}
	tried := make(chan struct{}, 1000)
	before.publish = func([]consistent.Message, func() error) error { tried <- struct{}{}; return errInjected }
	stop := run(t, bank(t, before))
	o := observe(t, addr, "balances/+")
	one := message("1", deposit{"ann", 1})
	o.publish(t, one)
	<-tried
	stop()
	_ = before.Close()

	m := &counts{}
	stop = run(t, atOnce(t, dial(t, addr, client.WithClientID("instance")), consistent.WithMetrics(m)))
	if got := o.next(t); string(got.Payload) != `{"Account":"ann","Balance":1}` {
		t.Errorf("got %s", got.Payload)
	}
	o.publish(t, message("2", deposit{"ann", 1}))
	if got := o.next(t); string(got.Payload) != `{"Account":"ann","Balance":2}` {
		t.Errorf("got %s", got.Payload)
	}
	m.reach(t, consistent.CountProcessed, 1)
	if m.get(consistent.CountReplayed) != 1 || m.get(consistent.CountProcessed) != 1 {
		t.Errorf("%v", m.of)
	}
	o.publish(t, one)
	m.reach(t, consistent.CountConfirmed, 1)
	stop()

	back := &counts{}
	run(t, bank(t, dial(t, addr), consistent.WithMetrics(back)))
	o.publish(t, message("2", deposit{"ann", 1}))
	back.reach(t, consistent.CountConfirmed, 1)
	o.publish(t, message("3", deposit{"ann", 1}))
	if got := o.next(t); string(got.Payload) != `{"Account":"ann","Balance":3}` {
		t.Errorf("got %s", got.Payload)
	}
}

// Messages that wait for one key share transactions. One that fails, one that panics, one that
// comes twice and one with an ID that another has do not disturb the others.
func TestMessagesOfAKeyShareATransaction(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	m := &counts{}
	p := transactional(t, c, "sum", quickly, consistent.WithMetrics(m), consistent.WithAttempts(2))
	begun, goOn := make(chan struct{}), make(chan struct{})
	_ = consistent.Handle(p, "in", sameKey[int], func(_ *consistent.Context, s, n int) (int, []consistent.Message, error) {
		switch n {
		case 0:
			close(begun)
			<-goOn
		case 50:
			return s, nil, errors.New("no")
		case 60:
			panic("at the disco")
		}
		return s + n, []consistent.Message{consistent.JSON("out", s+n)}, nil
	})
	run(t, p)
	o := observe(t, addr, "out", "dead-letters/sum")
	send := func(id string, n int) consistent.Message {
		e := consistent.JSON("in", n)
		e.UserProperties = client.UserProperties{{Name: "source", Value: "test"}, {Name: "id", Value: id}}
		return e
	}
	o.publish(t, send("first", 0))
	<-begun
	const messages = 200
	sum := 0
	for i := 1; i <= messages; i++ {
		e := send(fmt.Sprint(i), i)
		o.publish(t, e)
		switch i {
		case 50, 60:
			continue
		case 70:
			o.publish(t, e)
		case 80:
			o.publish(t, send("80", 1000))
		}
		sum += i
	}
	close(goOn)
	letters, last, outputs := map[string]int{}, "", 0
	for outputs < messages-1 || len(letters) < 3 {
		got := o.next(t)
		if got.Topic == "out" {
			last = string(got.Payload)
			outputs++
			continue
		}
		code, _ := got.UserProperties.Get(consistent.DeadLetterCode)
		letters[code]++
	}
	if last != fmt.Sprint(sum) || letters["attempts"] != 1 || letters["panic"] != 1 || letters["identity-reused"] != 1 {
		t.Errorf("the sum is %s, want %d; dead letters %v", last, sum, letters)
	}
	if n := c.counted("txn"); n > messages/2 {
		t.Errorf("%d transactions for %d messages", n, messages)
	}
	m.reach(t, consistent.CountProcessed, messages-1)
}

// A server that allows few operations in a transaction: messages share smaller ones.
func TestFewOperationsInATransaction(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.MaxTxnOperations = 5 }).Addr
	c := &conn{Connection: dial(t, addr)}
	begun, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	p := transactional(t, c, "bank", quickly)
	_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		first.Do(func() { close(begun); <-goOn })
		return book(c, s, d)
	})
	run(t, p)
	o := observe(t, addr, "balances/+", "dead-letters/bank")
	const messages = 150
	for i := range messages {
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
	}
	<-begun
	close(goOn)
	for i := range messages {
		if got := o.next(t); string(got.Payload) != fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1) {
			t.Fatalf("output %d is %s", i, got.Payload)
		}
	}
}

// What refuses an output refuses all of the message: a full queue until it has room, and an
// output that is never taken makes it a dead letter, with the state as it was.
func TestRefusedOutputs(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Limits = broker.Limits{MaxQueued: 20} }).Addr
	slow, err := client.DialSession(t.Context(), addr, client.WithClientID("slow"), client.WithQueueFull(client.QueueFullReject))
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Subscribe(t.Context(), "balances/full"); err != nil {
		t.Fatal(err)
	}
	_ = slow.Close()
	c := dial(t, addr)
	m := &counts{}
	p := transactional(t, c, "bank", quickly, consistent.WithMetrics(m))
	_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		s, outputs, err := book(c, s, d)
		switch d.Account {
		case "reserved":
			outputs = append(outputs, consistent.Message{Topic: "$SYS/broker/version"})
		case "many":
			outputs = make([]consistent.Message, 200)
			for i := range outputs {
				outputs[i].Topic = "many"
			}
		}
		return s, outputs, err
	})
	run(t, p)
	o := observe(t, addr, "dead-letters/bank", "balances/bob")
	for i := range 30 {
		o.publish(t, message(fmt.Sprint("full", i), deposit{"full", 1}))
		m.reach(t, consistent.CountProcessed, min(i+1, 20)) // so that the processor's own queue does not become full
	}
	m.reach(t, consistent.CountRetry, 1)
	o.publish(t, message("b", deposit{"bob", 1}))
	o.next(t) // others go on
	for _, account := range []string{"reserved", "many"} {
		o.publish(t, message(account, deposit{account, 1}))
		got := o.next(t)
		reason, _ := got.UserProperties.Get(consistent.DeadLetterReason)
		if got.Topic != "dead-letters/bank" || !strings.Contains(reason, "PUBLISH") {
			t.Errorf("%s: %s: %s", account, got.Topic, reason)
		}
		if s, _ := state(t, c, "bank/"+account); s != "" {
			t.Errorf("%s: the state is %s", account, s)
		}
	}
	if slow, err = client.DialSession(t.Context(), addr, client.WithClientID("slow"), client.WithQueueFull(client.QueueFullReject)); err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n := 0
	for d, err := range slow.Messages(ctx) {
		if err != nil {
			t.Fatalf("after %d: %v", n, err)
		}
		d.Ack()
		if n++; n == 30 {
			if string(d.Payload) != `{"Account":"full","Balance":30}` {
				t.Errorf("the last is %s", d.Payload)
			}
			break
		}
	}
}

// On the state-based path, an output that the server never takes makes its message a dead letter as
// well: it would be refused again each time.
func TestOutputThatAReplayCannotPublish(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	topics := map[string]string{
		"store":    "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", // a message there is a request, and has a Response Topic
		"reserved": "$SYS/broker/version",
	}
	p := transactional(t, dial(t, addr), "bank", quickly, consistent.Replay())
	_ = consistent.Handle(p, "deposits/+", accountOf, func(_ *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		return s, []consistent.Message{{Topic: topics[d.Account]}}, nil
	})
	run(t, p)
	o := observe(t, addr, "dead-letters/bank")
	for account, topic := range topics {
		o.publish(t, message(account, deposit{account, 1}))
		got := o.next(t)
		if reason, _ := got.UserProperties.Get(consistent.DeadLetterReason); !strings.Contains(reason, topic) {
			t.Errorf("%s: %s", topic, reason)
		}
	}
}

// More keys than have room are loaded again.
func TestStatesAtHandHaveABound(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	m := &counts{}
	run(t, atOnce(t, dial(t, addr), consistent.WithMetrics(m), consistent.WithStatesAtHand(1000)))
	o := observe(t, addr, "balances/+")
	id := 0
	round := func(accounts int) {
		for a := range accounts {
			id++
			o.publish(t, message(fmt.Sprint(id), deposit{fmt.Sprint(a), 1}))
			o.next(t)
		}
	}
	round(4)
	round(4)
	m.reach(t, consistent.CountProcessed, 8)
	if m.get(consistent.CountLoaded) != 4 || m.get(consistent.CountEvicted) != 0 {
		t.Errorf("four keys have room: %v", m.of)
	}
	round(5)
	m.reach(t, consistent.CountProcessed, 13)
	if m.get(consistent.CountEvicted) == 0 {
		t.Errorf("five have not: %v", m.of)
	}
	round(5)
	m.reach(t, consistent.CountProcessed, 18)
	if m.get(consistent.CountLoaded) < 9 {
		t.Errorf("five have not: %v", m.of)
	}
}

// The connection is lost while the handler has a message: it comes again, and is found done.
func TestSettledAfterAReconnect(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	line := &cable{address: addr, again: make(chan struct{}, 1000)}
	begun, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	m := &counts{}
	c := dial(t, addr, client.WithDialer(line.dial), client.WithClientID("instance"))
	p := transactional(t, c, "bank", quickly, consistent.WithMetrics(m))
	_ = consistent.Handle(p, "deposits/+", accountOf, func(c *consistent.Context, s account, d deposit) (account, []consistent.Message, error) {
		first.Do(func() { close(begun); <-goOn })
		return book(c, s, d)
	})
	run(t, p)
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 1}))
	<-begun
	for len(line.again) > 0 {
		<-line.again
	}
	line.cut()
	<-line.again
	<-line.again
	close(goOn)
	for i := range 3 {
		if got := o.next(t); string(got.Payload) != fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1) {
			t.Errorf("got %s", got.Payload)
		}
		o.publish(t, message(fmt.Sprint("then", i), deposit{"ann", 1}))
	}
	o.next(t)
	m.reach(t, consistent.CountProcessed, 4)
}

// A transaction whose answer is lost was carried out, or not; it takes effect once.
func TestAnswerOfATransactionLost(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	c.txn = func(_ consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		switch n := c.counted("txn"); {
		case n%3 == 1:
			return consistent.TxnResult{}, errInjected
		case n%3 == 2:
			_, _ = carryOut()
			return consistent.TxnResult{}, errInjected
		}
		return carryOut()
	}
	run(t, atOnce(t, c))
	o := observe(t, addr, "balances/+")
	for i := range 30 {
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
	}
	for i := range 30 {
		if got := o.next(t); string(got.Payload) != fmt.Sprintf(`{"Account":"ann","Balance":%d}`, i+1) {
			t.Fatalf("output %d is %s", i, got.Payload)
		}
	}
}

func TestServerWithoutTransactions(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &lacking{dial(t, addr)}
	p := atOnce(t, c)
	if err := p.Run(t.Context()); !errors.Is(err, consistent.ErrUnsupported) || !errors.Is(err, client.ErrUnknownCommand) {
		t.Errorf("Run: %v", err)
	}
	run(t, bank(t, c)) // it has the option Replay
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 1}))
	o.next(t)
}

// lacking is a connection to a server that has no TXN.
type lacking struct{ *consistent.Connection }

func (l *lacking) Transact(context.Context, consistent.TxnRequest) (consistent.TxnResult, error) {
	return consistent.TxnResult{}, &client.Error{Op: "txn", Err: client.ErrUnknownCommand}
}

// A server that remembers for a shorter time than is needed is found out, also when it was
// started again.
func TestTransactionsKeepTooShort(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.MaxRemember, c.Remember = time.Hour, time.Hour }).Addr
	if err := atOnce(t, dial(t, addr), consistent.WithKeep(2*time.Hour)).Run(t.Context()); !errors.Is(err, consistent.ErrKeepTooShort) {
		t.Errorf("Run: %v", err)
	}
	addr = testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	c.txn = func(_ consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		r, err := carryOut()
		r.Keep = time.Minute
		return r, err
	}
	p := atOnce(t, c)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context()) }()
	<-p.Subscribed()
	o := observe(t, addr)
	o.publish(t, message("1", deposit{"ann", 1}))
	if err := <-ended; !errors.Is(err, consistent.ErrKeepTooShort) {
		t.Errorf("Run: %v", err)
	}
}
