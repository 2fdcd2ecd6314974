package consistent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/lanes"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/record"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/states"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// conflictsBound is how often one attempt starts over because another instance was
// faster. After that it counts as failed, and is made again after a longer pause.
const conflictsBound = 8

// work works on tasks of one lane. It returns false if they end later.
func (p *Processor) work(run *lanes.Run[*task]) (ended bool) {
	first := run.Tasks[0]
	switch {
	case !first.joins() || first.handler.replay && len(run.Tasks) == 1:
		run.Outcomes[0] = p.settle(first)
	case first.handler.replay:
		p.storeTogether(run)
	default:
		return p.startTogether(run)
	}
	return true
}

// Exited implements lanes.Task: t.FailNow in a handler, for example, counts as a panic.
func (f *task) Exited(only bool) {
	if f.alone, f.mustLoad = true, true; only {
		f.refused = &PanicError{Value: "runtime.Goexit was called"}
	}
}

// settle makes one attempt to process a message, or to make a dead letter of it.
func (p *Processor) settle(f *task) lanes.Outcome {
	ctx := p.working
	if f.refused == nil {
		err := p.tryOnce(ctx, f)
		if err == nil {
			return lanes.Outcome{Settled: true}
		}
		if ctx.Err() != nil {
			return lanes.Outcome{}
		}
		next := judge(err)
		if next == retryBounded {
			if f.calls++; f.calls >= p.o.attempts {
				next = giveUp
			}
		}
		switch next {
		case stopAll:
			p.fail(fmt.Errorf("%w: %w", ErrUnsupported, err))
			return lanes.Outcome{}
		case waitAndRetry, retryBounded:
			p.log(f).Warn("a message could not be processed, trying again", "error", err)
			p.count(f, CountRetry)
			aside := next == retryBounded || errors.Is(err, client.ErrQuotaExceeded) || errors.Is(err, client.ErrQueueFull)
			return lanes.Outcome{Again: f.pause.Take(), Aside: aside}
		}
		f.refused, f.pause = err, p.newPause()
	}
	if err := p.sendDeadLetter(ctx, f); err != nil {
		p.log(f).Error("a dead letter cannot be published, trying again", "dead_letter_topic", f.handler.deadLetter, "error", err)
		return lanes.Outcome{Again: f.pause.Take()}
	}
	return lanes.Outcome{Settled: true}
}

// tryOnce makes one attempt, with the middleware around it.
func (p *Processor) tryOnce(ctx context.Context, f *task) error {
	if p.attempt == nil {
		return p.process(ctx, f)
	}
	return guarded(func() error { return p.attempt(context.WithValue(ctx, taskKey{}, f), &f.Incoming) })
}

// taskKey finds the task in the context of an attempt. Middleware may pass on another
// Incoming, but cannot change which message is processed.
type taskKey struct{}

// process makes one attempt, on the path of the handler.
func (p *Processor) process(ctx context.Context, f *task) error {
	if f.handler.replay {
		return p.store(ctx, f)
	}
	return p.transact(ctx, f)
}

var conflictPause = lanes.Pause{Next: time.Millisecond, Longest: 100 * time.Millisecond}

func conflictError(f *task) error {
	return fmt.Errorf("the state of key %q was changed by other instances %d times in a row", f.Key, conflictsBound)
}

// confirmed ends the processing of a duplicate whose outputs were published.
func (p *Processor) confirmed(f *task, known *client.LoadResult) error {
	if f.digest.IsOther(known.Captured) {
		return ErrIdentityReused
	}
	p.count(f, CountConfirmed)
	return nil
}

// replayed processes a duplicate that was stored, and whose outputs may not all be published.
func (p *Processor) replayed(ctx context.Context, f *task, key string, known *client.LoadResult) error {
	outputs, err := p.replay(ctx, f, known)
	if err != nil {
		return err
	}
	p.count(f, CountReplayed)
	return p.finish(ctx, f, key, known.Version, outputs)
}

// isNew tells whether a message is to be handled, by what LOAD says. If not, its processing has
// ended, with err: it is a duplicate, or so old that the store may have forgotten it.
func (p *Processor) isNew(ctx context.Context, f *task, key string, known *client.LoadResult) (isNew bool, err error) {
	switch known.Status {
	case client.Confirmed:
		return false, p.confirmed(f, known)
	case client.Duplicate:
		return false, p.replayed(ctx, f, key, known)
	}
	if err = p.tooOld(f.Message); errors.Is(err, ErrTimeAhead) && p.o.now == nil { // or this machine's clock is behind
		p.clock.Ask(ctx, p.conn, storeKey(p.handlers[0], "holdfast-clock"), p.o.timeout)
		err = p.tooOld(f.Message)
	}
	return err == nil, err
}

