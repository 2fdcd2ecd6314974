package consistent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"holdfast/client"
)

// conflictsBound is how often one attempt starts over because another instance was
// faster. After that it counts as failed, and is made again after a longer pause.
const conflictsBound = 8

// fly gets a message processed, or into the dead-letter topic. It returns false if
// neither was reached before the processor had to stop: the message must not be
// acknowledged then.
func (p *Processor) fly(f *flight) (settled bool) {
	ctx, count := p.working, p.counts[f.handler]
	err := f.refused
	pause := pause{p.o.Retry.First, p.o.Retry.Longest}
	for refusals := 0; ; {
		if err == nil {
			err = p.attempt(context.WithValue(ctx, flightKey{}, f), &f.Incoming)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		next := judge(err)
		if next == retryBounded {
			if refusals++; refusals >= p.o.Retry.Attempts {
				next = giveUp
			}
		}
		switch {
		case next == stopAll:
			p.fail(fmt.Errorf("%w: %w", ErrUnsupported, err))
			return false
		case next == giveUp, f.refused != nil:
			return p.bury(ctx, f, err)
		}
		p.log(f).Warn("a message could not be processed, trying again", "error", err)
		count.retries.Inc()
		if !p.rest(&pause) {
			return false
		}
		err = nil
	}
}

// flightKey finds the flight in the context of an attempt: middleware is free to pass
// another Incoming on, but not to change which message is processed.
type flightKey struct{}

// process makes one attempt: load, handle, store, publish, confirm.
func (p *Processor) process(ctx context.Context, _ *Incoming) error {
	f := ctx.Value(flightKey{}).(*flight)
	count, key := p.counts[f.handler], storeKey(f.handler, f.Key)
	conflict := pause{time.Millisecond, 100 * time.Millisecond}
	for range conflictsBound {
		known, guessed, err := p.look(ctx, f, key)
		if err != nil {
			return err
		}
		switch known.Status {
		case client.Confirmed:
			count.confirmed.Inc()
			return nil
		case client.Duplicate:
			outputs, err := p.replay(ctx, f, known)
			if err != nil {
				return err
			}
			count.duplicates.Inc()
			return p.finish(ctx, f, key, outputs)
		}
		outputs, left, outcome, err := p.commit(ctx, f, key, known)
		switch {
		case err != nil && guessed:
			// A duplicate may have failed on a state that it was never meant for:
			// that says nothing until the store has been asked.
		case err != nil:
			return err
		case outcome == client.Stored:
			count.processed.Inc()
			if err := p.finish(ctx, f, key, outputs); err != nil {
				return err
			}
			f.from.state = left
			return nil
		case outcome == client.VersionConflict:
			count.conflicts.Inc()
			if !p.rest(&conflict) {
				return errStopped
			}
		}
		// AlreadyStored: an earlier try of ours, or another instance. Load says what
		// state that was on, and what it captured.
	}
	return fmt.Errorf("the state of key %q was changed by others %d times in a row", f.Key, conflictsBound)
}

// look finds out what the message is to be processed on: what the message before it has
// left, if it waited behind one (guessed: it may be a duplicate), else what the store says.
func (p *Processor) look(ctx context.Context, f *flight, key string) (known *client.Message, guessed bool, err error) {
	if known := f.from.state; known != nil {
		f.from.state = nil
		return known, true, nil
	}
	known = &client.Message{}
	err = p.bounded(ctx, p.counts[f.handler].load, func(ctx context.Context) (err error) {
		*known, err = p.conn.Load(ctx, key, f.MessageID)
		return err
	})
	return known, false, err
}

var errStopped = errors.New("the processor is stopping")

// commit handles a new message and stores the result. left is what is in the store then.
func (p *Processor) commit(ctx context.Context, f *flight, key string, known *client.Message) (outputs []Message, left *client.Message, outcome client.StoreOutcome, err error) {
	c := p.newContext(ctx, f)
	c.now, c.version = p.o.Clock().UTC().Round(0), f.handler.version
	state, outputs, err := p.handle(c, f, known.State)
	if err != nil {
		return nil, nil, 0, err
	}
	request := StoreRequest{Key: key, State: state, MessageID: f.MessageID, Version: known.Version,
		Context: newRecord(c, state, outputs).encode(), Keep: p.o.Keep}
	if limit := p.conn.MaxPacketSize(); limit > 0 {
		if n := len(state) + len(request.Context); n > int(limit) {
			return nil, nil, 0, fmt.Errorf("state and captured values of key %q: %w: %d bytes, the limit is %d bytes", f.Key, ErrTooLarge, n, limit)
		}
	}
	var result client.StoreResult
	err = p.bounded(ctx, p.counts[f.handler].store, func(ctx context.Context) (err error) {
		result, err = p.conn.Store(ctx, request)
		return err
	})
	return outputs, &client.Message{State: state, Version: result.Version}, result.Outcome, err
}

// replay handles a duplicate as the first processing did, and makes sure that it did.
func (p *Processor) replay(ctx context.Context, f *flight, known *client.Message) ([]Message, error) {
	first, err := decodeRecord(known.Context)
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
		return nil, err // it may be better next time, as it was before
	case err != nil:
		c.fault = fmt.Sprintf("it failed (%v); the first time, it did not", err)
	default:
		c.fault = first.difference(newRecord(c, state, outputs))
	}
	if c.fault != "" {
		p.counts[f.handler].nonDeterministic.Inc()
		return nil, &NonDeterministicError{Handler: f.Handler, Key: f.Key, MessageID: f.MessageID, Difference: c.fault}
	}
	return outputs, nil
}

func (p *Processor) newContext(ctx context.Context, f *flight) *Context {
	return &Context{ctx: ctx, handler: f.Handler, key: f.Key, id: f.MessageID, message: f.Message, logger: p.log(f)}
}

// handle runs the handler, and completes and checks what it wants to send.
func (p *Processor) handle(c *Context, f *flight, before []byte) (state []byte, outputs []Message, err error) {
	m := f.decoded
	if c.replay || f.handled { // the handler may have changed what it got
		if m, err = f.handler.decode(f.Message); err != nil {
			return nil, nil, err
		}
	}
	f.handled = true
	err = timed(p.counts[f.handler].handle, func() error {
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

// finish publishes the outputs, and confirms once they are out. The confirmation
// travels with later traffic: without it a duplicate would be replayed, no more.
func (p *Processor) finish(ctx context.Context, f *flight, key string, outputs []Message) error {
	if len(outputs) > 0 {
		err := p.bounded(ctx, p.counts[f.handler].publish, func(ctx context.Context) error { return p.conn.Publish(ctx, outputs...) })
		if err != nil {
			return err
		}
	}
	p.confirming <- struct{}{}
	p.confirms.Go(func() {
		defer func() { <-p.confirming }()
		ctx, cancel := context.WithTimeout(p.working, p.o.Timeout)
		defer cancel()
		if _, err := p.conn.Done(ctx, key, f.MessageID); err != nil {
			p.log(f).Debug("a message is not confirmed; what is remembered of it stays for a while", "error", err)
		}
	})
	return nil
}

// bounded is timed, with the time that a request may take.
func (p *Processor) bounded(ctx context.Context, o interface{ Observe(float64) }, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.Timeout)
	defer cancel()
	return timed(o, func() error { return f(ctx) })
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
