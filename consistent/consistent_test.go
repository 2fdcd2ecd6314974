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
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

func TestStateAndOutputs(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := dial(t, addr)
	o := observe(t, addr, "balances/+")
	run(t, bank(t, c, consistent.WithSource("/bank")))

	o.publish(t, message("1", deposit{"ann", 10}), message("2", deposit{"ann", 5}))
	first, second := o.next(t), o.next(t)

	if string(first.Payload) != `{"Account":"ann","Balance":10}` || string(second.Payload) != `{"Account":"ann","Balance":15}` {
		t.Errorf("outputs %s, %s", first.Payload, second.Payload)
	}
	if s, _ := state(t, c, "bank/ann"); s != `{"Balance":15,"Deposits":2}` {
		t.Errorf("state %s", s)
	}
	for name, want := range map[string]string{"specversion": "1.0", "source": "/bank", "type": "bank"} {
		if got, _ := first.UserProperties.Get(name); got != want {
			t.Errorf("CloudEvents %s is %q, want %q", name, got, want)
		}
	}
	id1, _ := first.UserProperties.Get("id")
	id2, _ := second.UserProperties.Get("id")
	if when, _ := first.UserProperties.Get("time"); id1 == "" || id1 == id2 || when == "" {
		t.Errorf("ids %q and %q, time %q", id1, id2, when)
	}
}

// A duplicate right behind the first, at the same time, and long after.
func TestDuplicatesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := dial(t, addr)
	o := observe(t, addr, "balances/+")
	run(t, bank(t, c))

	m := message("1", deposit{"ann", 10})
	o.publish(t, m, m, m)
	o.publish(t, message("2", deposit{"ann", 1}))
	o.publish(t, m)
	o.publish(t, message("3", deposit{"ann", 1}))
	published := make(map[string]string) // what was published for an id
	for {
		out := o.next(t)
		id, _ := out.UserProperties.Get("id")
		if before, seen := published[id]; seen && before != fmt.Sprint(out) {
			t.Errorf("published for one message:\n%s\n%s", before, fmt.Sprint(out))
		}
		published[id] = fmt.Sprint(out)
		if strings.Contains(string(out.Payload), `"Balance":12`) {
			break
		}
	}
	if s, _ := state(t, c, "bank/ann"); s != `{"Balance":12,"Deposits":3}` || len(published) != 3 {
		t.Errorf("state %s, %d different outputs", s, len(published))
	}
}

// A crash between store and publish; then other messages; then the message comes again
// ("alternative worlds"): what is published is what would have been then.
func TestCrashBetweenStoreAndPublish(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	id := client.WithClientID("instance")
	dying := &conn{Connection: dial(t, addr, id)}
	stored := make(chan struct{})
	dying.publish = func([]consistent.Message, func() error) error {
		close(stored)
		select {} // never comes to that
	}
	p := bank(t, dying, consistent.WithDrainTimeout(time.Millisecond))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = p.Run(ctx) }()
	<-p.Subscribed()
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 10}))
	<-stored
	cancel()
	_ = dying.Close()

	other := dial(t, addr)
	request := consistent.StoreRequest{Key: "bank/ann", State: []byte(`{"Balance":1000}`), MessageID: "meanwhile", Keep: time.Hour}
	_, request.Version = state(t, other, "bank/ann")
	if _, err := other.Store(t.Context(), request); err != nil {
		t.Fatal(err)
	}

	run(t, bank(t, dial(t, addr, id)))
	if m := o.next(t); string(m.Payload) != `{"Account":"ann","Balance":10}` {
		t.Errorf("published %s", m.Payload)
	}
	if s, _ := state(t, other, "bank/ann"); s != `{"Balance":1000}` {
		t.Errorf("state %s", s)
	}
}

// The message is acknowledged when its outputs are; not before, and not if it failed.
func TestAcknowledgedAfterTheOutputs(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	id := client.WithClientID("instance")
	failing := &conn{Connection: dial(t, addr, id)}
	tried := make(chan struct{})
	var once sync.Once
	failing.publish = func([]consistent.Message, func() error) error {
		once.Do(func() { close(tried) })
		return errInjected
	}
	stop := run(t, bank(t, failing))
	o := observe(t, addr, "balances/+")
	o.publish(t, message("1", deposit{"ann", 10}))
	<-tried
	stop()
	_ = failing.Close()

	run(t, bank(t, dial(t, addr, id)))
	if m := o.next(t); string(m.Payload) != `{"Account":"ann","Balance":10}` {
		t.Errorf("published %s", m.Payload)
	}
}

