package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// newTxn makes a transaction of its words on the wire, without TXN.
func newTxn(t testing.TB, text string, nowMs int64) *Txn {
	t.Helper()
	words := [][]byte{[]byte("TXN")}
	for word := range strings.FieldsSeq(text) {
		words = append(words, []byte(word))
	}
	x := new(Txn)
	if f := protocol.ParseTxn(protocol.AppendCommand(nil, words...), protocol.TxnLimits{MaxKey: 100, MaxOperations: 1000}, &x.Transaction); f.Fault != statestore.None {
		t.Fatalf("%s: operation %d: %v", text, f.Op, f.Fault)
	}
	x.Stamp(statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: uint64(nowMs), Node: "client"}}, statestore.Stamp{})
	return x
}

// txn runs a transaction and waits for its reply.
func (c *client) txn(text string) *statestore.Reply {
	c.w.t.Helper()
	return c.transact(newTxn(c.w.t, text, c.w.clock.WallMs()))
}

func (c *client) transact(x *Txn) *statestore.Reply {
	<-c.beginTxn(x)
	return x.Reply()
}

// beginTxn runs a transaction; the channel is closed when its reply may leave.
func (c *client) beginTxn(x *Txn) (done chan struct{}) {
	done = make(chan struct{})
	c.replies.giveAfter(c.Transact(x), func() {
		c.w.log.add("%s: TXN -> %s", c.name, showTxn(x.Reply()))
		close(done)
	})
	return done
}

func showTxn(r *statestore.Reply) string {
	switch {
	case r.Kind == statestore.Error && r.Bound != statestore.NoBound:
		return fmt.Sprintf("operation %d: %v", r.Op, r.Bound)
	case r.Kind == statestore.Error:
		return fmt.Sprintf("operation %d: %v", r.Op, r.Fault)
	case r.Count == statestore.Committed:
		return fmt.Sprintf("committed %d", len(r.Values))
	case r.Count == statestore.AlreadyDone:
		return "already done"
	}
	return fmt.Sprintf("operation %d failed: %s", r.Op, showBlob(r.Value))
}

// wantTxn runs a transaction and checks its reply.
func (c *client) wantTxn(want, text string) *statestore.Reply {
	c.w.t.Helper()
	r := c.txn(text)
	if got := showTxn(r); got != want {
		c.w.t.Errorf("TXN %s -> %s, want %s", text, got, want)
	}
	return r
}

func TestTxnIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	r := c.wantTxn("committed 2", "IF a ABSENT IF b VER - SET a 1 SET b 2")
	a, b := r.Values[0].Version, r.Values[1].Version
	if b.Compare(a) <= 0 || r.Version != b {
		t.Errorf("versions %v, %v and %v: want the second to be the latest", a, b, r.Version)
	}
	if got := c.want("1", "GET a").Version; got != a {
		t.Errorf("a has version %v, and the reply said %v", got, a)
	}
	for _, tc := range []struct{ text, want string }{
		{"IF a ABSENT SET b 9", "operation 1 failed: 1"},
		{"IF a EXISTS IF c EXISTS SET b 9", "operation 2 failed: nil"},
		{"IF a VALUE 1 IF b VALUE 1 SET a 9 DEL b", "operation 2 failed: 2"},
		{"SET b 9 IF a VER " + b.String(), "operation 2 failed: 1"},
		{"IF a VER ^m SET b 9", "operation 1 failed: 1"},
	} {
		r := c.wantTxn(tc.want, tc.text)
		if live := r.Value != nil; live != !r.Version.IsZero() {
			t.Errorf("%s: version %v of a key that is there: %v", tc.text, r.Version, live)
		}
	}
	c.want("1", "GET a")
	c.want("2", "GET b")
	r = c.wantTxn("committed 3", fmt.Sprintf("IF a VER %v DEL a DEL nothing SET b 3", a))
	if r.Values[0].Version.IsZero() || !r.Values[1].Version.IsZero() || r.Values[2].Version.IsZero() {
		t.Errorf("versions %v", r.Values)
	}
	c.want("nil", "GET a")
	c.want("3", "GET b")
	w.restart()
	c = w.client("c")
	c.want("nil", "GET a")
	c.want("3", "GET b")
}

