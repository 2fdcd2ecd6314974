package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
)

// patience is how long anything may take before it counts as never happening.
const patience = time.Minute

// store carries transactions out, or refuses them, as refuse says of a key.
type store struct {
	refuse func(key string) (Result, error)

	mu   sync.Mutex
	sent [][]string     // under mu: the keys of each transaction
	done map[string]int // under mu: how often each key was changed
	hold chan struct{}  // transactions of keys that begin with "hold" wait for it
}

func newStore(refuse func(key string) (Result, error)) *store {
	return &store{refuse: refuse, done: make(map[string]int), hold: make(chan struct{})}
}

func (s *store) transact(ctx context.Context, r Request) (Result, error) {
	keys := []string{r.Key}
	for _, also := range r.Also {
		keys = append(keys, also.Key)
	}
	s.mu.Lock()
	s.sent = append(s.sent, keys)
	s.mu.Unlock()
	if strings.HasPrefix(r.Key, "hold") {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, key := range keys {
		if result, err := s.refuse(key); err != nil || result.Outcome != txn.Committed {
			if result.Because == 0 {
				result.Because = i + 1
			}
			return result, err
		}
	}
	for _, key := range keys {
		s.done[key]++
	}
	result := Result{Outcome: txn.Committed}
	for range r.Also {
		result.Also = append(result.Also, result)
	}
	return result, nil
}

func (s *store) transactions() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// with counts the transactions that a key was in.
func (s *store) with(key string) (n int) {
	for _, keys := range s.transactions() {
		if slices.Contains(keys, key) {
			n++
		}
	}
	return n
}

func committed(string) (Result, error) { return Result{Outcome: txn.Committed}, nil }

func newGroup(t *testing.T, s *store) *Group {
	return NewGroup(Options{Context: t.Context(), Timeout: patience, Transact: s.transact, Limit: new(Limit), PacketSize: func() uint32 { return 0 }})
}

// await waits until a condition on the group holds.
func await(t *testing.T, g *Group, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		ok := holds()
		g.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

// change is a change of a key by one message with one output.
func change(key string) *Change {
	return &Change{Request: Request{Key: key, Messages: []Message{{ID: "m"}}, State: []byte("state"), Outputs: []client.Message{{Topic: "out"}}}}
}

// together commits changes while two small transactions are under way, so that they share the next, and
// returns what came of each.
func together(t *testing.T, g *Group, s *store, keys ...string) map[string]outcome {
	t.Helper()
	var mu sync.Mutex
	got := make(map[string]outcome)
	var all sync.WaitGroup
	start := func(key string) {
		all.Go(func() {
			r, err := g.Commit(t.Context(), change(key))
			mu.Lock()
			defer mu.Unlock()
			got[key] = outcome{r, err}
		})
	}
	for i := range inFlight {
		start(fmt.Sprint("hold-", i))
		await(t, g, "a transaction is under way", func() bool { return len(s.transactions()) == i+1 && len(g.waiting) == 0 })
	}
	for i, key := range keys {
		start(key)
		await(t, g, "a change waits", func() bool { return len(g.waiting) == i+1 })
	}
	close(s.hold)
	all.Wait()
	return got
}

func names(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	return keys
}

// Beside a transaction of few changes a second one begins at once, but beside one of many changes only
// when it has ended.
func TestOneLargeTransactionAtATime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		changes int // of the transaction that is under way
		begins  bool
	}{{fewChanges - 1, true}, {fewChanges, false}} {
		t.Run(fmt.Sprint(c.changes), func(t *testing.T) {
			t.Parallel()
			s := newStore(committed)
			g := newGroup(t, s)
			gates := map[string]chan struct{}{"first": make(chan struct{}), "second": make(chan struct{}), "key-0": make(chan struct{})}
			g.o.Transact = func(ctx context.Context, r Request) (Result, error) {
				result, err := s.transact(ctx, r)
				if gate := gates[r.Key]; gate != nil {
					<-gate
				}
				return result, err
			}
			var all sync.WaitGroup
			start := func(key string) {
				all.Go(func() {
					if _, err := g.Commit(t.Context(), change(key)); err != nil {
						t.Error(err)
					}
				})
			}
			sent := func(n int) {
				t.Helper()
				await(t, g, fmt.Sprint(n, " transactions were sent"), func() bool { return len(s.transactions()) == n })
			}
			for i, key := range []string{"first", "second"} {
				start(key)
				sent(i + 1)
			}
			for i, key := range names(c.changes) {
				start(key)
				await(t, g, "a change waits", func() bool { return len(g.waiting) == i+1 })
			}
			close(gates["first"])
			sent(3) // of all that have waited
			close(gates["second"])
			await(t, g, "one is under way", func() bool { return g.underWay == 1 && g.carried == c.changes })
			start("late")
			if c.begins {
				sent(4)
			} else {
				await(t, g, "the late one waits", func() bool { return len(g.waiting) == 1 && g.underWay == 1 })
			}
			close(gates["key-0"])
			sent(4)
			all.Wait()
		})
	}
}

