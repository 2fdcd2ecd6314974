package main

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// program builds the example once.
var program = sync.OnceValue(func() string {
	return testserver.Build("github.com/holdfast-mqtt/holdfast/examples/orders")
})

// send publishes a message of a test.
func send(test *consistenttest.Test, id, topic string, v any) {
	test.Send(consistenttest.Event(id, consistent.JSON(topic, v)))
}

// newShop has a price of 100, and then of 200, and so on: each question to the market gets
// another one.
func newShop(t *testing.T) *consistenttest.Test {
	t.Helper()
	price := 0
	s := saga{func(string) (int, error) { price += 100; return price, nil }, time.Minute}
	test := consistenttest.New(t, "orders", s.register)
	send(test, "fill", "stock/tea/fill", Fill{"tea", 10})
	send(test, "deposit", "accounts/ann/deposit", Deposit{"ann", 1000})
	return test
}

func wantOrder(t *testing.T, test *consistenttest.Test, id string, want Status) Order {
	t.Helper()
	var o Order
	test.State("order", id, &o)
	if o.Status != want {
		t.Errorf("order %s is %s, want %s", id, o.Status, want)
	}
	return o
}

func wantBooks(t *testing.T, test *consistenttest.Test, stock Stock, cents int) {
	t.Helper()
	var s Stock
	var a Account
	test.State("stock", "tea", &s)
	test.State("account", "ann", &a)
	if s != stock || a.Cents != cents {
		t.Errorf("stock %+v and %d cents, want %+v and %d", s, a.Cents, stock, cents)
	}
	if got := test.DeadLetters(); len(got) > 0 {
		t.Errorf("dead letters %q", got)
	}
}

func TestOrderIsShipped(t *testing.T) {
	t.Parallel()
	test := newShop(t)
	send(test, "1", "orders/a/place", Place{"a", "ann", "tea", 2})
	wantOrder(t, test, "a", Offered)
	wantBooks(t, test, Stock{Free: 8, Reserved: 2}, 1000)
	send(test, "2", "orders/a/confirm", Confirm{"a"})
	send(test, "3", "orders/a/confirm", Confirm{"a"}) // the customer is in a hurry
	if got := test.Broker.Timers(); len(got) > 0 {
		t.Errorf("timers %v wait when the order is paid", got)
	}
	if o := wantOrder(t, test, "a", Done); o.Cents != 200 {
		t.Errorf("the price is %d, want 200", o.Cents)
	}
	wantBooks(t, test, Stock{Free: 8, Sold: 2}, 800)
	test.Broker.Advance(endedFor + time.Millisecond)
	if _, found := test.Broker.State("order/a"); found {
		t.Error("the order is still there a day after its end")
	}
}

func TestOrdersThatAreCancelled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		quantity int
		then     func(test *consistenttest.Test)
		why      string
	}{
		"sold out":      {11, func(*consistenttest.Test) {}, "sold out"},
		"not confirmed": {2, deadlineIsOver, "deadline"},
		"too little":    {10, func(test *consistenttest.Test) { send(test, "2", "orders/a/confirm", Confirm{"a"}) }, "account"},
		"confirmed late": {2, func(test *consistenttest.Test) {
			deadlineIsOver(test)
			send(test, "3", "orders/a/confirm", Confirm{"a"})
		}, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := newShop(t)
			send(test, "0", "accounts/ann/deposit", Deposit{"ann", -1}) // 999 cents are left
			send(test, "1", "orders/a/place", Place{"a", "ann", "tea", c.quantity})
			c.then(test)
			wantOrder(t, test, "a", Ended)
			wantBooks(t, test, Stock{Free: 10}, 999)
			if got := test.Published("orders/a/cancelled"); len(got) != 1 || !strings.Contains(string(got[0].Payload), c.why) {
				t.Errorf("cancelled by %v, want %q", got, c.why)
			}
			if got := test.Broker.Timers(); len(got) > 0 {
				t.Errorf("timers %v wait", got)
			}
		})
	}
}