// Answers to STORE are lost, with and without its effect; every request fails now and
// then; in the end each message has taken effect once.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	var loads, publishes atomic.Int64
	c.load = func() error {
		if loads.Add(1)%3 == 0 {
			return errInjected
		}
		return nil
	}
	c.store = func(_ consistent.StoreRequest, carryOut func() (client.StoreResult, error)) (client.StoreResult, error) {
		switch c.counted("store") % 3 {
		case 0:
			return client.StoreResult{}, errInjected
		case 1:
			_, _ = carryOut()
			return client.StoreResult{}, errInjected
		}
		_, _ = carryOut()
		return carryOut() // the request was duplicated
	}
	c.publish = func(_ []consistent.Message, carryOut func() error) error {
		if err := carryOut(); err != nil || publishes.Add(1)%2 == 0 {
			return errInjected
		}
		return nil
	}
	run(t, bank(t, c))
	o := observe(t, addr, "balances/+")
	for i := range 50 {
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
	}
	published := make(map[string]string)
	for len(published) < 50 {
		m := o.next(t)
		id, _ := m.UserProperties.Get("id")
		if before, seen := published[id]; seen && before != fmt.Sprint(m) {
			t.Errorf("published for one message:\n%s\n%s", before, fmt.Sprint(m))
		}
		published[id] = fmt.Sprint(m)
	}
	if s, _ := state(t, c.Connection, "bank/ann"); s != `{"Balance":50,"Deposits":50}` {
		t.Errorf("state %s", s)
	}
}

// Two instances that both get every message, on the same keys.
func TestInstancesOnTheSameKeys(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := dial(t, addr)
	run(t, bank(t, c))
	run(t, bank(t, dial(t, addr)))
	o := observe(t, addr, "balances/+")
	want := 0
	for i := range 200 {
		want += i
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", i}))
	}
	for last := ""; last != fmt.Sprintf(`{"Account":"ann","Balance":%d}`, want); {
		last = string(o.next(t).Payload)
	}
	if s, _ := state(t, c, "bank/ann"); s != fmt.Sprintf(`{"Balance":%d,"Deposits":200}`, want) {
		t.Errorf("state %s", s)
	}
}

// Two instances in a group share the messages; one goes away, the other goes on.
func TestSharedSubscription(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	a, b := &conn{Connection: dial(t, addr)}, &conn{Connection: dial(t, addr)}
	stop := run(t, bank(t, a, consistent.WithShare("tellers")))
	run(t, bank(t, b, consistent.WithShare("tellers")))
	o := observe(t, addr, "balances/+")
	for i := range 100 {
		o.publish(t, message(fmt.Sprint(i), deposit{fmt.Sprint(i % 10), 1}))
		o.next(t)
	}
	if a.counted("store") == 0 || b.counted("store") == 0 || a.counted("store")+b.counted("store") != 100 {
		t.Errorf("one instance processed %d, the other %d", a.counted("store"), b.counted("store"))
	}
	stop()
	_ = a.Close()
	for i := range 20 {
		o.publish(t, message(fmt.Sprint("then", i), deposit{"ann", 1}))
		o.next(t)
	}
}

// What comes from outside is taken once, and a replay gets the same.
func TestReplayGetsWhatTheFirstRunGot(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	c.publish = func(_ []consistent.Message, carryOut func() error) error {
		if err := carryOut(); err != nil || c.counted("publish") < 4 {
			return errInjected
		}
		return nil
	}
	var taken, runs atomic.Int64
	p := newProcessor(t, c, "lottery", quickly)
	_ = consistent.HandleByMessage(p, "draw", func(m *consistent.Message) string { return m.Topic }, func(c *consistent.Context, s int, _ struct{}) (int, []consistent.Message, error) {
		runs.Add(1)
		price, err := consistent.Capture(c, "price", func() (float64, error) { return float64(taken.Add(1)) / 3, nil })
		again, _ := consistent.Capture(c, "price", func() (float64, error) { return -1, nil })
		if err != nil || price != again {
			return s, nil, fmt.Errorf("captured %v, then %v (%w)", price, again, err)
		}
		text := fmt.Sprintln(c.ID(), c.ID(), c.Rand().Uint64(), c.Rand().IntN(6), c.Now(), price, c.Version(), c.Key())
		return s + 1, []consistent.Message{{Topic: "drawn", Payload: []byte(text)}, {Topic: "drawn", Payload: []byte("second " + text)}}, nil
	}, consistent.WithVersion(3))
	run(t, p)
	o := observe(t, addr, "drawn")
	o.publish(t, consistent.Message{Topic: "draw", Payload: []byte("{}"), ResponseTopic: "replies", CorrelationData: []byte("1")})
	var first [2]string
	var text string
	for n := range 8 {
		m := o.next(t)
		switch {
		case n < 2:
			first[n], text = fmt.Sprint(m), string(m.Payload)
		case fmt.Sprint(m) != first[n%2]:
			t.Errorf("published first\n%s\nthen\n%s", first[n%2], fmt.Sprint(m))
		}
	}
	if taken.Load() != 1 || runs.Load() != 4 || !strings.HasSuffix(text, " 3 draw\n") {
		t.Errorf("captured %d times in %d runs: %s", taken.Load(), runs.Load(), text)
	}
}

