package faultrun

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
)

// counting is the sender's session. It counts what is sent, and what a full queue refuses.
type counting struct{ r *run }

func (c *counting) Publish(ctx context.Context, messages ...client.Message) error {
	c.r.summary.Sent += len(messages) // one goroutine sends
	err := c.r.sender.Publish(ctx, messages...)
	if errors.Is(err, client.ErrQuotaExceeded) {
		c.r.summary.QueueFull++
	}
	return err
}

// fill fills the store, calls meanwhile, and empties it of what filled it. Processors that have
// written more than a small part of the store can't store anything longer in between.
func (r *run) fill(meanwhile func()) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var full atomic.Bool
	keys := 0
	for size := 64 << 10; size >= 16; size /= 4 { // up to the last bytes
		var filling sync.WaitGroup
		full.Store(false)
		for !full.Load() && ctx.Err() == nil {
			for range 16 {
				keys++
				key := fmt.Sprint("fill/", keys)
				filling.Go(func() {
					if _, err := r.filler.Set(ctx, key, make([]byte, size), client.RetryWrites()); err != nil {
						full.Store(true)
					}
				})
			}
			filling.Wait()
		}
	}
	r.summary.StoreFull++
	meanwhile()
	for k := range keys {
		for ctx.Err() == nil {
			if _, err := r.filler.Del(ctx, fmt.Sprint("fill/", k+1), client.RetryWrites()); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}
