package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// patience is how long anything may take before it counts as never happening.
const patience = time.Minute

// server carries requests out in memory. Keys that begin with "hold" wait, so that others collect.
type server struct {
	old     bool                     // it lacks OPEN and DONE
	refuse  map[string]commit.Result // what stands against a STORE of a key
	deny    map[string]error         // likewise, of the DONEs of a key, or of one with its message
	release chan struct{}            // closed: those that wait go on

	mu     sync.Mutex
	log    []string            // under mu: each request
	stored map[string]int      // under mu: how often, by key
	done   map[string]int      // under mu: how often, by key and message
	events map[string][]string // under mu: of each key, in their order
	arrive chan struct{}       // one for each request
}

func newServer() *server {
	return &server{refuse: make(map[string]commit.Result), deny: make(map[string]error), release: make(chan struct{}), arrive: make(chan struct{}, 10_000),
		stored: make(map[string]int), done: make(map[string]int), events: make(map[string][]string)}
}

// begin notes a request, and has it wait if it is to.
func (s *server) begin(ctx context.Context, request string) error {
	s.mu.Lock()
	s.log = append(s.log, request)
	s.mu.Unlock()
	s.arrive <- struct{}{}
	if strings.Contains(request, "hold") {
		select {
		case <-s.release:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// denies is what stands against the DONEs of a request. The caller holds mu.
func (s *server) denies(r *commit.Request) error {
	for _, d := range r.Done {
		if err := cmp.Or(s.deny[r.Key], s.deny[r.Key+" "+d.ID]); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) carryOut(r *commit.Request) {
	for _, d := range r.Done {
		s.done[r.Key+" "+d.ID]++
		s.events[r.Key] = append(s.events[r.Key], "done "+d.ID)
	}
	for _, m := range r.Messages {
		s.stored[r.Key]++
		s.events[r.Key] = append(s.events[r.Key], "store "+m.ID)
	}
}

func (s *server) Store(ctx context.Context, r StoreRequest) (client.StoreResult, error) {
	if err := s.begin(ctx, "STORE "+r.Key); err != nil {
		return client.StoreResult{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.refuse[r.Key].Outcome {
	case txn.AlreadyDone:
		return client.StoreResult{Outcome: client.AlreadyStored}, nil
	case txn.ConditionFailed:
		return client.StoreResult{Outcome: client.VersionConflict}, nil
	}
	s.carryOut(&commit.Request{Key: r.Key, Messages: []commit.Message{{ID: r.MessageID}}})
	return client.StoreResult{Outcome: client.Stored, Version: version}, nil
}

func (s *server) Done(ctx context.Context, r DoneRequest) (bool, error) {
	if err := s.begin(ctx, "DONE "+r.Key); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.denies(&commit.Request{Key: r.Key, Done: []commit.Done{{ID: r.MessageID}}}); err != nil {
		return false, err
	}
	s.carryOut(&commit.Request{Key: r.Key, Done: []commit.Done{{ID: r.MessageID}}})
	return true, nil
}

func (s *server) Transact(ctx context.Context, r commit.Request) (commit.Result, error) {
	requests := append([]commit.Request{r}, r.Also...)
	var words []string
	for _, r := range requests {
		switch {
		case len(r.Done) > 0:
			words = append(words, "DONE "+r.Key)
		case r.Open:
			words = append(words, "STORE "+r.Key)
		default:
			return commit.Result{}, errors.New("a request that neither stores nor confirms")
		}
	}
	if err := s.begin(ctx, "TXN "+strings.Join(words, " ")); err != nil {
		return commit.Result{}, err
	}
	if s.old {
		return commit.Result{Because: 1}, &txn.OperationError{Operation: "OPEN", Number: 3, Err: client.ErrUnknownOperation}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range requests {
		if refused := s.refuse[r.Key]; len(r.Done) == 0 && refused.Outcome != 0 {
			refused.Because = i + 1
			return refused, nil
		}
		if err := s.denies(&r); err != nil {
			return commit.Result{Because: i + 1}, err
		}
	}
	result := commit.Result{}
	for i := range requests {
		s.carryOut(&requests[i])
		result.Also = append(result.Also, commit.Result{Outcome: txn.Committed, Version: version})
	}
	also := result.Also[1:]
	result = result.Also[0]
	result.Also = also
	return result, nil
}

var version = hlc.Timestamp{Wall: 7, Node: "server"}

func newStores(t *testing.T, s *server, together bool) *Stores {
	t.Helper()
	return New(Options{Context: t.Context(), Timeout: patience, Conn: s, Together: together, Limit: new(commit.Limit), PacketSize: func() uint32 { return 0 }, Confirming: 64})
}

// outcome is what Store has returned.
type outcome struct {
	result commit.Result
	err    error
}

// change is a STORE of messages of a key.
func change(key string, ids ...string) *commit.Change {
	c := &commit.Change{Request: commit.Request{Key: key, State: []byte("state"), Keep: time.Hour}}
	for _, id := range ids {
		c.Messages = append(c.Messages, commit.Message{ID: id})
	}
	return c
}

// awaitRequests waits until the server has had n more requests.
func (s *server) awaitRequests(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-s.arrive:
		case <-time.After(patience):
			t.Fatal("a request never comes: ", s.requests())
		}
	}
}

// collect occupies the requests that may be under way, so that what begin starts is collected, and
// then lets all go on.
func collect(t *testing.T, s *server, st *Stores, begin func(store func(key, id string))) map[string]outcome {
	t.Helper()
	var mu sync.Mutex
	got := make(map[string]outcome)
	var all sync.WaitGroup
	store := func(key, id string) {
		all.Go(func() {
			r, err := st.Store(t.Context(), change(key, id), false)
			mu.Lock()
			defer mu.Unlock()
			got[key] = outcome{r, err}
		})
	}
	for i := range 2 {
		store(fmt.Sprint("hold-", i), "m")
		s.awaitRequests(t, 1)
	}
	begin(store)
	close(s.release)
	all.Wait()
	st.Wait()
	return got
}

func keys(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("key-", i))
	}
	return names
}

// awaitWaiting waits until so many STOREs and DONEs are collected.
func awaitWaiting(t *testing.T, st *Stores, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); st.group.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests wait, want %d", st.group.Waiting(), n)
		}
	}
}

