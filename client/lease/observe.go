package lease

import (
	"context"
	"iter"

	"holdfast/client"
)

// Change is who holds a lease from now on.
type Change struct {
	Held   bool
	Holder string // empty unless Held
}

// Observe tells who holds a lease: now, and each time that changes, until ctx
// ends, the client is closed or the loop is left. Renewals are no change. After
// a lost connection some changes in between may be missing, never the last.
//
// An error is the last thing that it yields; the end of ctx is one.
func Observe(ctx context.Context, c *client.Client, name string) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		w, err := c.Watch(ctx, name)
		if err != nil {
			yield(Change{}, err)
			return
		}
		defer w.Close()
		v, held, err := c.Get(ctx, name)
		if err != nil {
			yield(Change{}, err)
			return
		}
		now := Change{Held: held, Holder: string(v.Bytes)}
		if !yield(now, nil) {
			return
		}
		for e := range w.Events() {
			if !e.Version.IsZero() && e.Version.Compare(v.Version) <= 0 {
				continue // the Get has seen it
			}
			next := Change{Held: e.Kind == client.KeySet, Holder: string(e.Value)}
			if next == now {
				continue
			}
			if now = next; !yield(now, nil) {
				return
			}
		}
		if err := w.Err(); err != nil {
			yield(Change{}, err)
		}
	}
}
