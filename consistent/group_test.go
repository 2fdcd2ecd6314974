package consistent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/broker"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// Messages of different keys share transactions (package commit). In the tests of this file,
// messages of these accounts come at once, round by round, until a transaction has had several of
// them, with that of one account among them to which something happens.
const (
	accounts = 20
	odd      = "acc-3" // the account that is not like the others
)

func accountNo(i int) string { return fmt.Sprint("acc-", i) }

// requests are those for the keys of a transaction.
func requests(r consistent.TxnRequest) []consistent.TxnRequest {
	return append([]consistent.TxnRequest{r}, r.Also...)
}

// isFor tells whether a request is for an account.
func isFor(account string) func(consistent.TxnRequest) bool {
	return func(r consistent.TxnRequest) bool { return r.Key == "bank/"+account }
}

// rounds publishes deposits, one for each account in a round, until happened returns true. It
// returns how many rounds there were.
func rounds(t *testing.T, o *observer, happened func() bool) (n int) {
	t.Helper()
	for ; !happened(); n++ {
		if n == 500 {
			t.Fatal("no transaction had several of the keys")
		}
		var batch []consistent.Message
		for i := range accounts {
			batch = append(batch, message(fmt.Sprintf("%d-%d", n, i), deposit{accountNo(i), 1}))
		}
		o.publish(t, batch...)
		for range accounts {
			o.next(t)
		}
	}
	return n
}

// once tells one time that it is so.
type once struct {
	mu  sync.Mutex
	was bool // under mu
}

func (o *once) first() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := !o.was
	o.was = true
	return first
}

func (o *once) happened() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.was
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// expectBalances demands that each account has had so many deposits, and more of the odd one.
func expectBalances(t *testing.T, c *consistent.Connection, n, more int) {
	t.Helper()
	for i := range accounts {
		want := fmt.Sprintf(`{"Balance":%d,"Deposits":%d}`, n, n)
		if accountNo(i) == odd {
			want = fmt.Sprintf(`{"Balance":%d,"Deposits":%d}`, n+more, n)
		}
		if s, _ := state(t, c, "bank/"+accountNo(i)); s != want {
			t.Errorf("%s: %s, want %s", accountNo(i), s, want)
		}
	}
}

// changeOdd adds 1000 to the balance of odd, whose state has the version that is wanted, as another
// instance would between a message's look at the state and its change.
func changeOdd(t *testing.T, other *consistent.Connection, want hlc.Timestamp) {
	t.Helper()
	var s account
	text, version := state(t, other, "bank/"+odd)
	if _, err := fmt.Sscanf(text, `{"Balance":%d,"Deposits":%d}`, &s.Balance, &s.Deposits); err != nil || version != want {
		t.Errorf("state %q of version %v, want %v: %v", text, version, want, err)
	}
	if _, err := other.Client().Set(t.Context(), "bank/"+odd, fmt.Appendf(nil, `{"Balance":%d,"Deposits":%d}`, s.Balance+1000, s.Deposits)); err != nil {
		t.Error(err)
	}
}