var errDenied = errors.New("denied")

// dones are DONEs of messages.
func dones(ids ...string) (of []commit.Done) {
	for _, id := range ids {
		of = append(of, commit.Done{ID: id, Version: version})
	}
	return of
}

func unexpected(t *testing.T) func(error) {
	return func(err error) { t.Errorf("not confirmed: %v", err) }
}

// STOREs and DONEs that come while requests are under way share one transaction.
func TestKeysShareATransaction(t *testing.T) {
	t.Parallel()
	s := newServer()
	st := newStores(t, s, true)
	got := collect(t, s, st, func(store func(key, id string)) {
		for i, key := range keys(10) {
			store(key, "m2")
			awaitWaiting(t, st, 2*i+1)
			st.Done(key, dones("m1"), unexpected(t))
		}
	})
	for key, o := range got {
		if o.err != nil || o.result.Outcome != txn.Committed || o.result.Version != version || s.stored[key] != 1 {
			t.Errorf("%s: %+v, stored %d times", key, o, s.stored[key])
		}
	}
	for _, key := range keys(10) {
		if s.done[key+" m1"] != 1 {
			t.Errorf("%s: done %d times", key, s.done[key+" m1"])
		}
	}
	if log := s.requests(); len(log) != 3 || !strings.HasPrefix(log[2], "TXN ") || strings.Count(log[2], "STORE") != 10 || strings.Count(log[2], "DONE") != 10 {
		t.Errorf("requests %q", log)
	}
}

// A STORE or a DONE that is refused has its own outcome; the others of its transaction are carried
// out.
func TestOneOfManyIsRefused(t *testing.T) {
	t.Parallel()
	denied := &txn.OperationError{Operation: "DONE", Err: client.ErrNotAuthorized}
	for name, c := range map[string]struct {
		refused commit.Result
		want    txn.Outcome
		deny    error
	}{
		"a state was changed":     {commit.Result{Outcome: txn.ConditionFailed}, txn.ConditionFailed, nil},
		"a message is remembered": {commit.Result{Outcome: txn.AlreadyDone}, txn.AlreadyDone, nil},
		"a DONE is denied":        {commit.Result{}, txn.Committed, denied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer()
			s.refuse["key-3"], s.deny["key-3"] = c.refused, c.deny
			st := newStores(t, s, true)
			var mu sync.Mutex
			var unconfirmed []error
			got := collect(t, s, st, func(store func(key, id string)) {
				for i, key := range keys(10) {
					store(key, "m2")
					awaitWaiting(t, st, 2*i+1)
					st.Done(key, dones("m1"), func(err error) {
						mu.Lock()
						defer mu.Unlock()
						unconfirmed = append(unconfirmed, err)
					})
				}
			})
			for _, key := range keys(10) {
				want, done := txn.Committed, 1
				if key == "key-3" {
					if want = c.want; c.deny != nil {
						done = 0
					}
				}
				if o := got[key]; o.err != nil || o.result.Outcome != want || s.done[key+" m1"] != done {
					t.Errorf("%s: %+v, done %d times", key, o, s.done[key+" m1"])
				}
			}
			if refusals := len(unconfirmed); (c.deny != nil) != (refusals == 1) {
				t.Errorf("not confirmed: %v", unconfirmed)
			}
		})
	}
}

