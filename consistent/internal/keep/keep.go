// Package keep finds out for how long a server remembers messages, and judges whether that is long
// enough for a processor. It processes no message.
package keep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/commit"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/lanes"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/stores"
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

// ErrTooShort: the server remembers messages for too short a time.
var ErrTooShort = errors.New("the server remembers messages for a shorter time than the processor needs")

// Needs are those of a processor.
type Needs struct {
	Keep, Skew time.Duration // of WithKeep and WithMaxSkew
	Session    time.Duration // for how long the server keeps the session
	Log        *slog.Logger
}

// Longest is for how long the server is to remember messages.
func (n *Needs) Longest() time.Duration { return max(n.Keep, n.Session) + n.Skew }

// Conn asks a server.
type Conn interface {
	stores.Conn
	ClockAhead() time.Duration
}

// Ask finds out whether the server remembers messages for as long as is needed, and returns for how
// long it does. It asks with a STORE of key on the version that no key has: that changes nothing. In
// the same way it finds out whether the server has transactions, if they are needed. It tries again,
// after the pauses, until ctx ends; then the error is that of ctx. client.ErrUnknownCommand means
// that the server lacks what is needed.
func (n *Needs) Ask(ctx context.Context, conn Conn, key string, transacts bool, timeout time.Duration, pause lanes.Pause) (time.Duration, error) {
	if n.Session < n.Keep {
		n.Log.Warn("messages are remembered for longer than the server keeps the session: what comes while this instance is away for longer than the session is lost; see client.WithSessionExpiry",
			"session_expiry", n.Session, "keep", n.Keep)
	}
	never := hlc.Timestamp{Wall: 1, Node: "none"}
	for {
		var r client.StoreResult
		err := func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			if transacts {
				if _, err := conn.Transact(ctx, commit.Request{Key: key, Messages: []commit.Message{{ID: "keep"}}, Version: never, Keep: n.Longest()}); err != nil {
					return err
				}
			}
			r, err = conn.Store(ctx, stores.StoreRequest{Key: key, MessageID: "keep", Version: never, Keep: n.Longest()})
			return err
		}()
		switch {
		case err == nil:
			if ahead := conn.ClockAhead(); ahead > 0 {
				n.Log.Error("this machine's clock is ahead of the server's, and is corrected by the difference: set it right", "ahead", ahead)
			}
			if r.Keep == 0 {
				return n.Longest(), nil
			}
			return n.Granted(r.Keep)
		case errors.Is(err, client.ErrUnknownCommand):
			return 0, err
		case errors.Is(err, client.ErrNotAuthorized), errors.Is(err, client.ErrClosed):
			return 0, fmt.Errorf("asking for how long the server remembers messages: %w", err)
		}
		n.Log.Warn("the server does not say for how long it remembers messages, trying again", "error", err)
		if !pause.Rest(ctx.Done(), nil) {
			return 0, ctx.Err()
		}
	}
}

// Granted judges the time that the server remembers messages for, which is not the one that was
// asked for, and returns it unless the error is ErrTooShort.
func (n *Needs) Granted(keep time.Duration) (time.Duration, error) {
	if n.Short(keep) {
		return 0, fmt.Errorf("%w: it grants %v, and %v are needed (WithKeep %v and WithMaxSkew %v); give less, or set the server's --max-remember", ErrTooShort, keep, n.Keep+n.Skew, n.Keep, n.Skew)
	}
	if keep < n.Longest() {
		n.Log.Warn("the server remembers messages for a shorter time than it keeps the session: outputs of an instance that is away for longer than that are published twice, or are dead letters",
			"remembered_for", keep, "session_expiry", n.Session)
	}
	return keep, nil
}

// Short tells whether a time that was granted is too short; 0: as asked.
func (n *Needs) Short(keep time.Duration) bool { return keep != 0 && keep < n.Keep+n.Skew }
