// Package pipeline has many requests under way at a time and reports their outcomes in
// order, for commands that delete, watch or publish much.
package pipeline

import (
	"context"
	"errors"
	"iter"
)

var ErrInterrupted = errors.New("interrupted")

// Window bounds what is under way at a time.
type Window[T any] struct {
	Items int
	// Bytes and SizeBytes bound items by their size as well: no further one is begun while those
	// under way have Bytes or more. Two more are in memory meanwhile: one that waits to be begun,
	// and one that is being read. SizeBytes nil: no such bound.
	Bytes     int
	SizeBytes func(T) int
}

// Run begins work on items, up to a window at a time, and reports the outcomes in the
// order of the items. After an error, of the items, of begin or of report, or one that
// comes over broken (nil: none does), or an end of ctx, it begins nothing more, waits for
// what is under way, and returns the first.
func Run[T, R any](ctx context.Context, window Window[T], items iter.Seq2[T, error], broken <-chan error, begin func(T) (<-chan R, error), report func(R) error) error {
	given, stop := give(ctx, items)
	defer stop()
	var underWay []begun[R] // oldest first
	bytes := 0              // of what is under way
	var first error
	for interrupted := ctx.Done(); ; {
		next := given
		if first != nil || len(underWay) == window.Items || window.SizeBytes != nil && bytes >= window.Bytes {
			next = nil
		}
		var oldest <-chan R
		if len(underWay) > 0 {
			oldest = underWay[0].outcome
		}
		if next == nil && oldest == nil {
			return first
		}
		var err error
		select {
		case it, more := <-next:
			var outcome <-chan R
			switch {
			case !more:
				given = nil
			case it.err != nil:
				err = it.err
			default:
				if outcome, err = begin(it.value); err == nil {
					b := begun[R]{outcome: outcome}
					if window.SizeBytes != nil {
						b.bytes = window.SizeBytes(it.value)
						bytes += b.bytes
					}
					underWay = append(underWay, b)
				}
			}
		case outcome := <-oldest:
			bytes -= underWay[0].bytes
			underWay = underWay[1:]
			err = report(outcome)
		case <-interrupted:
			interrupted, err = nil, ErrInterrupted
		case err = <-broken:
			broken = nil
		}
		if first == nil {
			first = err
		}
	}
}

// begun is an item that is under way.
type begun[R any] struct {
	outcome <-chan R
	bytes   int
}

type item[T any] struct {
	value T
	err   error
}

// give gives items through a channel: their source, which may be standard input, can
// block for any time, and so can the goroutine that reads it, until the process ends.
func give[T any](ctx context.Context, items iter.Seq2[T, error]) (given chan item[T], stop func()) {
	ctx, stop = context.WithCancel(ctx)
	given = make(chan item[T])
	go func() {
		defer close(given)
		for value, err := range items {
			select {
			case given <- item[T]{value, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return given, stop
}