// Handlers that are not deterministic, caught in the act: nothing more is published.
func TestNonDeterministicHandlers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handle func(run int64, c *consistent.Context) (int, []consistent.Message, error)
		want   string
	}{
		"other payload": {func(run int64, _ *consistent.Context) (int, []consistent.Message, error) {
			return 0, []consistent.Message{{Topic: "out"}, {Topic: "out", Payload: fmt.Append(nil, run)}}, nil
		}, "output 2 of 2 has another payload (1 bytes"},
		"other topic": {func(run int64, _ *consistent.Context) (int, []consistent.Message, error) {
			return 0, []consistent.Message{{Topic: fmt.Sprint("out/", run)}}, nil
		}, "output 1 of 1 has another topic"},
		"other properties": {func(run int64, _ *consistent.Context) (int, []consistent.Message, error) {
			return 0, []consistent.Message{{Topic: "out", ContentType: fmt.Sprint(run)}}, nil
		}, "output 1 of 1 has other properties"},
		"other number": {func(run int64, _ *consistent.Context) (int, []consistent.Message, error) {
			return 0, []consistent.Message{{Topic: "out"}, {Topic: "out"}}[:min(run, 2)], nil
		}, "it returned 2 outputs; the first time, 1"},
		"captures more": {func(run int64, c *consistent.Context) (int, []consistent.Message, error) {
			if run > 1 {
				_, _ = consistent.Capture(c, "more", func() (int, error) { return 1, nil })
			}
			return 0, []consistent.Message{{Topic: "out"}}, nil
		}, `it captured "more", which it did not the first time`},
		"panics": {func(run int64, _ *consistent.Context) (int, []consistent.Message, error) {
			if run > 1 {
				panic("at the disco")
			}
			return 0, []consistent.Message{{Topic: "out"}}, nil
		}, "it failed (the handler panicked: at the disco)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testserver.Start(t).Addr
			c := &conn{Connection: dial(t, addr)}
			c.publish = func(ms []consistent.Message, carryOut func() error) error {
				if c.counted("publish") == 1 {
					return errInjected // so that the message is replayed
				}
				return carryOut()
			}
			var runs atomic.Int64
			p := newProcessor(t, c, "h", quickly)
			_ = consistent.Handle(p, "in", sameKey[int], func(c *consistent.Context, _ int, _ int) (int, []consistent.Message, error) {
				return test.handle(runs.Add(1), c)
			})
			run(t, p)
			o := observe(t, addr, "out/#", "dead-letters/h")
			o.publish(t, consistent.Message{Topic: "in", Payload: []byte("1"), ResponseTopic: "replies", CorrelationData: []byte("1")})
			m := o.next(t)
			reason, _ := m.UserProperties.Get(consistent.DeadLetterReason)
			if m.Topic != "dead-letters/h" || !strings.Contains(reason, test.want) || !strings.Contains(reason, "not deterministic") {
				t.Errorf("%s: %s", m.Topic, reason)
			}
		})
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Limits = broker.Limits{MaxPacketSize: 20_000} }).Addr
	c := dial(t, addr)
	if _, err := c.Client().Set(t.Context(), "bank/broken", []byte("not JSON")); err != nil {
		t.Fatal(err)
	}
	withID := func(payload string, more ...consistent.UserProperty) consistent.Message {
		return consistent.Message{Topic: "deposits/x", Payload: []byte(payload), ResponseTopic: "replies", CorrelationData: []byte(payload), UserProperties: more}
	}
	behaviour := func(c *consistent.Context, s string, d deposit) (string, []consistent.Message, error) {
		switch d.Account {
		case "fails":
			return "", nil, errors.New("out of luck")
		case "terminal":
			return "", nil, consistent.Terminal(errors.New("never again"))
		case "panics":
			panic("aargh")
		case "wildcard":
			return "", []consistent.Message{{Topic: "a/+"}}, nil
		case "NUL":
			return "", []consistent.Message{{Topic: "a", ContentType: "\x00"}}, nil
		case "no JSON":
			return "", []consistent.Message{consistent.JSON("a", make(chan int))}, nil
		case "large output":
			return "", []consistent.Message{{Topic: "a", Payload: make([]byte, 30_000)}}, nil
		case "large state":
			return strings.Repeat("x", 30_000), nil, nil
		case "large capture":
			_, _ = consistent.Capture(c, "much", func() (string, error) { return strings.Repeat("x", 30_000), nil })
			return "", nil, nil
		}
		return s + "|", []consistent.Message{{Topic: "done/" + d.Account}}, nil
	}
	account := func(name string) string { return fmt.Sprintf(`{"Account":%q}`, name) }
	var calls atomic.Int64
	p := newProcessor(t, c, "bank", consistent.WithKeep(time.Hour), consistent.WithDeadLetterTopic("dead"), consistent.WithAttempts(3), quickly,
		consistent.WithMiddleware(func(next consistent.Process) consistent.Process {
			return func(ctx context.Context, in *consistent.Incoming) error {
				if in.Key == "fails" {
					calls.Add(1)
				}
				return next(ctx, in)
			}
		}))
	if err := consistent.Handle(p, "deposits/+", accountOf, behaviour); err != nil {
		t.Fatal(err)
	}
	run(t, p)
	o := observe(t, addr, "dead", "done/#", "a")
	for reason, m := range map[string]consistent.Message{
		consistent.ErrNoIdentity.Error():       {Topic: "deposits/x", Payload: []byte(account("ann"))},
		consistent.ErrNoKey.Error():            withID(account("")),
		consistent.ErrUndecodable.Error():      withID("]"),
		consistent.ErrStateUndecodable.Error(): withID(account("broken")),
		consistent.ErrTooOld.Error():           withID(account("ann"), consistent.UserProperty{Name: "time", Value: "2020-01-01T00:00:00Z"}),
		"out of luck":                          withID(account("fails")),
		"never again":                          withID(account("terminal")),
		"panicked: aargh":                      withID(account("panics")),
		"without wildcards":                    withID(account("wildcard")),
		"content type":                         withID(account("NUL")),
		"unsupported type":                     withID(account("no JSON")),
		"output 1 of 1":                        withID(account("large output")),
		`state and captured values of key "large state": larger`:   withID(account("large state")),
		`state and captured values of key "large capture": larger`: withID(account("large capture")),
	} {
		m.ContentType = "kept"
		o.publish(t, m)
		letter := o.next(t)
		got, _ := letter.UserProperties.Get(consistent.DeadLetterReason)
		from, _ := letter.UserProperties.Get(consistent.DeadLetterSourceTopic)
		by, _ := letter.UserProperties.Get(consistent.DeadLetterHandler)
		if letter.Topic != "dead" || !strings.Contains(got, reason) {
			t.Errorf("want a dead letter because %q\ngot %s because %q", reason, letter.Topic, got)
		}
		if from != m.Topic || by != "bank" || letter.ContentType != "kept" || string(letter.Payload) != string(m.Payload) || string(letter.CorrelationData) != string(m.CorrelationData) {
			t.Errorf("%s: not as it was: %v", reason, letter)
		}
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("a handler that fails was called %d times, want 3", n)
	}
	// None of them stands in the way of the others, nor has it left a state.
	o.publish(t, withID(account("fine")))
	if m := o.next(t); m.Topic != "done/fine" {
		t.Errorf("then came %v", m)
	}
	for _, key := range []string{"wildcard", "large output", "panics"} {
		if s, version := state(t, c, "bank/"+key); !version.IsZero() {
			t.Errorf("%s has left a state: %q", key, s)
		}
	}
}