// Each write is refused as it would be by itself, and with it all others.
func TestTxnIsRefusedAsItsWritesAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxKeys: 3})
	c := w.client("c")
	c.wait("SET fenced v FT=5")
	fenced := fmt.Sprintf("%d:4:client", int64(startMs))
	for _, tc := range []struct{ text, want string }{
		{"SET a 1 SET fenced w", "operation 2: a fencing token is required for this request"},
		{"SET a 1 DEL fenced FT " + fenced, "operation 2: the request fencing token is a lower version than the fencing token protecting the resource"},
		{"SET a 1 SET b 1 SET c 1", "operation 3: max-keys"},
		{"ONCE k m SET a 1 SET b 1 SET c 1 SET d 1", "operation 4: max-keys"},
	} {
		c.wantTxn(tc.want, tc.text)
		c.want("nil", "GET a")
	}
	if n := w.e.Stats(); n.Keys != 1 || n.Bytes != int64(len("fencedv")) || n.Remembered.Messages != 0 {
		t.Errorf("the store counts %d keys, %d bytes, %d messages; want one key", n.Keys, n.Bytes, n.Remembered.Messages)
	}
	c.wantTxn("committed 3", "SET a 1 SET b 1 SET fenced w FT "+fmt.Sprintf("%d:6:client", int64(startMs)))
	c.wantTxn("committed 3", "DEL a SET c 1 SET b 22") // the room of one is that of the other
	if n := w.e.Stats(); n.Keys != 3 || n.Bytes != int64(len("fencedw"+"b22"+"c1")) {
		t.Errorf("the store counts %d keys and %d bytes", n.Keys, n.Bytes)
	}
	x := newTxn(t, "SET a 1", startMs)
	x.Stamp(statestore.Stamp{}, statestore.Stamp{})
	if got := showTxn(c.transact(x)); got != "operation 1: missing timestamp" {
		t.Errorf("without a timestamp: %s", got)
	}
	x = newTxn(t, "ONCE k m", startMs)
	x.Stamp(statestore.Stamp{}, statestore.Stamp{})
	if got := showTxn(c.transact(x)); got != "operation 1: missing timestamp" {
		t.Errorf("without a timestamp: %s", got)
	}
}

func TestTxnOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxRemembered: 3*(2*3+64) + 5})
	c := w.client("c")
	first := c.wantTxn("committed 1", "ONCE k m1 KEEP 5000 SET k 1")
	again := c.wantTxn("already done", "ONCE k m1 SET k 2")
	if again.Version != first.Values[0].Version {
		t.Errorf("the repetition says %v, the first time made %v", again.Version, first.Values[0].Version)
	}
	c.want("1", "GET k")
	if got := c.want("2 nil nil", "LOAD k m1").Version; got != again.Version {
		t.Errorf("LOAD says %v", got)
	}
	c.want("0", "STORE k x m1 -") // it is remembered
	c.want("1", "DONE k m1")
	w.wantRemembered(1)

	// One that writes another key only has a version of its own.
	other := c.wantTxn("committed 1", "ONCE k m2 SET other 1")
	if again = c.wantTxn("already done", "ONCE k m2 DEL other"); again.Version.Compare(other.Values[0].Version) <= 0 || again.Version != other.Version {
		t.Errorf("the repetition says %v, and the first time %v", again.Version, other.Version)
	}
	c.wantTxn("operation 1 failed: 1", "IF k VER ^m2 DEL k")
	c.store("OK", "k", "stored", "m3", "")
	c.wantTxn("already done", "ONCE k m3 SET k 2")
	c.wantTxn("operation 1: max-remembered-bytes", "ONCE k m4 SET k 2")

	w.crash()
	c = w.client("c")
	c.wantTxn("already done", "ONCE k m1 SET k 2")
	w.wantRemembered(3)
	w.clock.advance(5001)
	c.wantTxn("committed 1", "ONCE k m1 SET k again") // forgotten by now, and it counts once
	w.wantRemembered(3)
	c.wantTxn("already done", "ONCE k m1 SET k 2")
	w.clock.advance(8 * 24 * 3600 * 1000)
	for w.e.ForgetDue() {
	}
	w.wantRemembered(0)
}

