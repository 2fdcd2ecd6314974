package consistent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/keep"
)

// askKeep finds out for how long the server remembers messages, and whether it has transactions, if
// a handler needs them.
func (p *Processor) askKeep(ctx context.Context) (err error) {
	p.needs = keep.Needs{Keep: p.o.keep, Skew: p.o.skew, Session: p.conn.SessionExpiry(), Log: p.o.logger.With("processor", p.o.name)}
	transacts := slices.ContainsFunc(p.handlers, func(h *handler) bool { return !h.replay })
	p.remember, err = p.needs.Ask(ctx, p.conn, storeKey(p.handlers[0], "holdfast-keep"), transacts, p.o.timeout, p.newPause())
	if errors.Is(err, client.ErrUnknownCommand) {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return err
}

// checkKeep ends Run if the server has remembered a message for too short a time; 0: as asked. It may
// have been started again, with another maximum.
func (p *Processor) checkKeep(granted time.Duration) {
	if p.needs.Short(granted) {
		_, err := p.needs.Granted(granted)
		p.fail(err)
	}
}
