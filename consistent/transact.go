package consistent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/backlog"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/lanes"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/states"
)

// The transactional path
//
// A handler without the option Replay runs on the state that is at hand, and everything that it
// leads to is one transaction: the condition that the key still has the version of that state,
// ONCE for the message, the new state, the outputs, and the acknowledgement of the message.
//
//	state at hand ──► handle ──► TXN ──┬─ committed
//	     ▲   ▲                         ├─ condition failed: the reply has the state; again
//	     │   └─────────────────────────┘
//	     └─ LOAD ◄──────────────────────── done already, or the handler failed on this state
//
// A duplicate is handled in vain: the transaction does nothing, and LOAD says what became of the
// message. As a rule, that it is done. But the program may have used the state-based path before,
// and have stopped between the STORE of the message and its outputs: then LOAD says "stored", and
// the message is replayed as that path does.
//
// Messages that wait in one lane share a transaction, each with its ONCE. Whatever goes wrong
// with that, changes nothing, and the message that it is about is processed alone the next time.
// While the transaction is under way no goroutine waits for it: the one that gets the reply says
// what became of the messages. A message that is processed alone has a goroutine until its end, so
// that it can be loaded, and tried again.

// errAlone ends a run of a handler on a message that shares a transaction with others of its key.
// The handler takes values from outside, which is for new messages only, or on the state-based path it
// orders timers: its messages are processed one by one from then on.
var errAlone = errors.New("the message is to be processed alone")

// partBound is for how much of a packet the messages of a transaction may take: a half.
const partBound = 2

// extend handles a message on the state that the change leads to so far, and adds what comes of it.
func (p *Processor) extend(ctx context.Context, ch *commit.Change, f *task, isNew func() error) error {
	c := p.newRun(ctx, f, ch.Decoded, isNew)
	state, outputs, err := p.handle(c, f, ch.Request.State)
	if err != nil {
		return err
	}
	next := c.next(state)
	next.Message.Digest, next.Outputs = f.digest.Confirmed(), outputs
	if err := ch.Extend(next, p.conn.MaxPacketSize()); err != nil {
		return fmt.Errorf("state and outputs of key %q: %w", f.Key, err)
	}
	for _, a := range p.lanes.Acks(f) {
		if a := a.(*backlog.Entry); a.CanSettle() {
			ch.Acknowledge(a.Deliveries())
		}
	}
	return nil
}

// begin begins a change of the key of a message, on its state, which handlers get as a copy.
func (p *Processor) begin(f *task, s states.State) commit.Change {
	return commit.Change{Request: TxnRequest{Key: f.storeKey(), Version: s.Version, State: bytes.Clone(s.Value), Keep: p.remember}, Decoded: s.Decoded}
}

// commit sends the transaction of a message, and waits for what comes of it.
func (p *Processor) commit(ctx context.Context, f *task, ch *commit.Change) (result TxnResult, err error) {
	if p.group != nil && !f.apart {
		err = p.timed(f, StepCommit, func() (err error) {
			result, err = p.group.Commit(ctx, ch) // which bounds each of its requests
			return err
		})
	} else {
		err = p.bounded(ctx, f, StepCommit, func(ctx context.Context) (err error) {
			result, err = p.conn.Transact(ctx, ch.Request)
			return err
		})
	}
	p.committed(f, ch, &result, err)
	return result, err
}

// committed keeps the state that the transaction of messages of a key has led to, or that it has
// found, at hand.
func (p *Processor) committed(f *task, ch *commit.Change, result *TxnResult, err error) {
	key := ch.Request.Key
	f.apart = err != nil || result.Outcome != txn.Committed // it would have others refused again
	switch {
	case err != nil, result.Outcome == txn.AlreadyDone && ch.Open: // perhaps by another instance
		p.states.Drop(key)
	case result.Outcome == txn.Committed && ch.Request.Delete:
		p.keepState(f, states.State{})
	case result.Outcome == txn.Committed:
		p.keepState(f, states.State{Value: ch.Request.State, Version: result.Version, Decoded: ch.Decoded})
	case result.Outcome == txn.ConditionFailed:
		p.count(f, CountConflict)
		if ch.Open || result.State == nil && !result.Version.IsZero() {
			p.states.Drop(key) // STORE does not say what the key has, or that is too large for the reply
			break
		}
		p.keepState(f, states.State{Value: result.State, Version: result.Version})
	}
	if err == nil && result.Outcome == txn.Committed {
		p.clock.Saw(result.Version)
		p.checkKeep(result.Keep)
	}
}

func (p *Processor) keepState(f *task, s states.State) {
	for range p.states.Put(f.storeKey(), s) {
		p.count(f, CountEvicted)
	}
}