// A dead letter that with its reason is larger than the server takes comes without its
// payload, rather than never.
func TestDeadLetterTooLarge(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t, func(c *server.Config) { c.Limits = broker.Limits{MaxPacketSize: 5000} }).Addr
	run(t, bank(t, dial(t, addr)))
	o := observe(t, addr, "dead-letters/bank")
	o.publish(t, consistent.Message{Topic: "deposits/x", Payload: make([]byte, 4900), ResponseTopic: "replies", CorrelationData: []byte("1")})
	m := o.next(t)
	if n, _ := m.UserProperties.Get(consistent.DeadLetterOmitted); len(m.Payload) != 0 || n != "4900" {
		t.Errorf("%d bytes of payload, %q omitted", len(m.Payload), n)
	}
}

func TestErrorsAreTriedAgain(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	var calls atomic.Int64
	p := newProcessor(t, dial(t, addr), "h", quickly)
	_ = consistent.Handle(p, "in", sameKey[int], func(_ *consistent.Context, s int, m int) (int, []consistent.Message, error) {
		if calls.Add(1) < 4 {
			return 0, nil, errors.New("not yet")
		}
		return s + m, []consistent.Message{consistent.JSON("out", s+m)}, nil
	}, consistent.WithMessageID(func(m *consistent.Message) string { return string(m.Payload) }))
	run(t, p)
	o := observe(t, addr, "out", "dead-letters/h")
	o.publish(t, consistent.Message{Topic: "in", Payload: []byte("7")})
	if m := o.next(t); string(m.Payload) != "7" || m.Topic != "out" {
		t.Errorf("%s %s", m.Topic, m.Payload)
	}
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	c := dial(t, testserver.Start(t).Addr)
	ints := func(_ *consistent.Context, s int, _ int) (int, []consistent.Message, error) { return s, nil, nil }
	for name, test := range map[string]struct {
		filter string
		option consistent.HandlerOption
		want   string
	}{
		"slash in the name":             {"a", consistent.WithName("a/b"), `WithName("a/b"): it begins the keys`},
		"no filter":                     {"a/#/b", nil, "not a topic filter: it must be"},
		"shared by hand":                {"$share/g/a", nil, "the group with WithShare"},
		"codec of another type":         {"a", consistent.WithStateCodec(consistent.JSONCodec[string]{}), "the handler's state is a int"},
		"message codec of another type": {"a", consistent.WithMessageCodec(consistent.JSONCodec[string]{}), "the handler's message is a int"},
		"dead letters to the input":     {"a/+", consistent.WithDeadLetterTopic("a/b"), "dead letters would be processed"},
		"no dead-letter topic":          {"b", consistent.WithDeadLetterTopic("a/+"), `WithDeadLetterTopic("a/+"): it must be the name of a topic`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProcessor(t, c, "n")
			var opts []consistent.HandlerOption
			if test.option != nil {
				opts = append(opts, test.option)
			}
			registered := consistent.Handle(p, test.filter, sameKey[int], ints, opts...)
			for _, err := range []error{registered, p.Run(t.Context())} {
				if !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v; want %q", err, test.want)
				}
			}
		})
	}
	t.Run("no functions", func(t *testing.T) {
		t.Parallel()
		p := newProcessor(t, c, "n")
		for _, err := range []error{
			consistent.Handle(p, "a", nil, ints),
			consistent.HandleByMessage(p, "a", nil, ints),
			consistent.Handle[int](p, "a", sameKey[int], nil),
		} {
			if !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), "is nil") {
				t.Error(err)
			}
		}
	})
	t.Run("no handler", func(t *testing.T) {
		t.Parallel()
		if err := newProcessor(t, c, "n").Run(t.Context()); err == nil {
			t.Error("Run has nothing to do and says nothing")
		}
	})
	t.Run("two of a name", func(t *testing.T) {
		t.Parallel()
		p := newProcessor(t, c, "n")
		if err := consistent.Handle(p, "a/+", sameKey[int], ints); err != nil {
			t.Fatal(err)
		}
		if err := consistent.Handle(p, "b/+", sameKey[int], ints); err != nil {
			t.Errorf("other messages to the same state: %v", err)
		}
		if err := consistent.Handle(p, "+/x", sameKey[int], ints); err == nil || !strings.Contains(err.Error(), "WithName") {
			t.Errorf("the same messages: %v", err)
		}
		other := func(_ *consistent.Context, s string, _ int) (string, []consistent.Message, error) { return s, nil, nil }
		if err := consistent.Handle(p, "c", sameKey[int], other); err == nil || !strings.Contains(err.Error(), "WithName") {
			t.Errorf("another state: %v", err)
		}
		if err := consistent.Handle(p, "d", sameKey[int], ints, consistent.WithName("other"), consistent.WithDeadLetterTopic("a/b")); err == nil {
			t.Error("its dead letters are the first one's input")
		}
	})
}