// deadlineIsOver moves the time behind the deadline of the shop, so that its timer is due.
func deadlineIsOver(test *consistenttest.Test) {
	test.Broker.Advance(time.Minute)
	test.Send()
}

// The deadline is over before the stock has answered: what it reserves then is released.
func TestDeadlineBeforeTheStockAnswers(t *testing.T) {
	t.Parallel()
	test := newShop(t)
	send(test, "0", "orders/a/expire", Expire{"a"}) // there is no such order
	if _, found := test.Broker.State("order/a"); found {
		t.Error("there is an order")
	}
	test.Broker.Publish(
		consistenttest.Event("1", consistent.JSON("orders/a/place", Place{"a", "ann", "tea", 2})),
		consistenttest.Event("2", consistent.JSON("orders/a/expire", Expire{"a"})))
	test.Send()
	wantOrder(t, test, "a", Ended)
	wantBooks(t, test, Stock{Free: 10}, 1000)
}

// The program crashes when it has asked the market, and another instance finishes: the price is
// the first one, although the market has another one by then.
func TestPriceIsCaptured(t *testing.T) {
	t.Parallel()
	test := newShop(t)
	test.Instance().CrashAtCommit()
	test.Broker.Publish(consistenttest.Event("1", consistent.JSON("orders/a/place", Place{"a", "ann", "tea", 2})))
	<-test.Instance().Ended()
	test.Start("processor", saga{func(string) (int, error) { return 999, nil }, time.Minute}.register)
	test.Send()
	if o := wantOrder(t, test, "a", Offered); o.Cents != 200 {
		t.Errorf("the price is %d, want 200", o.Cents)
	}
}

var ready = regexp.MustCompile("takes orders")

// Instances and the server are killed and started again while orders are placed; in the end the
// books are right.
func TestBooksThroughKills(t *testing.T) {
	t.Parallel()
	server := testserver.Run(t, "--listen", testserver.FreeAddress())
	start := func(name string) *process.Process {
		p, err := process.Start(exec.Command(program(), "serve", "-address", server.Addr, "-name", name, "-deadline", "1s"), ready)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Kill() })
		return p
	}
	first, second := start("1"), start("2")
	for _, p := range []*process.Process{first, second} {
		if err := p.AwaitReady(); err != nil {
			t.Fatalf("%v\n%s", err, p.Output())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const orders = 300
	var out bytes.Buffer
	placed := make(chan error, 1)
	go func() { placed <- place(ctx, server.Addr, orders, &out) }()
	kills := 0
	tick := time.NewTicker(150 * time.Millisecond) // kills fall into the work; the outcome does not depend on when
	defer tick.Stop()
	for {
		select {
		case err := <-placed:
			t.Logf("%d kills; %s", kills, &out)
			if err != nil {
				t.Errorf("%v\nfirst instance:\n%s\nsecond:\n%s", err, first.Output(), second.Output())
			}
			return
		case <-tick.C:
		}
		if kills >= 9 {
			continue
		}
		switch kills++; kills % 3 {
		case 0:
			server.Restart()
		case 1:
			first.Kill()
			first = start("1")
		case 2:
			second.Kill()
			second = start("2")
		}
	}
}

func TestMistakesAreExplained(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"what to do?":            {},
		`"dance" is no command`:  {"dance"},
		"is the server running?": {"serve", "-address", "127.0.0.1:1"},
		"(is the server running": {"place", "-address", "127.0.0.1:1"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// The README's commands do what it shows.
func TestSessionOfTheREADME(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	p, err := process.Start(exec.Command(program(), "serve", "-address", addr, "-deadline", "1s"), ready)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	if err := p.AwaitReady(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program(), "place", "-address", addr).CombinedOutput()
	shown := regexp.MustCompile(`^\d+ orders shipped, \d+ cancelled, 0 open; \d+ cents paid, \d+ left; \d+ pieces sold, \d+ free\nthe books are right\n$`)
	if err != nil || !shown.Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
	if !p.Running() {
		t.Error(p.Output())
	}
}