// transact processes one message by a transaction.
func (p *Processor) transact(ctx context.Context, f *task) error {
	key := f.storeKey()
	conflict := conflictPause
	mustLoad := f.mustLoad || p.tooOld(f.Message) != nil // then it matters at once whether it is a duplicate
	f.mustLoad = false
	for range conflictsBound {
		state, guessed := p.states.Get(key)
		if guessed = guessed && !mustLoad; !guessed {
			known, err := p.load(ctx, f, key)
			if err != nil {
				return err
			}
			if isNew, err := p.isNew(ctx, f, key, known); !isNew {
				return err
			}
			p.count(f, CountLoaded)
			state = states.State{Value: known.State, Version: known.Version}
		}
		change := p.begin(f, state)
		ch := &change
		var isNew func() error
		if guessed {
			isNew = func() error { return p.checkGuess(ctx, f, key, state.Version) }
		}
		if err := p.extend(ctx, ch, f, isNew); err != nil && guessed {
			// The message may be a duplicate, which was handled on a state that is not its own,
			// or takes values from outside, which is for new ones only.
			mustLoad = true
			continue
		} else if err != nil {
			return err
		}
		result, err := p.commit(ctx, f, ch)
		switch {
		case err != nil:
			return err
		case result.Outcome == txn.Committed:
			p.count(f, CountProcessed)
			return nil
		case result.Outcome == txn.AlreadyDone:
			mustLoad = true
		default:
			mustLoad = false
			if !conflict.Rest(p.draining, p.working.Done()) {
				return errStopped
			}
		}
	}
	return conflictError(f)
}

// change is a transaction of messages of one key that is under way. It implements commit.Waiter.
type change struct {
	commit.Change
	p     *Processor
	run   *lanes.Run[*task]
	tasks int // as many of run have a part in it
	start time.Time
}

// startTogether handles messages of one key, and begins one transaction of them, as far as that
// goes. It returns true if there is none to wait for.
func (p *Processor) startTogether(run *lanes.Run[*task]) (ended bool) {
	for i := range run.Outcomes {
		run.Outcomes[i].Back = true
	}
	first := run.Tasks[0]
	state, atHand := p.states.Get(first.storeKey())
	if !atHand {
		first.alone = true // it loads the state
		return true
	}
	ch := &change{Change: p.begin(first, state), p: p, run: run}
	for _, f := range run.Tasks {
		n, before := ch.tasks, ch.Operations()
		if n > 0 && (before+before/n > p.operations.Most() || partBound*ch.Size > int64(p.conn.MaxPacketSize()) && p.conn.MaxPacketSize() > 0) {
			break // the next one would hardly have room
		}
		if err := p.extend(p.working, &ch.Change, f, func() error { return errAlone }); err != nil {
			f.leave(err)
			break
		}
		ch.tasks++
	}
	if ch.tasks == 0 {
		return true
	}
	if ch.start = time.Now(); p.group == nil || first.apart {
		ctx, cancel := context.WithTimeout(p.working, p.o.timeout)
		ch.end(p.conn.Transact(ctx, ch.Request))
		cancel()
		return true
	}
	p.group.Start(&ch.Change, ch)
	return false
}

// Ended implements commit.Waiter.
func (ch *change) Ended(result TxnResult, err error) {
	ch.end(result, err)
	ch.run.Finish()
}

// end says what becomes of the messages.
func (ch *change) end(result TxnResult, err error) {
	p, tasks, outcomes := ch.p, ch.run.Tasks[:ch.tasks], ch.run.Outcomes
	first := tasks[0]
	p.observe(first, StepCommit, ch.start)
	p.committed(first, &ch.Change, &result, err)
	switch {
	case p.working.Err() != nil && err != nil:
		clear(outcomes) // they come again
	case err != nil:
		if n := ch.Operations(); p.operations.Learn(err, n) {
			p.o.logger.Info("the server allows fewer operations in a transaction; messages of a key share smaller ones", "processor", p.o.name, "refused", n)
		}
		for _, f := range tasks {
			f.alone = true
		}
	case result.Outcome == txn.Committed:
		for i, f := range tasks {
			outcomes[i] = lanes.Outcome{Settled: true}
			p.count(f, CountProcessed)
		}
	case result.Outcome == txn.AlreadyDone:
		f := tasks[result.Message]
		f.alone, f.apart, f.mustLoad = true, true, true
	default:
		first.alone = true // it has the pauses between conflicts
	}
}

// Joins implements lanes.Task: messages of one key and on one path share a transaction, unless
// middleware is to see each of them.
func (f *task) Joins(before []*task) bool {
	if !f.joins() || !before[0].joins() || f.handler.replay != before[0].handler.replay {
		return false
	}
	for _, other := range before {
		if other.MessageID == f.MessageID {
			return false // with another payload
		}
	}
	return true
}

func (f *task) joins() bool {
	return f.together && !f.alone && !f.mustLoad && f.refused == nil && f.calls == 0 && !f.handler.alone.Load()
}

// leave has a message processed alone, beginning with LOAD, because of an error.
func (f *task) leave(err error) {
	f.alone, f.mustLoad = true, true // see transact
	if errors.Is(err, errAlone) {
		f.handler.alone.Store(true)
	}
}

// newRun is the context of a first run on a message, which isNew asks the store about; nil: it is new.
func (p *Processor) newRun(ctx context.Context, f *task, state decoded.Value, isNew func() error) *Context {
	c := p.newContext(ctx, f)
	c.now, c.version, c.decoded, c.isNew = p.now().UTC().Round(0), f.handler.version, state, isNew
	return c
}

// next is what the message adds to a change, without what is remembered of it, and its outputs.
func (c *Context) next(state []byte) *commit.Next {
	n := &commit.Next{Message: TxnMessage{ID: c.id}, State: state, Decoded: c.decoded, Delete: c.end == deleted}
	if c.end == expires {
		n.Expiry = c.expiry
	}
	return n
}

func (p *Processor) newContext(ctx context.Context, f *task) *Context {
	return &Context{ctx: ctx, name: f.Handler, handler: f.handler.qualified, key: f.Key, id: f.MessageID, message: f.Message, of: f, p: p}
}
