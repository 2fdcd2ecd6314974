package faultrun

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/harness"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the run; 0: one of the clock")

func TestMain(m *testing.M) {
	Instance()
	testserver.Main(m)
}

func TestEachMessageOnce(t *testing.T) {
	t.Parallel()
	for _, path := range []Path{Transactions, State, Both} {
		t.Run(string(path), func(t *testing.T) { // one after the other: each has a broker and three programs
			eachMessageOnce(t, path)
		})
	}
}

// The same while the leader of a cluster is killed and paused.
func TestEachMessageOnceInACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the elections of three real nodes; a run without -short has them")
	}
	eachMessageOnce(t, Both, func(o *Options) { o.Cluster, o.Messages = true, 1000 })
}

func eachMessageOnce(t *testing.T, path Path, change ...func(*Options)) {
	o := Options{Dir: t.TempDir(), Broker: testserver.Binary(), Seed: harness.Seed(*seedFlag), Path: path, Messages: 2000, Log: t.Logf}
	for _, f := range change {
		f(&o)
	}
	if testing.Short() {
		o.Messages = 300
	}
	summary, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("seed %d: %v", o.Seed, err)
	}
	t.Log(summary)
	if summary.StoreRefused == 0 {
		t.Error("a full store has refused nothing")
	}
	if summary.Cluster != nil && summary.Cluster.Leaders == 0 {
		t.Error("no leader was killed")
	}
	shared := summary.Shared
	if path == Transactions && shared.Transactions == 0 || path == State && shared.Stores == 0 || shared.Transactions+shared.Stores == 0 {
		t.Errorf("messages of one key have shared %d transactions and %d STOREs", shared.Transactions, shared.Stores)
	}
	if summary.Failed() {
		t.Errorf("promises broken; to run it again: go test ./internal/faultrun -run '%s' -seed %d", t.Name(), o.Seed)
	}
}

// sound is the evidence of a run in which two messages were processed.
func sound(t *testing.T) *evidence {
	t.Helper()
	e := &evidence{states: make(map[string]shift), booked: make(map[string]shift), tallied: make(map[string]shift), path: State}
	deadLetterTopic := consistent.WithDeadLetterTopic(deadLetters)
	shifts := consistenttest.New(t, shiftName, func(p *consistent.Processor) {
		registerShift(p, 2, func() {}, func() int { return 0 })
	}, deadLetterTopic)
	ledgers := consistenttest.New(t, ledgerName, func(p *consistent.Processor) { registerLedger(p, func() {}) }, deadLetterTopic)
	tallies := consistenttest.New(t, tallyName, func(p *consistent.Processor) { registerTally(p, func() {}, func() int { return 0 }) }, deadLetterTopic)
	for _, id := range []string{"a", "b"} {
		o := order{ID: id, Key: "k", Sent: time.Now()}
		e.sent = append(e.sent, o)
		shifts.Send(o.message())
	}
	shifts.Broker.Advance(longestReminder)
	published := slices.Concat(shifts.Published("results/k"), shifts.Published("copies/k"), shifts.Published("reminders/k"))
	ledgers.Send(shifts.Published("results/k")...)
	tallies.Send(shifts.Published("copies/k")...)
	for _, timer := range shifts.Broker.Timers() {
		if !strings.HasPrefix(timer.ID, overdue) { // which the ledger has cancelled
			e.timers = append(e.timers, timer)
		}
	}
	for _, m := range slices.Concat(published, ledgers.Published("booked/k"), tallies.Published("tallied/0")) {
		id, which, err := identify(&m)
		if err != nil {
			t.Fatal(err)
		}
		e.published = append(e.published, publication{id, which, m})
	}
	var s shift
	shifts.State(shiftName, "k", &s)
	e.states["k"] = s
	ledgers.State(ledgerName, "k", &s)
	e.booked["k"] = s
	tallies.State(tallyName, "0", &s)
	e.tallied["0"] = s
	return e
}

// The timer of a key may be that of a dead letter behind its last message, or lack it.
func TestTimersOfDeadLetters(t *testing.T) {
	t.Parallel()
	e := sound(t)
	e.dead = []letter{{"b", "handler panicked: injected"}}
	for _, n := range []string{"0", "1"} {
		e.timers[0].Topic = "idle/k/" + n
		if differences := e.check(); len(differences) > 0 {
			t.Errorf("with that of message %s: %q", n, differences)
		}
	}
	e.dead = append(e.dead, letter{"a", "handler panicked: injected"})
	e.timers = []client.Timer{{ID: "overdue/a"}}
	if differences := e.check(); len(differences) > 0 {
		t.Errorf("without: %q", differences)
	}
}

func TestSoundEvidence(t *testing.T) {
	t.Parallel()
	if differences := sound(t).check(); len(differences) > 0 {
		t.Errorf("differences: %q", differences)
	}
}

