// Package notice makes the log lines about bounds of the whole store that are reached, or
// nearly: what they say, and when they are due. The engine gives it what it has counted,
// under its lock, and writes the lines without it.
package notice

import (
	"log/slog"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/quota"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Again is how long after a line the next of its kind comes.
const Again = time.Minute

// Book knows when a line was written last. The zero value is ready for use. It has no lock.
type Book struct{ full, nearly time.Duration } // since the start; 0: never

// Line is a line to be written, or none: its zero value.
type Line struct {
	message string
	args    []any
}

// Log writes the line, if there is one.
func (l Line) Log(to *slog.Logger) {
	if l.message != "" {
		to.Warn(l.message, l.args...)
	}
}

// Full is due when a bound of the whole store refuses writes: it names the client that
// holds most of what the bound is about.
func (b *Book) Full(bound statestore.Bound, now time.Duration, l *quota.Ledger) Line {
	switch bound {
	case statestore.MaxKeys, statestore.MaxBytes, statestore.MaxMemory, statestore.MaxRemembered:
	default:
		return Line{}
	}
	if !due(&b.full, now) {
		return Line{}
	}
	args := []any{"setting", bound, "keys", l.Keys, "bytes", l.Bytes, "remembered", l.Remembered.Messages, "remembered_bytes", l.Remembered.Bytes}
	if bound == statestore.MaxRemembered {
		return Line{"the store is full of remembered messages: every STORE, and every TXN with ONCE, is refused until some are forgotten; raise the bound, or lower KEEP", args}
	}
	if most := l.Largest(bound == statestore.MaxKeys); most.ID != "" {
		args = append(args, "client", most.ID, "client_keys", most.Keys, "client_bytes", most.Bytes)
	}
	return Line{"the store is full: writes that make it grow are refused", args}
}

// NearlyFull is due from four fifths of the bytes on that remembered messages may have.
func (b *Book) NearlyFull(now time.Duration, l *quota.Ledger) Line {
	_, _, most := l.Limits()
	if l.Remembered.Bytes < most-most/5 || !due(&b.nearly, now) {
		return Line{}
	}
	return Line{"remembered messages come near their bound, from which on every STORE, and every TXN with ONCE, is refused; raise the bound, or lower KEEP",
		[]any{"setting", statestore.MaxRemembered, "remembered", l.Remembered.Messages, "bytes", l.Remembered.Bytes, "bound", most}}
}

func due(last *time.Duration, now time.Duration) bool {
	now = max(1, now)
	if *last != 0 && now-*last < Again {
		return false
	}
	*last = now
	return true
}