// Changes that come while two small transactions are under way share the next one, in their order.
func TestChangesShareATransaction(t *testing.T) {
	t.Parallel()
	s := newStore(committed)
	keys := names(20)
	for key, o := range together(t, newGroup(t, s), s, keys...) {
		if o.err != nil || o.result.Outcome != txn.Committed || s.done[key] != 1 {
			t.Errorf("%s: %+v, done %d times", key, o, s.done[key])
		}
	}
	if sent := s.transactions(); len(sent) != 3 || !slices.Equal(sent[2], keys) {
		t.Errorf("transactions %v", sent)
	}
}

// One change that is in the way, whatever it is that stands against it, has its own outcome, and
// the others are done by the next transaction.
func TestOneOfManyIsRefused(t *testing.T) {
	t.Parallel()
	full := &txn.OperationError{Operation: "PUBLISH", Err: client.ErrQueueFull}
	for name, refused := range map[string]outcome{
		"conflict":     {result: Result{Outcome: txn.ConditionFailed, State: []byte("theirs")}},
		"already done": {result: Result{Outcome: txn.AlreadyDone}},
		"a full queue": {err: full},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(func(key string) (Result, error) {
				if key == "key-7" {
					return refused.result, refused.err
				}
				return committed(key)
			})
			g := newGroup(t, s)
			keys := names(20)
			got := together(t, g, s, keys...)
			for _, key := range keys {
				o := got[key]
				if key == "key-7" {
					if !errors.Is(o.err, refused.err) || o.result.Outcome != refused.result.Outcome || string(o.result.State) != string(refused.result.State) || s.with(key) != 1 {
						t.Errorf("the refused one: %+v, in %d transactions", o, s.with(key))
					}
				} else if o.err != nil || o.result.Outcome != txn.Committed || s.done[key] != 1 || s.with(key) != 2 {
					t.Errorf("%s: %+v, done %d times, in %d transactions", key, o, s.done[key], s.with(key))
				}
			}
			if g.most != 10 {
				t.Errorf("%d changes may share a transaction, after one of 20 was refused", g.most)
			}
		})
	}
}

// However many are refused, each change is in at most three transactions: none waits for another
// for ever, and there is an end.
func TestAllButOneAreRefused(t *testing.T) {
	t.Parallel()
	s := newStore(func(key string) (Result, error) {
		if key == "key-19" || strings.HasPrefix(key, "hold") {
			return committed(key)
		}
		return Result{Outcome: txn.ConditionFailed}, nil
	})
	keys := names(20)
	got := together(t, newGroup(t, s), s, keys...)
	for _, key := range keys {
		want := txn.ConditionFailed
		if key == "key-19" {
			want = txn.Committed
		}
		if got[key].result.Outcome != want || s.with(key) > refusalsBound+1 {
			t.Errorf("%s: %+v, in %d transactions", key, got[key], s.with(key))
		}
	}
}

// What is too much as a whole is sent one by one, and the next transactions are smaller. So is
// what a connection refuses without saying why.
func TestRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	quota := func(which string) outcome {
		return outcome{Result{Because: 3}, &txn.OperationError{Operation: "PUBLISH", Quota: which, Err: client.ErrQuotaExceeded}}
	}
	for name, c := range map[string]struct {
		refused    outcome
		most       int
		operations int
	}{
		"too many operations": {quota(QuotaOperations), 10, 10},
		"too many deliveries": {quota(quotaDeliveries), 10, defaultOperations},
		"another error":       {outcome{Result{Because: -1}, errors.New("broken")}, widest, defaultOperations},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(committed)
			g := newGroup(t, s)
			g.o.Transact = func(ctx context.Context, r Request) (Result, error) {
				if len(r.Also) > 0 {
					return c.refused.result, c.refused.err
				}
				return s.transact(ctx, r)
			}
			keys := names(20)
			got := together(t, g, s, keys...)
			for _, key := range keys {
				if o := got[key]; o.err != nil || s.done[key] != 1 || s.with(key) != 1 {
					t.Errorf("%s: %+v, done %d times", key, o, s.done[key])
				}
			}
			if g.most != c.most || g.o.Limit.Most() != c.operations {
				t.Errorf("%d changes and %d operations may share a transaction, want %d and %d", g.most, g.o.Limit.Most(), c.most, c.operations)
			}
		})
	}
}

