package faultrun

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// evidence is what a run has seen, for the checks after it.
type evidence struct {
	sent       []order
	published  []publication // everything that came, in order
	dead       []letter
	states     map[string]shift // by key, at the end
	unreadable []string
	late       string // what did not come in time
	different  int    // outputs, once each; filled by check
	end        func()
}

type publication struct {
	id      string
	which   int
	message consistent.Message
}

type letter struct{ id, reason string }

// check compares what was seen with the seven invariants of consistent messaging, and
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
	committed := e.commits(say)
	first := e.same(say)
	e.different = len(first)

	dead := make(map[string]bool)
	for _, l := range e.dead {
		dead[l.id] = true
		if kind := kindOf(l.reason); kind == l.reason {
			say("message %s is a dead letter that was not injected: %s", l.id, l.reason)
		}
	}
	orders := make(map[string]order)
	for _, o := range e.sent {
		orders[o.ID] = o
		for which := range 2 {
			if _, out := first[output{o.ID, which}]; !out && !dead[o.ID] {
				say("5, 7: message %s is not processed: its output %d was never published, nor is it a dead letter", o.ID, which+1)
			}
		}
		if !committed[o.ID] && !dead[o.ID] {
			say("5, 7: message %s is not processed: it was never committed, nor is it a dead letter", o.ID)
		}
	}
	for out := range first {
		if !committed[out.id] {
			say("4: message %s has outputs and was never committed", out.id)
		}
	}
	for key, s := range e.states {
		e.oracle(key, s, orders, first, say)
	}
	return differences
}

// commits checks the order of commits that is in each key's state (invariants 1 and 2).
func (e *evidence) commits(say func(string, ...any)) map[string]bool {
	committed := make(map[string]bool)
	for key, s := range e.states {
		var c uint64
		for _, id := range s.Log {
			if committed[id] {
				say("1: message %s was committed twice, the second time to key %s", id, key)
			}
			committed[id] = true
			c = chain(c, id)
		}
		if s.N != len(s.Log) || s.Chain != c {
			say("2: a commit to key %s does not stand on its predecessor: %d messages, %d counted", key, len(s.Log), s.N)
		}
	}
	return committed
}

// output is one of the two outputs of a message.
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

// oracle runs the handler on a key's messages, one after the other in the order of
// their commits, without faults, and compares state and outputs (invariant 6). What
// comes from outside – the captured value, the time – is another one there.
func (e *evidence) oracle(key string, s shift, orders map[string]order, first map[output]consistent.Message, say func(string, ...any)) {
	b := consistenttest.NewBroker()
	p, err := consistent.New(b.Connect("oracle"), handlerName, consistent.WithDeadLetterTopic(deadLetters))
	if err != nil {
		say("6: no processor for key %s: %v", key, err)
		return
	}
	register(p, func() {}, func() int { return 0 })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	<-p.Subscribed()
	for _, id := range s.Log {
		o, known := orders[id]
		if !known || o.Key != key {
			say("1: message %s was committed to key %s, to which it was not sent", id, key)
			return
		}
		b.Publish(o.message())
	}
	if err := b.Settle(ctx); err != nil {
		say("the oracle: %v", err)
		return
	}
	value, _ := b.State(handlerName + "/" + key)
	var want shift
	if err := json.Unmarshal(value, &want); err != nil || want.N != s.N || want.Chain != s.Chain || !slices.Equal(want.Log, s.Log) {
		say("6: the state of key %s is not the oracle's: %+v, want %+v", key, s, want)
	}
	for _, m := range slices.Concat(b.Published("results/#"), b.Published("copies/#")) {
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

// plain is a message without what came from outside.
func plain(m consistent.Message) string {
	var r result
	if err := json.Unmarshal(m.Payload, &r); err != nil {
		return err.Error()
	}
	r.Salt, r.Noise = 0, 0
	properties := slices.DeleteFunc(slices.Clone(m.UserProperties), func(u consistent.UserProperty) bool { return u.Name == "time" })
	return fmt.Sprintf("%s %+v %v", m.Topic, r, properties)
}
