package lease

import (
	"context"
	"iter"

	"github.com/holdfast-mqtt/holdfast/client"
)

// Change says which holder has a lease from now on.
type Change struct {
	Held   bool
	Holder string // empty unless Held
}

// Observe yields the holder of a lease: the present one, and each new one, until ctx
// ends, the client is closed or the loop is left. A renewal is no change. After a lost
// connection some changes in between may be missing, but not the last.
//
// The last element is an error, for example that of ctx.
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
		for e, err := range w.Events() {
			if err != nil {
				yield(Change{}, err)
				return
			}
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
	}
}
