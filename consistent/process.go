package consistent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// conflictsBound is how often one attempt starts over because another instance was
// faster. After that it counts as failed, and is made again after a longer pause.
const conflictsBound = 8

// settle makes attempts until a message is processed, or is in the dead-letter topic. It
// returns false if the processor had to stop before that: the message must not be
// acknowledged then.
func (p *Processor) settle(f *task) (settled bool) {
	ctx := p.working
	err := f.refused
	pause := pause{p.o.minBackoff, p.o.maxBackoff}
	for refusals := 0; ; {
		if err == nil {
			err = p.attempt(context.WithValue(ctx, taskKey{}, f), &f.Incoming)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		next := judge(err)
		if next == retryBounded {
			if refusals++; refusals >= p.o.attempts {
				next = giveUp
			}
		}
		switch {
		case next == stopAll:
			p.fail(fmt.Errorf("%w: %w", ErrUnsupported, err))
			return false
		case next == giveUp, f.refused != nil:
			return p.sendDeadLetter(ctx, f, err)
		}
		p.log(f).Warn("a message could not be processed, trying again", "error", err)
		p.count(f, CountRetry)
		if !p.rest(&pause) {
			return false
		}
		err = nil
	}
}

// taskKey finds the task in the context of an attempt. Middleware may pass on another
// Incoming, but cannot change which message is processed.
type taskKey struct{}

// process makes one attempt: load, handle, store, publish, confirm.
func (p *Processor) process(ctx context.Context, _ *Incoming) error {
	f := ctx.Value(taskKey{}).(*task)
	key := storeKey(f.handler, f.Key)
	conflict := pause{time.Millisecond, 100 * time.Millisecond}
	for range conflictsBound {
		known, guessed, err := p.load(ctx, f, key)
		if err != nil {
			return err
		}
		switch known.Status {
		case client.Confirmed:
			p.count(f, CountConfirmed)
			return nil
		case client.Duplicate:
			outputs, err := p.replay(ctx, f, known)
			if err != nil {
				return err
			}
			p.count(f, CountReplayed)
			return p.finish(ctx, f, key, outputs)
		}
		outputs, left, outcome, err := p.commit(ctx, f, key, known)
		switch {
		case err != nil && guessed:
			// The message may be a duplicate, which was handled on a state that is not
			// its own. The next round asks the store.
		case err != nil:
			return err
		case outcome == client.Stored:
			p.count(f, CountProcessed)
			if err := p.finish(ctx, f, key, outputs); err != nil {
				return err
			}
			f.from.state = left
			return nil
		case outcome == client.VersionConflict:
			p.count(f, CountConflict)
			if !p.rest(&conflict) {
				return errStopped
			}
		}
		// AlreadyStored: an earlier attempt, or another instance, has stored it. The LOAD
		// of the next round returns that attempt's state and captured values.
	}
	return fmt.Errorf("the state of key %q was changed by other instances %d times in a row", f.Key, conflictsBound)
}

// load returns the state to process the message on. If the message waited behind another
// one, that is what the other one has stored; guessed is true then, because this message
// may be a duplicate. Otherwise it is what LOAD returns.
func (p *Processor) load(ctx context.Context, f *task, key string) (known *client.LoadResult, guessed bool, err error) {
	if known := f.from.state; known != nil {
		f.from.state = nil
		return known, true, nil
	}
	known = &client.LoadResult{}
	err = p.bounded(ctx, f, StepLoad, func(ctx context.Context) (err error) {
		*known, err = p.conn.Load(ctx, key, f.MessageID)
		return err
	})
	return known, false, err
}

var errStopped = errors.New("the processor is stopping")

// commit handles a new message and stores the result. left is what is in the store then.
func (p *Processor) commit(ctx context.Context, f *task, key string, known *client.LoadResult) (outputs []Message, left *client.LoadResult, outcome client.StoreOutcome, err error) {
	c := p.newContext(ctx, f)
	c.now, c.version = p.o.now().UTC().Round(0), f.handler.version
	state, outputs, err := p.handle(c, f, known.State)
	if err != nil {
		return nil, nil, 0, err
	}
	request := StoreRequest{Key: key, State: state, MessageID: f.MessageID, Version: known.Version,
		Captured: newRecord(c, state, outputs).encode(), Keep: p.o.keep}
	if limit := p.conn.MaxPacketSize(); limit > 0 {
		if n := len(state) + len(request.Captured); n > int(limit) {
			return nil, nil, 0, fmt.Errorf("state and captured values of key %q: %w: %d bytes, the limit is %d bytes", f.Key, client.ErrTooLarge, n, limit)
		}
	}
	var result client.StoreResult
	err = p.bounded(ctx, f, StepStore, func(ctx context.Context) (err error) {
		result, err = p.conn.Store(ctx, request)
		return err
	})
	return outputs, &client.LoadResult{State: state, Version: result.Version}, result.Outcome, err
}

// replay handles a duplicate on the state and values of the first processing, and checks
// that the outputs are the same.
func (p *Processor) replay(ctx context.Context, f *task, known *client.LoadResult) ([]Message, error) {
	first, err := decodeRecord(known.Captured)
	if err != nil {
		return nil, Terminal(err)
	}
	c := p.newContext(ctx, f)
	c.now, c.version, c.captured, c.replay = first.now, first.version, first.captured, true
	state, outputs, err := p.handle(c, f, known.State)
	var fromHandler *handlerError
	switch {
	case c.fault != "":
	case errors.As(err, &fromHandler):
		return nil, err // the handler succeeded before, so try again
	case err != nil:
		c.fault = fmt.Sprintf("it failed (%v); the first time, it did not", err)
	default:
		c.fault = first.difference(newRecord(c, state, outputs))
	}
	if c.fault != "" {
		p.count(f, CountNonDeterministic)
		return nil, &NonDeterministicError{Handler: f.Handler, Key: f.Key, MessageID: f.MessageID, Difference: c.fault}
	}
	return outputs, nil
}

func (p *Processor) newContext(ctx context.Context, f *task) *Context {
	return &Context{ctx: ctx, handler: f.Handler, key: f.Key, id: f.MessageID, message: f.Message, logger: p.log(f)}
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
	if err != nil {
		return nil, nil, err
	}
	outputs, err = p.complete(c, outputs)
	return state, outputs, err
}

// finish publishes the outputs, and then sends DONE without waiting for its answer: if
// the DONE is lost, a duplicate is replayed and has no other effect.
func (p *Processor) finish(ctx context.Context, f *task, key string, outputs []Message) error {
	if len(outputs) > 0 {
		err := p.bounded(ctx, f, StepPublish, func(ctx context.Context) error { return p.conn.Publish(ctx, outputs...) })
		if err != nil {
			return err
		}
	}
	p.confirming <- struct{}{}
	p.confirms.Go(func() {
		defer func() { <-p.confirming }()
		ctx, cancel := context.WithTimeout(p.working, p.o.timeout)
		defer cancel()
		if _, err := p.conn.Done(ctx, key, f.MessageID); err != nil {
			p.log(f).Debug("a message is not confirmed; what is remembered of it stays for a while", "error", err)
		}
	})
	return nil
}

// bounded is timed with the timeout of a request.
func (p *Processor) bounded(ctx context.Context, f *task, s Step, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.timeout)
	defer cancel()
	return p.timed(f, s, func() error { return do(ctx) })
}

// pause is the time before the next attempt.
type pause struct{ next, longest time.Duration }

// rest waits for the pause, and doubles it. It returns false if the processor stops.
func (p *Processor) rest(d *pause) bool {
	t := time.NewTimer(d.next/2 + rand.N(d.next/2+1))
	defer t.Stop()
	d.next = min(2*d.next, d.longest)
	select {
	case <-t.C:
		return true
	case <-p.draining:
		return false
	case <-p.working.Done():
		return false
	}
}
