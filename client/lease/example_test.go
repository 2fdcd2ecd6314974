package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/lease"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// Work under a lock: it stops when the lock is lost, and its writes are refused
// if it doesn't.
func ExampleLock() {
	ctx := context.Background()
	c, closeClient := exampleClient()
	defer closeClient()
	lock, err := lease.NewLock(c, "locks/printer", lease.WithTTL(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}

	held, err := lock.Lock(ctx) // waits as long as ctx allows
	if err != nil {
		log.Fatal(err)
	}
	defer held.Release(context.Background())
	work, cancel := held.Bind(ctx)
	defer cancel()
	_, err = c.Set(work, "printer/job", []byte("page 1"), held.Fencing())
	fmt.Println(err)
	// Output: <nil>
}

// One attempt, without waiting.
func ExampleAcquire() {
	ctx := context.Background()
	c, closeClient := exampleClient()
	defer closeClient()
	first, err := lease.Acquire(ctx, c, "locks/door", lease.WithHolder("ann"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = lease.Acquire(ctx, c, "locks/door", lease.WithHolder("bob"))
	fmt.Println(errors.Is(err, lease.ErrTaken))
	fmt.Println(lease.Holder(ctx, c, "locks/door"))
	fmt.Println(first.Release(ctx))
	// Output:
	// true
	// ann true <nil>
	// <nil>
}

// A counter that no number of processes gets wrong, not even if one of them
// comes back from a long pause in the middle.
func ExampleLock_Edit() {
	ctx := context.Background()
	c, closeClient := exampleClient()
	defer closeClient()
	lock, err := lease.NewLock(c, "locks/counter")
	if err != nil {
		log.Fatal(err)
	}
	increment := func(_ context.Context, old []byte, _ bool) (updated []byte, keep bool, err error) {
		var n int
		_, _ = fmt.Sscan(string(old), &n)
		return fmt.Append(nil, n+1), true, nil
	}
	for range 3 {
		if err := lock.Edit(ctx, "counter", increment); err != nil {
			log.Fatal(err)
		}
	}
	v, _, err := c.Get(ctx, "counter")
	fmt.Println(string(v.Bytes), err)
	// Output: 3 <nil>
}

// One process of many does the clearing up.
func ExampleLeader() {
	c, closeClient := exampleClient()
	defer closeClient()
	leader, err := lease.NewLeader(c, "leaders/cleaner")
	if err != nil {
		log.Fatal(err)
	}
	err = leader.Run(context.Background(), func(ctx context.Context, held *lease.Lease) error {
		if ctx.Err() != nil {
			return ctx.Err() // another process may lead soon
		}
		_, err := c.Set(ctx, "cleaned", []byte("yes"), held.Fencing())
		return err
	})
	fmt.Println(err)
	// Output: <nil>
}

// A dashboard's view: who holds it, from now on.
func ExampleObserve() {
	ctx := context.Background()
	c, closeClient := exampleClient()
	defer closeClient()
	held, err := lease.Acquire(ctx, c, "locks/printer", lease.WithHolder("ann"))
	if err != nil {
		log.Fatal(err)
	}
	for change, err := range lease.Observe(ctx, c, "locks/printer") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(change.Held, change.Holder)
		if !change.Held {
			break
		}
		_ = held.Release(ctx)
	}
	// Output:
	// true ann
	// false
}

// exampleClient is a client of a server of its own; closeClient closes it.
func exampleClient() (_ *client.Client, closeClient func()) {
	c, err := client.Dial(context.Background(), testserver.ForExample())
	if err != nil {
		log.Fatal(err)
	}
	return c, func() { _ = c.Close() }
}
