package consistent

import (
	"bytes"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/lanes"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/timed"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// One STORE for messages of one key
//
// Messages of the state-based path that wait in one lane are handled one after the other, each on the
// state that the one before it has made, and stored by one transaction: an open ONCE for each, and
// the last state. Then the outputs of each are published, in the order of the messages: those of a
// message when all outputs of the one before it are acknowledged.
//
//	handle a, b, c ──► one TXN ──► publish a's ──► publish b's ──► publish c's ──► their DONEs
//
// LOAD knows one state before that transaction, which is a's. So what is remembered of the others
// has the state that each was handled on (record.Record.Before), and each of them can be replayed
// by itself.
//
// If publishing fails, the message that it is about and those behind it are processed alone, in their
// order: LOAD says that they are stored, and they are replayed. A message that fails before the
// transaction, ends the state or orders timers is processed alone, behind those before it.

// storeBytes is how much of states and captured values shares a STORE, about, as the server keeps the
// state before all with each message; storeTime is after how long no other message is handled for it.
const storeBytes, storeTime = 64 << 10, 10 * time.Millisecond

// storeTogether handles messages of one key, stores what they lead to, and publishes it.
func (p *Processor) storeTogether(run *lanes.Run[*task]) {
	for i := range run.Outcomes {
		run.Outcomes[i].Back = true
	}
	first := run.Tasks[0]
	state, atHand := p.states.Get(first.storeKey())
	if !atHand || first.apart || !p.stores.Shares() {
		first.alone = true
		return
	}
	ch := p.begin(first, state)
	outputs, start := make([][]Message, 0, len(run.Tasks)), p.now()
	for _, f := range run.Tasks {
		n := int64(len(outputs))
		if bytes := ch.Size + (n+1)*int64(len(state.Value)); n > 0 && (ch.Operations() >= p.operations.Most() || bytes+bytes/n > storeBytes || p.now().Sub(start) > storeTime) {
			break // the next one would hardly have room, or have the outputs of the others wait
		}
		made, err := p.storeNext(&ch, f)
		if err != nil {
			f.leave(err)
			break
		}
		outputs = append(outputs, made)
	}
	tasks := run.Tasks[:len(outputs)]
	if version, ok := p.storeAll(&ch, tasks, run.Outcomes); ok {
		p.publishAll(tasks, run.Outcomes, version, outputs)
	}
}

// storeNext handles a message on the state that the change leads to so far, and adds what is to be
// stored of it.
func (p *Processor) storeNext(ch *commit.Change, f *task) ([]Message, error) {
	if p.stores.IsConfirming(f.storeKey(), f.MessageID) {
		return nil, errInVain
	}
	c := p.newRun(p.working, f, ch.Decoded, func() error { return errAlone })
	state, outputs, err := p.handle(c, f, bytes.Clone(ch.Request.State)) // which may be remembered
	switch {
	case err != nil:
		return nil, err
	case timed.Any(outputs):
		return nil, errAlone // a timer's mark tells messages apart by their versions
	case c.end == deleted:
		return nil, errInVain // the version that the message makes is that of the deletion
	}
	return outputs, p.remembers(c, f, ch, state, outputs)
}

// storeAll stores what messages have led to, and returns the version of their state. If it is not ok
// it has said what becomes of them.
func (p *Processor) storeAll(ch *commit.Change, tasks []*task, outcomes []lanes.Outcome) (version hlc.Timestamp, ok bool) {
	if len(tasks) == 0 {
		return version, false
	}
	result, err := p.storeChange(p.working, tasks[0], ch)
	switch {
	case err != nil && p.working.Err() != nil:
		clear(outcomes) // they come again
	case err != nil:
		for _, f := range tasks {
			f.leave(err) // it may have been stored
		}
	case result.Outcome == txn.AlreadyDone:
		f := tasks[result.Message]
		f.alone, f.apart, f.mustLoad = true, true, true
	case result.Outcome != txn.Committed:
		tasks[0].alone = true // it has the pauses between conflicts
	}
	return result.Version, err == nil && result.Outcome == txn.Committed
}

// publishAll publishes the outputs of messages that are stored, one message after the other, and then
// confirms the messages together. None is acknowledged before, so after a crash each is replayed.
func (p *Processor) publishAll(tasks []*task, outcomes []lanes.Outcome, version hlc.Timestamp, outputs [][]Message) {
	for _, f := range tasks {
		p.count(f, CountProcessed)
	}
	published := 0
	for i, f := range tasks {
		if err := p.publish(p.working, f, version, outputs[i]); err != nil {
			for _, f := range tasks[i:] {
				f.leave(err)
			}
			if p.working.Err() != nil {
				clear(outcomes[i:]) // they come again
			}
			break
		}
		outcomes[i] = lanes.Outcome{Settled: true}
		published++
	}
	p.confirm(tasks[0].storeKey(), version, tasks[:published]...)
}
