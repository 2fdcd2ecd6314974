package faultrun

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/delay"
)

// evidence is what a run has seen, for the checks after it.
type evidence struct {
	sent       []order
	published  []publication // everything that came, in order
	dead       []letter
	states     map[string]shift // of the shift, by key, at the end
	booked     map[string]shift // of the ledger
	tallied    map[string]shift // of the tally
	unreadable []string
	late       string   // what did not come in time
	forgotten  []string // differences that the phase found in which messages are forgotten
	overflowed []string // differences that the phase found in which a full store refuses attempts
	path       Path
	timers     []client.Timer // that wait at the end
	different  int            // outputs, once each; filled by check
	rung       int            // of these, timers; filled by check
	end        func()
}

type publication struct {
	id      string
	which   int
	message consistent.Message
}

type letter struct{ id, reason string }

// check compares what was seen with the invariants of consistent messaging, and
// returns what differs.
func (e *evidence) check() (differences []string) {
	say := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	for _, u := range e.unreadable {
		say("%s", u)
	}
	if e.late != "" {
		say("7: %s", e.late)
	}
	if len(e.published) == 0 {
		say("nothing was published at all")
	}
	differences = append(append(differences, e.overflowed...), e.forgotten...)
	committed := map[string]map[string]bool{
		shiftName: commits(shiftName, e.states, say), ledgerName: commits(ledgerName, e.booked, say), tallyName: commits(tallyName, e.tallied, say),
	}
	first := e.same(say)
	e.different = len(first)
	for out := range first {
		if out.which == 3 {
			e.rung++
		}
	}

	orders := make(map[string]order)
	for _, o := range e.sent {
		orders[o.ID] = o
	}
	dead := make(map[string]bool)
	for _, l := range e.dead {
		dead[l.id] = true
		kind := kindOf(l.reason)
		about := wrong(kind)
		if kind == l.reason || (about == tooOld || about == ahead) && orders[l.id].Wrong != about || kind == notDeterministic && !orders[l.id].Fickle {
			say("message %s is a dead letter that was not injected: %s", l.id, l.reason)
		}
	}
	for _, o := range e.sent {
		if o.Wrong != "" && (!dead[o.ID] || committed[shiftName][o.ID]) {
			say("message %s is %s, and was processed", o.ID, o.Wrong)
		}
		for which := range outputs {
			if _, out := first[output{o.ID, which}]; !out && !dead[o.ID] {
				say("5, 7: message %s is not processed: its output %d was never published, nor is it a dead letter", o.ID, which+1)
			}
		}
		for name, done := range committed {
			if !done[o.ID] && !dead[o.ID] {
				say("5, 7: message %s is not processed: it was never committed by the %s, nor is it a dead letter", o.ID, name)
			}
		}
	}
	for out := range first {
		if name := handlerOf(out.which); !committed[name][out.id] {
			say("4: message %s has outputs of the %s and was never committed by it", out.id, name)
		}
	}
	e.checkTimers(dead, say)
	for key, s := range e.states {
		e.oracle(shiftName, key, s, first, say, func(id string) (consistent.Message, bool) {
			o, known := orders[id]
			return o.message(), known && o.Key == key
		})
	}
	for key, s := range e.booked {
		e.oracle(ledgerName, key, s, first, say, func(id string) (consistent.Message, bool) {
			m, known := first[output{id, 0}]
			return m, known && orders[id].Key == key
		})
	}
	for key, s := range e.tallied {
		e.oracle(tallyName, key, s, first, say, func(id string) (consistent.Message, bool) {
			m, known := first[output{id, 1}]
			return m, known && tallyKey(id) == key
		})
	}
	return differences
}

// commits checks the order of commits that is in each key's state (invariants 1 and 2).
func commits(handler string, states map[string]shift, say func(string, ...any)) map[string]bool {
	committed := make(map[string]bool)
	for key, s := range states {
		var c uint64
		for _, id := range s.Log {
			if committed[id] {
				say("1: message %s was committed twice by the %s, the second time to key %s", id, handler, key)
			}
			committed[id] = true
			c = chain(c, id)
		}
		if s.N != len(s.Log) || s.Chain != c {
			say("2: a commit of the %s to key %s does not stand on its predecessor: %d messages, %d counted", handler, key, len(s.Log), s.N)
		}
	}
	return committed
}