// store makes one attempt on the state-based path: load, handle, store, publish, confirm.
func (p *Processor) store(ctx context.Context, f *task) error {
	key := f.storeKey()
	conflict := conflictPause
	for range conflictsBound {
		known, guessed, err := p.guessOrLoad(ctx, f, key)
		if err != nil {
			return err
		}
		if isNew, err := p.isNew(ctx, f, key, known); !isNew {
			return err
		}
		outputs, stored, err := p.commitState(ctx, f, key, known, &guessed)
		switch {
		case err != nil && guessed:
			// The message may be a duplicate, which was handled on a state that is not
			// its own. The next round asks the store.
			p.states.Drop(key)
		case err != nil:
			return err
		case stored.Outcome == txn.Committed:
			p.count(f, CountProcessed)
			return p.finish(ctx, f, key, stored.Version, outputs)
		case stored.Outcome == txn.ConditionFailed:
			if !conflict.Rest(p.draining, p.working.Done()) {
				return errStopped
			}
		}
		// AlreadyDone: an earlier attempt, or another instance, has stored it. The LOAD
		// of the next round returns that attempt's state and captured values.
	}
	return conflictError(f)
}

// guessOrLoad returns the state to process the message on: that which is at hand, and then guessed is
// true, because this message may be a duplicate; or what LOAD returns.
func (p *Processor) guessOrLoad(ctx context.Context, f *task, key string) (known *client.LoadResult, guessed bool, err error) {
	again := f.mustLoad // perhaps an earlier attempt has stored it
	f.mustLoad, f.state = true, decoded.Value{}
	if s, ok := p.states.Get(key); ok && !again && p.tooOld(f.Message) == nil { // else it matters at once whether it is a duplicate
		f.state = s.Decoded
		return &client.LoadResult{State: s.Value, Version: s.Version}, true, nil
	}
	p.count(f, CountLoaded)
	known, err = p.load(ctx, f, key)
	return known, false, err
}

func (p *Processor) load(ctx context.Context, f *task, key string) (*client.LoadResult, error) {
	known := &client.LoadResult{}
	return known, p.bounded(ctx, f, StepLoad, func(ctx context.Context) (err error) {
		*known, err = p.conn.Load(ctx, key, f.MessageID)
		return err
	})
}

var errStopped = errors.New("the processor is stopping")

// errInVain ends a run of a handler on a state that was guessed: the next round asks the
// store.
var errInVain = errors.New("the message is loaded again")

// checkGuess asks the store whether a message is new and the state that it is processed on
// is the key's: what comes from outside is taken for a new message only.
func (p *Processor) checkGuess(ctx context.Context, f *task, key string, guess hlc.Timestamp) error {
	now, err := p.load(ctx, f, key)
	if err != nil || now.Status != client.NewMessage || now.Version != guess {
		return errInVain
	}
	return nil
}

// commitState handles a new message and stores the result, which is at hand from then on. guessed is
// false afterwards if the store was asked whether the message is new.
func (p *Processor) commitState(ctx context.Context, f *task, key string, known *client.LoadResult, guessed *bool) (outputs []Message, stored TxnResult, err error) {
	ch := p.begin(f, states.State{Value: known.State, Version: known.Version, Decoded: f.state})
	var isNew func() error
	if *guessed {
		isNew = func() error { return p.checkGuess(ctx, f, key, known.Version) }
	}
	c := p.newRun(ctx, f, ch.Decoded, isNew)
	state, outputs, err := p.handle(c, f, ch.Request.State)
	*guessed = c.isNew != nil || c.inVain != nil
	if err == nil {
		err = p.remembers(c, f, &ch, state, outputs)
	}
	if err != nil {
		return nil, stored, err
	}
	stored, err = p.storeChange(ctx, f, &ch)
	return outputs, stored, err
}

// storeChange stores what a message, or several of its key, have led to.
func (p *Processor) storeChange(ctx context.Context, f *task, ch *commit.Change) (stored TxnResult, err error) {
	err = p.timed(f, StepStore, func() (err error) {
		stored, err = p.stores.Store(ctx, ch, f.apart)
		return err
	})
	p.committed(f, ch, &stored, err)
	return stored, err
}