// A transaction has as many operations and bytes as it may; what is more goes at once, and does
// not wait for those under way.
func TestFullTransactionsDoNotWait(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		each  func() *Change
		share int
	}{
		"operations": {func() *Change { return change("") }, defaultOperations},
		"bytes": {func() *Change {
			ch := change("")
			ch.State = make([]byte, groupBytes/4-changeBytes-messageBytes-10)
			return ch
		}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(committed)
			g := newGroup(t, s)
			var all sync.WaitGroup
			start := func(key string) {
				all.Go(func() {
					ch := c.each()
					ch.Key = key
					if _, err := g.Commit(t.Context(), ch); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range inFlight {
				start(fmt.Sprint("hold-", i))
				await(t, g, "a transaction is under way", func() bool { return len(s.transactions()) == i+1 && len(g.waiting) == 0 })
			}
			for i, key := range names(c.share) {
				start(key)
				await(t, g, "a change waits", func() bool { return len(g.waiting) == i+1 })
			}
			start("one-more")
			await(t, g, "a full one has gone", func() bool {
				return len(s.transactions()) == inFlight+1 && len(g.waiting) == 1 && g.waiting[0].Key == "one-more"
			})
			close(s.hold)
			all.Wait()
			if sent := s.transactions(); len(sent[2]) != c.share {
				t.Errorf("the full one has %d changes, want %d", len(sent[2]), c.share)
			}
		})
	}
}

// A caller that stops waiting has its change dropped, if it is not under way.
func TestCallerStopsWaiting(t *testing.T) {
	t.Parallel()
	s := newStore(committed)
	g := newGroup(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	var all sync.WaitGroup
	for i := range inFlight {
		all.Go(func() { _, _ = g.Commit(t.Context(), change(fmt.Sprint("hold-", i))) })
		await(t, g, "a transaction is under way", func() bool { return len(s.transactions()) == i+1 && len(g.waiting) == 0 })
	}
	go func() {
		_, err := g.Commit(ctx, change("gone"))
		gone <- err
	}()
	await(t, g, "it waits", func() bool { return len(g.waiting) == 1 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(s.hold)
	all.Wait()
	if r, err := g.Commit(t.Context(), change("gone")); err != nil || r.Outcome != txn.Committed || s.with("gone") != 1 {
		t.Errorf("%+v, %v; %d transactions have it", r, err, s.with("gone"))
	}
}

// Transactions that are refused make smaller ones, and more of them at a time; those that are
// done make larger ones again, up to the bound.
func TestSizeFollowsRefusals(t *testing.T) {
	t.Parallel()
	g := newGroup(t, newStore(committed))
	for _, want := range []int{32, 16, 8, 4, 2, 1, 1} {
		if g.shrink(2 * want); g.most != want {
			t.Errorf("%d, want %d", g.most, want)
		}
	}
	g.waiting, g.underWay = make([]*member, 1), widest-1
	if !g.mayStart() {
		t.Error("fewer transactions may be under way than changes without groups")
	}
	for i := range 3 * growAfter * widest {
		g.grow()
		if want := min(widest, 1+(i+1)/growAfter); g.most != want {
			t.Fatalf("%d after %d transactions, want %d", g.most, i+1, want)
		}
	}
	if g.underWay = inFlight; g.mayStart() {
		t.Error("a single change does not wait")
	}
}

// Changes about one timer are in different transactions: a transaction that has a timer twice
// would be refused, although neither change is wrong.
func TestChangesOfOneTimer(t *testing.T) {
	t.Parallel()
	s := newStore(committed)
	g := newGroup(t, s)
	set, cancel, other := change("set"), change("cancel"), change("other")
	set.Outputs[0] = set.Outputs[0].After(time.Hour).WithTimerID("timer")
	cancel.Cancels = []string{"timer"}
	other.Outputs[0] = other.Outputs[0].After(time.Hour) // without an ID: one of its own
	for _, c := range []*Change{set, cancel, other} {
		g.add(&member{Change: c})
	}
	if taken := g.take(); len(taken) != 2 || taken[0].Change != set || taken[1].Change != other {
		t.Errorf("taken %v", taken)
	}
	if taken := g.take(); len(taken) != 1 || taken[0].Change != cancel || g.operations != 0 || g.bytes != 0 {
		t.Errorf("taken %v; %d operations and %d bytes left", taken, g.operations, g.bytes)
	}
}