// Each option says what is wrong with its value, and what would be right.
func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	conn := consistenttest.NewBroker().Connect("n")
	for _, test := range []struct {
		name   string
		option consistent.Option
		want   string
	}{
		{"", consistent.WithDeadLetterTopic("d"), `processor name "": it begins the keys of the store, so it must be`},
		{"a/b", consistent.WithDeadLetterTopic("d"), `processor name "a/b"`},
		{"n", consistent.WithShare("a/b"), `WithShare("a/b"): a group has no '/'`},
		{"n", consistent.WithConcurrency(0), "WithConcurrency(0): it must be at least 1"},
		{"n", consistent.WithKeep(-1), "WithKeep(-1ns): it must be positive"},
		{"n", consistent.WithAttempts(0), "WithAttempts(0): it must be at least 1"},
		{"n", consistent.WithBackoff(0, time.Second), "WithBackoff(0s, 1s): the first must be positive"},
		{"n", consistent.WithBackoff(time.Hour, time.Second), "the second no smaller"},
		{"n", consistent.WithDeadLetterTopic("a/+"), `WithDeadLetterTopic("a/+"): it must be the name of a topic`},
		{"n", consistent.WithTimeout(0), "WithTimeout(0s): it must be positive"},
		{"n", consistent.WithDrainTimeout(-1), "WithDrainTimeout(-1ns): it must not be negative"},
		{"n", consistent.WithMiddleware(nil), "WithMiddleware: one of them is nil"},
		{"n", consistent.WithLogger(nil), "WithLogger(nil): leave the option out"},
		{"n", consistent.WithMetrics(nil), "WithMetrics(nil): leave the option out"},
		{"n", consistent.WithNow(nil), "WithNow(nil): leave the option out"},
	} {
		p, err := consistent.New(conn, test.name, test.option)
		if p != nil || !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v; want %q", err, test.want)
		}
	}
}