// remembers adds to a STORE what a message has led to.
func (p *Processor) remembers(c *Context, f *task, ch *commit.Change, state []byte, outputs []Message) error {
	r := record.New(c.version, c.now, c.captured, f.digest, outputs)
	if len(ch.Messages) > 0 {
		r.Before = ch.Request.State // which LOAD does not know
	}
	next := c.next(state)
	next.Message.Digest = r.Encode()
	if err := ch.Remember(next, p.conn.MaxPacketSize()); err != nil {
		return fmt.Errorf("state and captured values of key %q: %w", f.Key, err)
	}
	return nil
}

// replay handles a duplicate on the state and values of the first processing, and checks
// that the outputs are the same.
func (p *Processor) replay(ctx context.Context, f *task, known *client.LoadResult) ([]Message, error) {
	first, err := record.Decode(known.Captured)
	if err != nil {
		return nil, Terminal(err)
	}
	if first.Input != f.digest {
		return nil, ErrIdentityReused
	}
	c := p.newContext(ctx, f)
	c.now, c.version, c.captured, c.replay = first.Now, first.Version, first.Captured, true
	_, outputs, err := p.handle(c, f, first.StateBefore(known.State))
	var fromHandler *handlerError
	switch {
	case c.fault != "":
	case errors.As(err, &fromHandler):
		return nil, err // the handler succeeded before, so try again
	case err != nil:
		c.fault = fmt.Sprintf("it failed (%v); the first time, it did not", err)
	default:
		c.fault = first.Difference(record.New(c.version, c.now, c.captured, f.digest, outputs))
	}
	if c.fault != "" {
		p.count(f, CountNonDeterministic)
		return nil, &NonDeterministicError{Handler: f.Handler, Key: f.Key, MessageID: f.MessageID, Difference: c.fault}
	}
	return outputs, nil
}

// handle runs the handler, and completes and checks its outputs.
func (p *Processor) handle(c *Context, f *task, before []byte) (state []byte, outputs []Message, err error) {
	m := f.decoded
	if c.replay || f.handled { // decode again: the handler may have changed the message
		if m, err = f.handler.decode(f.Message); err != nil {
			return nil, nil, err
		}
	}
	f.handled = true
	err = p.timed(f, StepHandle, func() error {
		return guarded(func() (err error) {
			state, outputs, err = f.handler.run(c, before, m)
			return err
		})
	})
	if err == nil {
		err = c.inVain // which the handler need not have returned
	}
	if err != nil {
		return nil, nil, err
	}
	outputs, err = p.complete(c, f, outputs)
	return state, outputs, err
}

// finish publishes the outputs of a message, and confirms it.
func (p *Processor) finish(ctx context.Context, f *task, key string, version hlc.Timestamp, outputs []Message) error {
	err := p.publish(ctx, f, version, outputs)
	if err == nil {
		p.confirm(key, version, f)
	}
	return err
}

// publish publishes the outputs of a message that is stored, and sets and cancels its timers.
func (p *Processor) publish(ctx context.Context, f *task, version hlc.Timestamp, outputs []Message) error {
	if len(outputs) == 0 {
		return nil
	}
	return p.timed(f, StepPublish, func() error {
		return commit.Publish(ctx, p.conn, p.o.qualified("holdfast-timers")+"/", version, p.remember, p.o.timeout, outputs)
	})
}

// confirm sends DONE of messages of a key whose outputs are published, without waiting for its
// answer: if the DONE is lost, a duplicate is replayed and has no other effect.
func (p *Processor) confirm(key string, version hlc.Timestamp, of ...*task) {
	done := make([]commit.Done, 0, len(of))
	for _, f := range of {
		done = append(done, commit.Done{ID: f.MessageID, Version: version, Digest: f.digest.Confirmed()})
	}
	p.stores.Done(key, done, func(err error) {
		p.o.logger.Debug("messages are not confirmed; what is remembered of them stays for a while", "processor", p.o.name, "key", key, "messages", len(done), "error", err)
	})
}

// bounded is timed with the timeout of a request.
func (p *Processor) bounded(ctx context.Context, f *task, s Step, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.timeout)
	defer cancel()
	return p.timed(f, s, func() error { return do(ctx) })
}
