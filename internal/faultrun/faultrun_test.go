package faultrun

import (
	"flag"
	"fmt"
	"strings"
	"testing"

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

func eachMessageOnce(t *testing.T, path Path) {
	o := Options{Dir: t.TempDir(), Broker: testserver.Binary(), Seed: harness.Seed(*seedFlag), Path: path, Messages: 2000, Log: t.Logf}
	if testing.Short() {
		o.Messages = 300
	}
	summary, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("seed %d: %v", o.Seed, err)
	}
	t.Log(summary)
	if summary.Failed() {
		t.Errorf("promises broken; to run it again: go test ./internal/faultrun -run '%s' -seed %d", t.Name(), o.Seed)
	}
}

// sound is the evidence of a run in which two messages were processed.
func sound(t *testing.T) *evidence {
	t.Helper()
	e := &evidence{states: make(map[string]shift)}
	test := consistenttest.New(t, handlerName, func(p *consistent.Processor) {
		register(p, func() {}, func() int { return 0 })
	}, consistent.WithDeadLetterTopic(deadLetters))
	for _, id := range []string{"a", "b"} {
		o := order{ID: id, Key: "k"}
		e.sent = append(e.sent, o)
		test.Send(o.message())
	}
	for _, m := range test.Published("#") {
		if m.Topic == "orders/k" {
			continue
		}
		id, which, err := identify(&m)
		if err != nil {
			t.Fatal(err)
		}
		e.published = append(e.published, publication{id, which, m})
	}
	var s shift
	test.State(handlerName, "k", &s)
	e.states["k"] = s
	return e
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
		}, "1: message a was committed twice"},
		"committed to another key": {func(e *evidence) { e.states["x"] = e.states["k"]; delete(e.states, "k") }, "1: message a was committed to key x"},
		"lost update": {func(e *evidence) {
			s := e.states["k"]
			s.N--
			e.states["k"] = s
		}, "2: a commit to key k does not stand on its predecessor"},
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
		}, "4: message a has outputs and was never committed"},
		"output missing": {func(e *evidence) { e.published = e.published[1:] }, "5, 7: message a is not processed: its output 1"},
		"message lost": {func(e *evidence) {
			e.sent = append(e.sent, order{ID: "c", Key: "k"})
		}, "5, 7: message c is not processed: it was never committed"},
		"wrong result": {func(e *evidence) {
			e.published[2].message.Payload = []byte(strings.Replace(string(e.published[2].message.Payload), `"N":1`, `"N":7`, 1))
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