// A server that lacks the operations gets STORE and DONE, and is asked again only after many
// requests.
func TestOlderServer(t *testing.T) {
	t.Parallel()
	s := newServer()
	s.old = true
	st := newStores(t, s, true)
	got := collect(t, s, st, func(store func(key, id string)) {
		for i, key := range keys(10) {
			store(key, "m2")
			awaitWaiting(t, st, 2*i+1)
			st.Done(key, dones("m1"), unexpected(t))
		}
	})
	for _, key := range keys(10) {
		if o := got[key]; o.err != nil || o.result.Outcome != txn.Committed || s.stored[key] != 1 || s.done[key+" m1"] != 1 {
			t.Errorf("%s: %+v, stored %d times, done %d times", key, o, s.stored[key], s.done[key+" m1"])
		}
	}
	asked := func() (n int) {
		for _, request := range s.requests() {
			if strings.HasPrefix(request, "TXN") {
				n++
			}
		}
		return n
	}
	if asked() != 1 {
		t.Errorf("asked %d times", asked())
	}
	for i := range tryAgainAfter - 1 {
		if st.together() {
			t.Fatalf("together after %d requests", i+1)
		}
	}
	for range 2 {
		if !st.together() {
			t.Error("not tried again")
		}
	}
}

// Messages of one key share a STORE, also one that has no other key beside it.
func TestMessagesOfAKeyShareAStore(t *testing.T) {
	t.Parallel()
	s := newServer()
	close(s.release)
	st := newStores(t, s, true)
	for _, ids := range [][]string{{"a", "b", "c"}, {"d"}} {
		if stored, err := st.Store(t.Context(), change("key", ids...), false); err != nil || stored.Outcome != txn.Committed || stored.Version != version {
			t.Errorf("%q: %+v, %v", ids, stored, err)
		}
	}
	if got, want := s.requests(), []string{"TXN STORE key", "STORE key"}; !slices.Equal(got, want) {
		t.Errorf("requests %q, want %q", got, want)
	}
	if got, want := s.events["key"], []string{"store a", "store b", "store c", "store d"}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
	if !st.Shares() || newStores(t, s, false).Shares() {
		t.Error("a connection is taken for another kind")
	}
	s.old = true
	if _, err := st.Store(t.Context(), change("key", "e", "f"), false); !errors.Is(err, client.ErrUnknownOperation) || st.Shares() {
		t.Errorf("at a server that lacks the operations: %v, shares %v", err, st.Shares())
	}
}

// What must not share a transaction is a request of its own: a connection that takes one key at a
// time, a STORE that was refused before, the deletion of what is not there, a message whose DONE
// is not carried out yet, and another DONE of that.
func TestAlone(t *testing.T) {
	t.Parallel()
	s := newServer()
	st := newStores(t, s, true)
	lone := newStores(t, s, false)
	store := func(st *Stores, c *commit.Change, apart bool) {
		t.Helper()
		if stored, err := st.Store(t.Context(), c, apart); err != nil || stored.Outcome != txn.Committed {
			t.Errorf("%+v: %+v, %v", c, stored, err)
		}
	}
	deletion := change("c", "m")
	deletion.Delete = true
	collect(t, s, st, func(func(key, id string)) {
		st.Done("a", dones("m"), unexpected(t))
		awaitWaiting(t, st, 1)
		store(st, change("a", "m"), false)
		store(st, change("b", "m"), true)
		store(st, deletion, false)
		store(lone, change("d", "m"), false)
		st.Done("a", dones("m"), unexpected(t))
		lone.Done("d", dones("m"), unexpected(t))
		lone.Wait()
		s.awaitRequests(t, 6)
	})
	if s.done["a m"] != 2 || s.done["d m"] != 1 {
		t.Errorf("done %v", s.done)
	}
	for _, request := range s.requests() {
		if strings.HasPrefix(request, "TXN") {
			t.Errorf("request %q", request)
		}
	}
}

