package consistent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// How long a message must be remembered
//
// Three things decide. A message without CloudEvents time is processed again when it was
// forgotten: WithKeep says when that may be. A message with a time that is older than that
// is refused, if it is new: its duplicate may have been forgotten. The sender's clock may be
// ahead, by WithMaxSkew, and then the message looks younger than it is. And a message that
// was stored by an instance which died before it published stays in the session of that
// instance, at most until the session expires; when it comes, its outputs must still leave,
// so it must be known by then. Hence the longer of WithKeep and the session's expiry, and
// the skew.

// askKeep finds out whether the server remembers messages for as long as is needed. It
// asks with a STORE on the version that no key has: that changes nothing. In the same way it
// finds out whether the server has transactions, if a handler needs them.
func (p *Processor) askKeep(ctx context.Context) error {
	expiry := p.conn.SessionExpiry()
	if expiry < p.o.keep {
		p.o.logger.Warn("messages are remembered for longer than the server keeps the session: what comes while this instance is away for longer than the session is lost; see client.WithSessionExpiry",
			"processor", p.o.name, "session_expiry", expiry, "keep", p.o.keep)
	}
	p.remember = max(p.o.keep, expiry) + p.o.skew
	never := hlc.Timestamp{Wall: 1, Node: "none"}
	key := storeKey(p.handlers[0], "holdfast-keep")
	pause := p.newPause()
	for {
		var r client.StoreResult
		err := func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, p.o.timeout)
			defer cancel()
			if slices.ContainsFunc(p.handlers, func(h *handler) bool { return !h.replay }) {
				if _, err := p.conn.Transact(ctx, TxnRequest{Key: key, Messages: []TxnMessage{{ID: "keep"}}, Version: never, Keep: p.remember}); err != nil {
					return err
				}
			}
			r, err = p.conn.Store(ctx, StoreRequest{Key: key, MessageID: "keep", Version: never, Keep: p.remember})
			return err
		}()
		switch {
		case err == nil:
			p.sayClock()
			if r.Keep == 0 {
				return nil
			}
			return p.granted(r.Keep)
		case errors.Is(err, client.ErrUnknownCommand):
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		case errors.Is(err, client.ErrNotAuthorized), errors.Is(err, client.ErrClosed):
			return fmt.Errorf("asking for how long the server remembers messages: %w", err)
		}
		p.o.logger.Warn("the server does not say for how long it remembers messages, trying again", "processor", p.o.name, "error", err)
		if !pause.Rest(ctx.Done(), nil) {
			return ctx.Err()
		}
	}
}

// sayClock reports a clock that the server has found to be ahead when it was asked.
func (p *Processor) sayClock() {
	if ahead := p.conn.ClockAhead(); ahead > 0 {
		p.o.logger.Error("this machine's clock is ahead of the server's, and is corrected by the difference: set it right", "processor", p.o.name, "ahead", ahead)
	}
}

// granted judges the time that the server remembers messages for, which is not the one
// that was asked for.
func (p *Processor) granted(keep time.Duration) error {
	switch {
	case keep < p.o.keep+p.o.skew:
		return fmt.Errorf("%w: it grants %v, and %v are needed (WithKeep %v and WithMaxSkew %v); give less, or set the server's --max-remember", ErrKeepTooShort, keep, p.o.keep+p.o.skew, p.o.keep, p.o.skew)
	case keep < p.remember:
		p.o.logger.Warn("the server remembers messages for a shorter time than it keeps the session: outputs of an instance that is away for longer than that are published twice, or are dead letters",
			"processor", p.o.name, "remembered_for", keep, "session_expiry", p.conn.SessionExpiry())
		p.remember = keep
	}
	return nil
}

// checkKeep is granted for a message that was stored; 0: as asked. The server may have been
// started again, with another maximum.
func (p *Processor) checkKeep(keep time.Duration) {
	if keep != 0 && keep < p.o.keep+p.o.skew {
		p.fail(p.granted(keep))
	}
}