// outputs is how many a message has in the end, those of the ledger and the tally included.
const outputs = 5

// handlerOf is the handler of an output.
func handlerOf(which int) string {
	switch which {
	case 2:
		return ledgerName
	case 4:
		return tallyName
	}
	return shiftName
}

// output is one of the outputs of a message.
type output struct {
	id    string
	which int
}

// same makes sure that all publications of an output are byte-identical, properties
// included (invariant 3), and returns one of each.
func (e *evidence) same(say func(string, ...any)) map[output]consistent.Message {
	first := make(map[output]consistent.Message)
	for _, p := range e.published {
		out := output{p.id, p.which}
		before, seen := first[out]
		if !seen {
			first[out] = p.message
		} else if fmt.Sprint(before) != fmt.Sprint(p.message) {
			say("3: output %d of message %s was published as\n    %s %s %v\n    %s %s %v", p.which+1, p.id,
				before.Topic, before.Payload, before.UserProperties, p.message.Topic, p.message.Payload, p.message.UserProperties)
		}
	}
	return first
}

// oracle runs a handler on a key's messages, one after the other in the order of
// their commits, without faults, and compares state and outputs (invariant 6). What
// comes from outside – the captured value, the time, the version of the program – is another
// one there.
func (e *evidence) oracle(handler, key string, s shift, first map[output]consistent.Message, say func(string, ...any), message func(id string) (consistent.Message, bool)) {
	b := consistenttest.NewBroker()
	p, err := consistent.New(b.Connect("oracle"), handler, consistent.WithDeadLetterTopic(deadLetters), consistent.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		say("6: no processor for key %s: %v", key, err)
		return
	}
	register(p, handler, 0, func() {}, func() int { return 0 })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	<-p.Subscribed()
	for _, id := range s.Log {
		m, known := message(id)
		if !known {
			say("1: message %s was committed by the %s to key %s, to which it was not sent", id, handler, key)
			return
		}
		b.Publish(m)
	}
	if err := b.Settle(ctx); err != nil {
		say("the oracle: %v", err)
		return
	}
	value, _ := b.State(handler + "/" + key)
	var want shift
	if err := json.Unmarshal(value, &want); err != nil || want.N != s.N || want.Chain != s.Chain || !slices.Equal(want.Log, s.Log) {
		say("6: the state of the %s of key %s is not the oracle's: %+v, want %+v", handler, key, s, want)
	}
	b.Advance(longestReminder) // delivers the timers
	filters := []string{"results/#", copies + "#", reminders + "#"}
	switch handler {
	case ledgerName:
		filters = []string{"booked/#"}
	case tallyName:
		filters = []string{tallied + "#"}
	}
	for _, filter := range filters {
		for _, m := range b.Published(filter) {
			id, which, err := identify(&m)
			if err != nil {
				say("the oracle: %v", err)
				continue
			}
			got, out := first[output{id, which}]
			if out && plain(got) != plain(m) {
				say("6: output %d of message %s is not the oracle's:\n    %s\n    %s", which+1, id, plain(got), plain(m))
			}
		}
	}
}

// plain is a message without what came from outside.
func plain(m consistent.Message) string {
	var r result
	if err := json.Unmarshal(m.Payload, &r); err != nil {
		return err.Error()
	}
	if r.Code >= 2 {
		r.Roll = ^r.Roll
	}
	r.Salt, r.Noise, r.Code = 0, 0, 0
	properties := slices.DeleteFunc(slices.Clone(m.UserProperties), func(u consistent.UserProperty) bool {
		return u.Name == "time" || u.Name == delay.IDProperty // the state-based path gives each timer an ID
	})
	return fmt.Sprintf("%s %+v %v", m.Topic, r, properties)
}