// Each violation that is planted is found, under the number of its invariant.
func TestViolationsAreFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plant func(e *evidence)
		want  string
	}{
		"committed twice": {func(e *evidence) {
			s := e.states["k"]
			e.states["k"] = shift{3, chain(s.Chain, "a"), append(s.Log, "a")}
		}, "1: message a was committed twice by the shift"},
		"committed to another key": {func(e *evidence) { e.states["x"] = e.states["k"]; delete(e.states, "k") }, "1: message a was committed by the shift to key x"},
		"lost update": {func(e *evidence) {
			s := e.states["k"]
			s.N--
			e.states["k"] = s
		}, "2: a commit of the shift to key k does not stand on its predecessor"},
		"another payload": {func(e *evidence) {
			again := e.published[0]
			again.message.Payload = []byte(strings.Replace(string(again.message.Payload), `"Salt":`, `"Salt":1`, 1))
			e.published = append(e.published, again)
		}, "3: output 1 of message a was published as"},
		"another property": {func(e *evidence) {
			again := e.published[0]
			again.message.UserProperties = append(again.message.UserProperties[:0:0], again.message.UserProperties...)
			again.message.UserProperties[0].Value += " "
			e.published = append(e.published, again)
		}, "3: output 1 of message a was published as"},
		"output without commit": {func(e *evidence) {
			delete(e.states, "k")
		}, "4: message a has outputs of the shift and was never committed by it"},
		"output missing": {func(e *evidence) { e.published = e.published[1:] }, "5, 7: message a is not processed: its output 1"},
		"message lost": {func(e *evidence) {
			e.sent = append(e.sent, order{ID: "c", Key: "k"})
		}, "5, 7: message c is not processed: it was never committed by the shift"},
		"committed twice by the ledger": {func(e *evidence) {
			s := e.booked["k"]
			e.booked["k"] = shift{3, chain(s.Chain, "a"), append(s.Log, "a")}
		}, "1: message a was committed twice by the ledger"},
		"lost between the handlers": {func(e *evidence) {
			delete(e.booked, "k")
		}, "5, 7: message a is not processed: it was never committed by the ledger"},
		"committed twice by the tally": {func(e *evidence) {
			s := e.tallied["0"]
			e.tallied["0"] = shift{3, chain(s.Chain, "a"), append(s.Log, "a")}
		}, "1: message a was committed twice by the tally"},
		"lost before the tally": {func(e *evidence) {
			delete(e.tallied, "0")
		}, "5, 7: message a is not processed: it was never committed by the tally"},
		"wrong order of the tally": {func(e *evidence) {
			e.tallied["0"] = shift{2, chain(chain(0, "b"), "a"), []string{"b", "a"}}
		}, "6: output 5 of message"},
		"wrong result of the ledger": {func(e *evidence) {
			e.published[7].message.Payload = []byte(strings.Replace(string(e.published[7].message.Payload), `"N":1`, `"N":7`, 1))
		}, "6: output 3 of message b is not the oracle's"},
		"timer lost": {func(e *evidence) { e.published = slices.Delete(e.published, 4, 5) }, "5, 7: message a is not processed: its output 4"},
		"timer left": {func(e *evidence) {
			e.timers = append(e.timers, client.Timer{ID: "x", Topic: "reminders/k"})
		}, "8: a timer waits that was due"},
		"timer not cancelled": {func(e *evidence) {
			e.timers = append(e.timers, client.Timer{ID: "overdue/a", Topic: "overdue/k"})
		}, "8: the ledger has cancelled the timer of message a, and it waits"},
		"timer of an earlier message": {func(e *evidence) { e.timers[0].Topic = "idle/k/0" }, `8: the timer of key k has the topic "idle/k/0"`},
		"timer of a key lost":         {func(e *evidence) { e.timers = nil }, `8: the timer of key k has the topic ""`},
		"timer of another key": {func(e *evidence) {
			e.timers = append(e.timers, client.Timer{ID: "idle/x", Topic: "idle/x/0"})
		}, "8: the timer of key x waits, with the topic idle/x/0, which has no state"},
		"old message processed": {func(e *evidence) { e.sent[0].Wrong = tooOld }, "message a is too old to tell, and was processed"},
		"replayed otherwise": {func(e *evidence) {
			e.dead = append(e.dead, letter{"a", "the handler is not deterministic"})
		}, "message a is a dead letter that was not injected: the handler is not deterministic"},
		"refused for no reason": {func(e *evidence) {
			e.dead = append(e.dead, letter{"a", consistent.ErrTooOld.Error()})
		}, "a dead letter that was not injected"},
		"processed twice in a full store":  {func(e *evidence) { e.overflowed = []string{"1: message 3 of a full store"} }, "1: message 3 of a full store"},
		"processed after it was forgotten": {func(e *evidence) { e.forgotten = []string{"KEEP: message 1"} }, "KEEP: message 1"},
		"wrong result": {func(e *evidence) {
			e.published[1].message.Payload = []byte(strings.Replace(string(e.published[1].message.Payload), `"N":1`, `"N":7`, 1))
		}, "6: output 1 of message b is not the oracle's"},
		"unexpected dead letter": {func(e *evidence) { e.dead = append(e.dead, letter{"a", "no room"}) }, "a dead letter that was not injected"},
		"nothing at all":         {func(e *evidence) { *e = evidence{} }, "nothing was published"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := sound(t)
			test.plant(e)
			if differences := fmt.Sprint(e.check()); !strings.Contains(differences, test.want) {
				t.Errorf("want %q among %s", test.want, differences)
			}
		})
	}
}