// Another instance changes the state of one key while messages of many are committed: that one
// is handled again, on the new state, and the others as if nothing had been.
func TestConflictOfOneKeyAmongMany(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	other := dial(t, addr)
	c := &conn{Connection: dial(t, addr)}
	var conflict once
	c.txn = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		of := requests(r)
		i := slices.IndexFunc(of, isFor(odd))
		if len(r.Also) == 0 || i < 0 || of[i].Version.IsZero() || !conflict.first() {
			return carryOut()
		}
		changeOdd(t, other, of[i].Version)
		result, err := carryOut()
		if err != nil || result.Outcome != txn.ConditionFailed || result.Because != i+1 {
			t.Errorf("%+v, %v; want a conflict of request %d", result, err, i+1)
		}
		return result, err
	}
	m := &counts{}
	run(t, atOnce(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+")
	n := rounds(t, o, conflict.happened)
	expectBalances(t, other, n, 1000)
	m.reach(t, consistent.CountProcessed, n*accounts)
	if m.get(consistent.CountConflict) != 1 || m.get(consistent.CountProcessed) != n*accounts || m.get(consistent.CountRetry) != 0 {
		t.Errorf("after %d rounds: %v", n, m.of)
	}
}

// Another instance has processed one of many messages: it is a duplicate, and the others are
// committed.
func TestOneOfManyIsDoneAlready(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	other := dial(t, addr)
	c := &conn{Connection: dial(t, addr)}
	var done once
	c.txn = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		of := requests(r)
		i := slices.IndexFunc(of, isFor(odd))
		if len(r.Also) == 0 || i < 0 || !done.first() {
			return carryOut()
		}
		alone := of[i]
		alone.Settle, alone.Also = nil, nil
		if result, err := other.Transact(t.Context(), alone); err != nil || result.Outcome != txn.Committed {
			t.Errorf("by the other instance: %+v, %v", result, err)
		}
		result, err := carryOut()
		if err != nil || result.Outcome != txn.AlreadyDone || result.Because != i+1 {
			t.Errorf("%+v, %v; want request %d done already", result, err, i+1)
		}
		return result, err
	}
	m := &counts{}
	run(t, atOnce(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+")
	n := rounds(t, o, done.happened)
	m.reach(t, consistent.CountConfirmed, 1)
	expectBalances(t, other, n, 0)
	if m.get(consistent.CountConfirmed) != 1 || m.get(consistent.CountRetry) != 0 || len(o.received) > 0 {
		t.Errorf("after %d rounds: %v, and %d more outputs", n, m.of, len(o.received))
	}
}

// The client may not publish the output of one of many messages: that one is a dead letter.
func TestOneOutputOfManyIsNotAllowed(t *testing.T) {
	t.Parallel()
	var allowed []string
	for i := range accounts {
		if accountNo(i) != odd {
			allowed = append(allowed, "balances/"+accountNo(i))
		}
	}
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(rules, fmt.Appendf(nil, `rules:
- brokerResources:
  - method: Connect
  - {method: Publish, topics: ["%s", "deposits/#", "dead-letters/#", "%s"]}
  - {method: Subscribe, topics: ["#"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["*"]}
`, protocol.InvokeTopic, strings.Join(allowed, `", "`)), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := testserver.Start(t, func(c *server.Config) { c.Policy = rules }).Addr
	c := &conn{Connection: dial(t, addr)}
	var refused once
	c.txn = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		result, err := carryOut()
		if i := slices.IndexFunc(requests(r), isFor(odd)); i >= 0 {
			if !errors.Is(err, client.ErrNotAuthorized) || len(r.Also) > 0 && result.Because != i+1 {
				t.Errorf("%+v, %v; want request %d refused", result, err, i+1)
			}
			if len(r.Also) > 0 {
				refused.first()
			}
		}
		return result, err
	}
	m := &counts{}
	run(t, atOnce(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+", "dead-letters/bank")
	n := rounds(t, o, refused.happened) // with the dead letter there is one message for each
	m.reach(t, consistent.CountProcessed, n*(accounts-1))
	m.reach(t, consistent.CountDeadLetter, n)
	if m.get(consistent.CountRetry) != 0 {
		t.Errorf("after %d rounds: %v", n, m.of)
	}
	if s, _ := state(t, c.Connection, "bank/"+odd); s != "" {
		t.Errorf("the state of %s is %s", odd, s)
	}
}

// The queue of a subscriber to the output of one key is full: its messages wait until it has
// room, and those of the other keys go on.
func TestOneOutputOfManyFindsAFullQueue(t *testing.T) {
	t.Parallel()
	const queue = 200
	addr := testserver.Start(t, func(c *server.Config) { c.Limits = broker.Limits{MaxQueued: queue} }).Addr
	away := func() *client.Session {
		s, err := client.DialSession(t.Context(), addr, client.WithClientID("away"), client.WithQueueFull(client.QueueFullReject))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	slow := away()
	if err := slow.Subscribe(t.Context(), "balances/"+odd); err != nil {
		t.Fatal(err)
	}
	_ = slow.Close()
	c := &conn{Connection: dial(t, addr)}
	var full once
	c.txn = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		result, err := carryOut()
		if errors.Is(err, client.ErrQueueFull) && len(r.Also) > 0 {
			full.first()
		}
		return result, err
	}
	m := &counts{}
	run(t, atOnce(t, c, consistent.WithMetrics(m)))
	var filters []string
	for i := range accounts {
		if accountNo(i) != odd {
			filters = append(filters, "balances/"+accountNo(i))
		}
	}
	o := observe(t, addr, filters...)
	sent := 0
	add := func() {
		o.publish(t, message(fmt.Sprint("odd-", sent), deposit{odd, 1}))
		sent++
	}
	for i := range queue + 1 {
		add()
		m.reach(t, consistent.CountProcessed, min(i+1, queue)) // so that the processor's own queue does not become full
	}
	m.reach(t, consistent.CountRetry, 1)
	n := 0
	for ; n < 50 && !full.happened(); n++ {
		add()
		for i := range accounts {
			if accountNo(i) != odd {
				o.publish(t, message(fmt.Sprintf("%d-%d", n, i), deposit{accountNo(i), 1}))
			}
		}
		for range accounts - 1 {
			o.next(t) // the others are not held up
		}
	}
	slow = away()
	defer slow.Close()
	seen := 0
	for d, err := range slow.Messages(within(t)) {
		if err != nil {
			t.Fatalf("after %d of %d: %v", seen, sent, err)
		}
		d.Ack()
		if seen++; seen == sent {
			if want := fmt.Sprintf(`{"Account":%q,"Balance":%d}`, odd, sent); string(d.Payload) != want {
				t.Errorf("the last is %s, want %s", d.Payload, want)
			}
			break
		}
	}
	m.reach(t, consistent.CountProcessed, n*(accounts-1)+sent)
}

// An instance is killed when a transaction of many keys is committed, and before it knows. The
// next one finds each message done, or processes it, once.
func TestKilledBetweenCommitAndAnswer(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr, client.WithClientID("instance"))}
	var killed once
	died := make(chan struct{})
	c.txn = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		if killed.happened() {
			return consistent.TxnResult{}, client.ErrClosed
		}
		result, err := carryOut()
		if len(r.Also) > 0 && killed.first() {
			_ = c.Connection.Close()
			close(died)
			return consistent.TxnResult{}, client.ErrClosed
		}
		return result, err
	}
	p := atOnce(t, c, consistent.WithDrainTimeout(0))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(t.Context()) }()
	<-p.Subscribed()
	o := observe(t, addr, "balances/+")
	n := 0
	last := make(map[string]string)
	publish := func() {
		var batch []consistent.Message
		for i := range accounts {
			batch = append(batch, message(fmt.Sprintf("%d-%d", n, i), deposit{accountNo(i), 1}))
		}
		o.publish(t, batch...)
		n++
	}
	got := func(m consistent.Message) {
		var no int
		if _, err := fmt.Sscanf(m.Topic, "balances/acc-%d", &no); err != nil {
			t.Fatal(err)
		}
		last[accountNo(no)] = string(m.Payload)
	}
	outputs := 0
	for !killed.happened() {
		publish()
		for outputs < n*accounts && !killed.happened() {
			select {
			case m := <-o.received:
				got(m)
				outputs++
			case <-died:
			case <-time.After(patience):
				t.Fatal("no message came")
			}
		}
	}
	if err := <-ended; !errors.Is(err, client.ErrClosed) {
		t.Fatalf("Run: %v", err)
	}
	again := dial(t, addr, client.WithClientID("instance"))
	m := &counts{}
	run(t, atOnce(t, again, consistent.WithMetrics(m)))
	publish()
	for ; outputs < n*accounts; outputs++ {
		got(o.next(t))
	}
	expectBalances(t, again, n, 0)
	for i := range accounts {
		if want := fmt.Sprintf(`{"Account":%q,"Balance":%d}`, accountNo(i), n); last[accountNo(i)] != want {
			t.Errorf("the last output of %s is %s, want %s", accountNo(i), last[accountNo(i)], want)
		}
	}
}

// With all faults, many keys and instances that compete for them, each message counts once.
func TestKeysShareTransactionsUnderFaults(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	m := &counts{}
	for i := range 3 {
		c := consistenttest.WithFaults(b.Connect(fmt.Sprint("instance-", i)), uint64(i), consistenttest.Everything())
		run(t, atOnce(t, c, consistent.WithMetrics(m), consistent.WithShare("group"), consistent.WithAttempts(1000)))
	}
	const each = 20
	for n := range each {
		for i := range accounts {
			b.Publish(message(fmt.Sprintf("%d-%d", n, i), deposit{accountNo(i), 1}))
		}
	}
	if err := b.Settle(within(t)); err != nil {
		t.Fatal(err)
	}
	for i := range accounts {
		s, _ := b.State("bank/" + accountNo(i))
		if want := fmt.Sprintf(`{"Balance":%d,"Deposits":%d}`, each, each); string(s) != want {
			t.Errorf("%s: %s, want %s", accountNo(i), s, want)
		}
	}
	if n := len(b.Published("balances/+")); n != each*accounts {
		t.Errorf("%d outputs of %d messages", n, each*accounts)
	}
}