// The messages of one key are processed one behind the other, without waiting.
func TestTxnMadeBy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "0", "m0", "")
	w.disk.Hold()
	var all []*Txn
	for i := range 5 {
		x := newTxn(t, fmt.Sprintf("IF k VER ^m%d ONCE k m%d SET k %d", i, i+1, i+1), startMs)
		if wait := c.Transact(x); wait.Batch == 0 || wait.Batch <= w.j.Complete() {
			t.Errorf("transaction %d does not wait for the disk", i)
		}
		all = append(all, x)
	}
	w.disk.Release(nil)
	for i, x := range all {
		if got := showTxn(x.Reply()); got != "committed 1" {
			t.Errorf("transaction %d: %s", i, got)
		}
	}
	c.want("5", "GET k")
	c.wantTxn("operation 1 failed: 5", "IF k VER ^m4 SET k x")
	c.wantTxn("operation 1 failed: 5", "IF k VER ^unknown SET k x")
	c.wait("SET k other")
	c.wantTxn("operation 1 failed: other", "IF k VER ^m5 SET k x")
}

// The requester hears of all its keys before the reply, and others after it.
func TestTxnNotifies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c, other := w.client("c"), w.client("other")
	c.wait("SET gone v")
	c.wait("WATCH a")
	c.wait("WATCH gone")
	other.wait("WATCH b")
	other.wait("WATCH a")
	w.log.take()
	w.disk.Hold() // or the batch may be durable before Transact returns, and others be told before the reply is given
	c.beginTxn(newTxn(t, "SET a 1 SET b 2 DEL gone", startMs))
	w.disk.Release(nil)
	w.settle()
	w.expect("c: event a = 1", "c: event gone deleted", "c: TXN -> committed 3", "other: event a = 1", "other: event b = 2")
	c.wantTxn("operation 1 failed: 1", "IF a ABSENT SET a 2")
	w.settle()
	w.expect("c: TXN -> operation 1 failed: 1")
	if n := w.records(); n != 3 {
		t.Errorf("%d records are in memory; want a, b, and the watch of gone, whose tombstone goes once the deletion is durable", n)
	}
}

// Nothing of a transaction is seen before it is durable, and after a crash that comes
// before, nothing of it is there.
func TestTxnIsNotSeenBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c, other := w.client("c"), w.client("other")
	c.wait("SET a old")
	other.wait("WATCH a")
	w.settle()
	w.log.take()
	w.disk.Hold()
	x := newTxn(t, "SET a new SET b new ONCE k m", startMs)
	if wait := c.Transact(x); wait.Batch <= w.j.Complete() {
		t.Error("the reply does not wait")
	}
	get := other.do("GET b")
	y := newTxn(t, "IF a VALUE old", startMs)
	if wait := other.Transact(y); wait.Batch <= w.j.Complete() && !wait.Asked {
		t.Error("a condition that failed because of it does not wait")
	}
	if get.replied() {
		t.Error("it was read before it was durable")
	}
	w.expect()
	w.crash() // which syncs nothing
	c = w.client("c")
	c.want("old", "GET a")
	c.want("nil", "GET b")
	c.want("0 nil nil", "LOAD k m")
	w.wantRemembered(0)
}