// Two handlers want the same messages: each processes them once.
func TestTwoHandlersOfOneTopic(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := dial(t, addr)
	p := bank(t, c)
	_ = consistent.Handle(p, "deposits/#", func(deposit) string { return "all" }, func(_ *consistent.Context, s int, _ deposit) (int, []consistent.Message, error) {
		return s + 1, []consistent.Message{consistent.JSON("counted", s+1)}, nil
	}, consistent.WithName("counter"))
	run(t, p)
	o := observe(t, addr, "balances/+", "counted")
	o.publish(t, message("1", deposit{"ann", 10}), message("2", deposit{"ann", 10}))
	for range 4 {
		o.next(t)
	}
	s, _ := state(t, c, "bank/ann")
	n, _ := state(t, c, "counter/all")
	if s != `{"Balance":20,"Deposits":2}` || n != "2" {
		t.Errorf("states %s and %s", s, n)
	}
}

// Stopping lets a message end that is being processed, and drops what waits.
func TestDrain(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	id := client.WithClientID("instance")
	c := dial(t, addr, id)
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	p := newProcessor(t, c, "h")
	_ = consistent.Handle(p, "in", sameKey[int], func(_ *consistent.Context, s int, m int) (int, []consistent.Message, error) {
		begun <- struct{}{}
		<-goOn
		return s + 1, []consistent.Message{consistent.JSON("out", m)}, nil
	})
	stop := run(t, p)
	o := observe(t, addr, "out")
	number := func(n int) consistent.Message {
		m := consistent.JSON("in", n)
		m.ResponseTopic, m.CorrelationData = "replies", fmt.Append(nil, n)
		return m
	}
	o.publish(t, number(1), number(2))
	<-begun
	go func() { close(goOn) }()
	stop()
	if m := o.next(t); string(m.Payload) != "1" {
		t.Errorf("published %s", m.Payload)
	}
	_ = c.Close()

	next := newProcessor(t, dial(t, addr, id), "h")
	_ = consistent.Handle(next, "in", sameKey[int], func(_ *consistent.Context, s int, m int) (int, []consistent.Message, error) {
		return s + 1, []consistent.Message{consistent.JSON("out", m)}, nil
	})
	run(t, next)
	for string(o.next(t).Payload) != "2" {
	}
	if s, _ := state(t, dial(t, addr), "h/k"); s != "2" {
		t.Errorf("state %s", s)
	}
}