// DONEs that are begun at one time are one request. If that fails each is sent alone, and what fails
// then is said once.
func TestDonesOfSeveralMessages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		old         bool
		deny        string // a message
		together    bool
		requests    int
		unconfirmed bool
	}{
		"together":               {together: true, requests: 1},
		"one is denied":          {together: true, deny: "m2", requests: 1 + 3, unconfirmed: true},
		"at an older server":     {together: true, old: true, requests: 1 + 3},
		"none may share":         {requests: 3},
		"none may share, denied": {deny: "m1", requests: 3, unconfirmed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer()
			s.old = c.old
			if c.deny != "" {
				s.deny["a "+c.deny] = errDenied
			}
			st := newStores(t, s, c.together)
			var said atomic.Int64
			st.Done("a", dones("m1", "m2", "m3"), func(err error) {
				if said.Add(1); !errors.Is(err, errDenied) {
					t.Errorf("unconfirmed: %v", err)
				}
			})
			st.Wait()
			if n := len(s.requests()); n != c.requests || (said.Load() == 1) != c.unconfirmed || said.Load() > 1 {
				t.Errorf("%d requests, said %d times: %q", n, said.Load(), s.requests())
			}
			for _, id := range []string{"m1", "m2", "m3"} {
				want := 1
				if id == c.deny {
					want = 0
				}
				if s.done["a "+id] != want || st.IsConfirming("a", id) {
					t.Errorf("%s is done %d times, under way: %v", id, s.done["a "+id], st.IsConfirming("a", id))
				}
			}
		})
	}
}

// A message whose DONE is under way is not in another request of several: each goes alone.
func TestDonesThatAreUnderWay(t *testing.T) {
	t.Parallel()
	s := newServer()
	st := newStores(t, s, true)
	st.Done("hold", dones("m1", "m2"), unexpected(t))
	s.awaitRequests(t, 1)
	st.Done("hold", dones("m2", "m3"), unexpected(t))
	s.awaitRequests(t, 1)
	if st.IsConfirming("hold", "m3") {
		t.Error("m3 is in a transaction")
	}
	close(s.release)
	st.Wait()
	if s.done["hold m1"] != 1 || s.done["hold m2"] != 2 || s.done["hold m3"] != 1 {
		t.Errorf("done %v", s.done)
	}
	for _, id := range []string{"m1", "m2", "m3"} {
		if st.IsConfirming("hold", id) {
			t.Errorf("%s is under way", id)
		}
	}
}

// The next DONE waits while as many as may be are under way.
func TestBoundOfDones(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{true, false} {
		s := newServer()
		st := newStores(t, s, together)
		for i := range cap(st.slots) {
			st.Done(fmt.Sprint("hold-", i), dones("m"), unexpected(t))
		}
		one := make(chan struct{})
		go func() {
			defer close(one)
			st.Done("one more", dones("m"), unexpected(t))
		}()
		s.awaitRequests(t, 1)
		select {
		case <-one:
			t.Error("one more than the bound is under way")
		default:
		}
		close(s.release)
		<-one
		st.Wait()
		if len(s.done) != cap(st.slots)+1 {
			t.Errorf("%d are done", len(s.done))
		}
	}
}

// Messages of many keys, each with STORE, outputs and DONE, in their order for each key.
func TestOrderOfEachKey(t *testing.T) {
	t.Parallel()
	s := newServer()
	close(s.release)
	st := newStores(t, s, true)
	const messages = 50
	var all sync.WaitGroup
	for _, key := range keys(20) {
		all.Go(func() {
			for i := range messages {
				id := fmt.Sprint("m", i)
				stored, err := st.Store(t.Context(), change(key, id), false)
				if err != nil || stored.Outcome != txn.Committed {
					t.Errorf("%s: %+v, %v", id, stored, err)
				}
				s.mu.Lock()
				s.events[key] = append(s.events[key], "publish "+id)
				s.mu.Unlock()
				st.Done(key, dones(id), unexpected(t))
			}
		})
	}
	all.Wait()
	st.Wait()
	for _, key := range keys(20) {
		at := func(event string) int { return slices.Index(s.events[key], event) }
		if len(s.events[key]) != 3*messages {
			t.Errorf("%s: %d events", key, len(s.events[key]))
		}
		for i := range messages {
			id := fmt.Sprint(" m", i)
			if s, p, d := at("store"+id), at("publish"+id), at("done"+id); s < 0 || s > p || p > d {
				t.Errorf("%s%s: STORE %d, publish %d, DONE %d", key, id, s, p, d)
			}
		}
	}
}