// Transfers between accounts by several sessions leave the sum as it is.
func TestTxnsKeepTheSum(t *testing.T) {
	t.Parallel()
	const accounts, sessions, transfers = 5, 4, 150
	w := newWorld(t, Options{})
	for i := range accounts {
		w.client("bank").wait(fmt.Sprintf("SET account%d 100", i))
	}
	var all sync.WaitGroup
	for id := range sessions {
		all.Go(func() {
			c, rng := w.client(fmt.Sprint("teller", id)), rand.New(rand.NewPCG(uint64(id), 1))
			for range transfers {
				from, to := rng.IntN(accounts), rng.IntN(accounts)
				if from == to {
					continue
				}
				var balance [2]int
				var version [2]string
				for i, account := range [2]int{from, to} {
					r := c.wait(fmt.Sprintf("GET account%d", account))
					_, _ = fmt.Sscan(string(r.Value), &balance[i])
					version[i] = r.Version.String()
				}
				c.txn(fmt.Sprintf("IF account%d VER %s IF account%d VER %s SET account%d %d SET account%d %d",
					from, version[0], to, version[1], from, balance[0]-1, to, balance[1]+1))
			}
		})
	}
	all.Wait()
	sum := 0
	for i := range accounts {
		var balance int
		_, _ = fmt.Sscan(string(w.client("bank").wait(fmt.Sprintf("GET account%d", i)).Value), &balance)
		sum += balance
	}
	if sum != 100*accounts {
		t.Errorf("the sum is %d", sum)
	}
}

// A deadline and an expired key in a transaction are what they are for a SET.
func TestTxnExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.wantTxn("committed 2", "SET a 1 PX 1000 SET b 1 PX 2000")
	w.clock.advance(1000)
	c.wantTxn("committed 2", "IF a ABSENT IF b EXISTS SET a 2 SET b 2")
	w.clock.advance(5000)
	w.e.ExpireDue()
	c.want("2", "GET a")
	c.want("2", "GET b")
}

// companion records what is called, and appends a row.
type companion struct {
	t      *testing.T
	w      *world
	calls  []string
	refuse statestore.Fault
	before func() // called by Prepare
}

func (p *companion) Prepare() (rows bool, refused statestore.Reply) {
	p.calls = append(p.calls, "prepare")
	if p.before != nil {
		p.before()
	}
	if p.refuse != statestore.None {
		return false, statestore.Reply{Kind: statestore.Error, Op: 7, Fault: p.refuse}
	}
	return true, refused
}

func (p *companion) Append(a journal.Append) {
	p.calls = append(p.calls, "append")
	a.Set([]byte("q|companion"), nil)
}

func (p *companion) Commit(journal.Seq) (later journal.Seq) {
	p.calls = append(p.calls, "commit")
	return 0
}
func (p *companion) Withdraw() { p.calls = append(p.calls, "withdraw") }

func TestTxnCompanion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	run := func(p *companion, text string) string {
		p.t, p.w = t, w
		x := newTxn(t, text, startMs)
		x.Companion = p
		return showTxn(c.transact(x))
	}
	check := func(p *companion, got, want string, calls ...string) {
		t.Helper()
		if got != want || !slices.Equal(p.calls, calls) {
			t.Errorf("%s, calls %v; want %s, %v", got, p.calls, want, calls)
		}
	}
	p := &companion{}
	check(p, run(p, "IF a EXISTS SET a 1"), "operation 1 failed: nil") // nothing is prepared for what fails at once
	p = &companion{refuse: statestore.NotAuthorized}
	check(p, run(p, "SET a 1"), "operation 7: not authorized", "prepare")
	c.want("nil", "GET a")
	p = &companion{before: func() { w.client("rival").do("SET a rival") }}
	check(p, run(p, "IF a ABSENT SET a 1"), "operation 1 failed: rival", "prepare", "withdraw")
	p = &companion{}
	check(p, run(p, "SET a 1"), "committed 1", "prepare", "append", "commit")
	if n := w.rows("q"); n != 1 {
		t.Errorf("%d rows of the companion are on disk", n)
	}
}
