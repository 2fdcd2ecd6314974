package lease_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"holdfast/client"
	"holdfast/client/lease"
)

// Work under a lock: it stops when the lock is lost, and its writes are refused
// if it doesn't.
func ExampleLock() {
	ctx := context.Background()
	c, err := client.Dial(ctx, "localhost:1883")
	if err != nil {
		return
	}
	defer c.Close()
	lock, err := lease.NewLock(c, "locks/printer", lease.WithTTL(30*time.Second))
	if err != nil {
		return
	}

	held, err := lock.Lock(ctx) // waits as long as ctx allows
	if err != nil {
		return
	}
	defer held.Release(context.Background())
	work, cancel := held.Bind(ctx)
	defer cancel()
	_, _, err = c.Set(work, "printer/job", []byte("page 1"), held.Fencing())
	fmt.Println(err)
}

// A counter that no number of processes gets wrong, not even if one of them
// comes back from a long pause in the middle.
func ExampleLock_Edit() {
	increment := func(ctx context.Context, lock *lease.Lock) error {
		return lock.Edit(ctx, "counter", func(_ context.Context, old []byte, _ bool) (updated []byte, keep bool, err error) {
			var n int
			_, _ = fmt.Sscan(string(old), &n)
			return fmt.Append(nil, n+1), true, nil
		})
	}
	_ = increment
}

// One process of many does the clearing up.
func ExampleLeader() {
	run := func(ctx context.Context, c *client.Client) error {
		leader, err := lease.NewLeader(c, "leaders/cleaner")
		if err != nil {
			return err
		}
		return leader.Run(ctx, func(ctx context.Context, held *lease.Lease) error {
			log.Print("leading with token ", held.Token())
			tick := time.NewTicker(time.Minute)
			defer tick.Stop()
			for {
				select {
				case <-tick.C: // clear up, with held.Fencing() on each write
				case <-ctx.Done():
					return ctx.Err() // another one may lead soon
				}
			}
		})
	}
	_ = run
}

// A dashboard's view: who holds it, from now on.
func ExampleObserve() {
	show := func(ctx context.Context, c *client.Client) error {
		for change, err := range lease.Observe(ctx, c, "locks/printer") {
			if err != nil {
				return err
			}
			fmt.Println(change.Held, change.Holder)
		}
		return nil
	}
	_ = show
}