func TestServerWithoutTheCommands(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr), load: func() error { return client.ErrUnknownCommand }}
	p := bank(t, c)
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context()) }()
	<-p.Subscribed()
	observe(t, addr).publish(t, message("1", deposit{"ann", 1}))
	select {
	case err := <-done:
		if !errors.Is(err, consistent.ErrUnsupported) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		t.Error("Run goes on")
	}
}

// Before the outputs are published, a message costs two round trips to the store at
// the most.
func TestRoundTripsPerMessage(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	stop := run(t, bank(t, c))
	o := observe(t, addr, "balances/+")
	for i := range 100 {
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
		o.next(t)
	}
	stop()
	for name, most := range map[string]int{"load": 100, "store": 100, "publish": 100, "done": 100} {
		if got := c.counted(name); got > most {
			t.Errorf("%s was called %d times for 100 messages", name, got)
		}
	}
}

// A message that has waited behind another one starts from what that one has left, and
// costs one; also if the other one's publishing failed and was repeated.
func TestRoundTripsOfMessagesInLine(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	allSent := make(chan struct{})
	c.publish = func(_ []consistent.Message, carryOut func() error) error {
		<-allSent
		if c.counted("publish") == 1 {
			return errInjected
		}
		return carryOut()
	}
	stop := run(t, bank(t, c))
	o := observe(t, addr, "balances/+")
	for i := range 100 {
		o.publish(t, message(fmt.Sprint(i), deposit{"ann", 1}))
	}
	o.publish(t, message("0", deposit{"bob", 1})) // comes after the others
	for deadline := time.Now().Add(patience); c.counted("load") < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the last message does not come")
		}
	}
	close(allSent)
	for range 101 {
		o.next(t)
	}
	stop()
	if s, _ := state(t, c.Connection, "bank/ann"); s != `{"Balance":100,"Deposits":100}` {
		t.Errorf("state %s", s)
	}
	// The first one's LOAD, the one after its failure, bob's; and a few.
	if loads, stores := c.counted("load"), c.counted("store"); loads > 60 || stores != 101 {
		t.Errorf("%d LOADs and %d STOREs", loads, stores)
	}
}

func TestMetricsAndMiddleware(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	counted := &metrics{counts: make(map[string]int)}
	var order []string
	around := func(name string) consistent.Middleware {
		return func(next consistent.Process) consistent.Process {
			return func(ctx context.Context, in *consistent.Incoming) error {
				order = append(order, name+" "+in.Handler+" "+in.Key+" "+in.MessageID)
				return next(ctx, in)
			}
		}
	}
	o := observe(t, addr, "balances/+", "dead-letters/bank")
	for n := range 2 { // a second processor of the same name counts on
		order = nil
		c := dial(t, addr)
		stop := run(t, bank(t, c, consistent.WithMetrics(counted), consistent.WithMiddleware(around("outer"), around("inner"))))
		o.publish(t, message(fmt.Sprint(n), deposit{"ann", 1}))
		o.next(t)
		o.publish(t, consistent.Message{Topic: "deposits/x", Payload: []byte("]")})
		o.next(t)
		stop()
		_ = c.Close()
		if len(order) != 2 || !strings.HasPrefix(order[0], "outer bank ann event:4:test") || !strings.HasPrefix(order[1], "inner bank ann ") {
			t.Errorf("order %q", order)
		}
	}
	counted.mu.Lock()
	defer counted.mu.Unlock()
	for what, want := range map[string]int{"bank/bank processed": 2, "bank/bank dead letter": 2, "bank/bank load": 2, "bank/bank handle": 2, "bank/bank store": 2, "bank/bank publish": 4} {
		if got := counted.counts[what]; got != want {
			t.Errorf("%s: %d, want %d; all: %v", what, got, want, counted.counts)
		}
	}
}

// metrics counts what is counted, and how often a step was measured.
type metrics struct {
	mu     sync.Mutex
	counts map[string]int // under mu
}

func (m *metrics) Count(processor, handler string, c consistent.Counter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[fmt.Sprintf("%s/%s %v", processor, handler, c)]++
}

func (m *metrics) Observe(processor, handler string, s consistent.Step, _ time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[fmt.Sprintf("%s/%s %v", processor, handler, s)]++
}
