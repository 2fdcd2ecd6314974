package client_test

import (
	"context"
	"fmt"
	"time"

	"holdfast/client"
)

// A counter that many clients may raise at once: read, and write only if
// nobody else has written since.
func ExampleIfVersion() {
	increment := func(ctx context.Context, c *client.Client) error {
		for {
			v, _, err := c.Get(ctx, "counter")
			if err != nil {
				return err
			}
			var n int
			_, _ = fmt.Sscan(string(v.Bytes), &n)
			// The version of a missing key is zero, which means "still missing".
			_, applied, err := c.Set(ctx, "counter", fmt.Append(nil, n+1), client.IfVersion(v.Version))
			if err != nil || applied {
				return err
			}
		}
	}
	_ = increment
}

// A lock that frees itself, and whose holder knows when it was lost.
func ExampleNX() {
	ctx := context.Background()
	c, err := client.Dial(ctx, "localhost:1883")
	if err != nil {
		return
	}
	defer c.Close()
	token, held, err := c.Set(ctx, "lock", []byte("me"), client.NX(), client.Expiry(30*time.Second))
	if err != nil || !held {
		return
	}
	// The lock's version fences the work: after another holder's write with a
	// later token, ours is refused.
	_, _, err = c.Set(ctx, "result", []byte("done"), client.Fencing(token))
	fmt.Println(err)
}

// Get after Watch misses no change.
func ExampleClient_Watch() {
	ctx := context.Background()
	c, err := client.Dial(ctx, "localhost:1883")
	if err != nil {
		return
	}
	defer c.Close()
	w, err := c.Watch(ctx, "setting")
	if err != nil {
		return
	}
	v, found, err := c.Get(ctx, "setting")
	fmt.Println(string(v.Bytes), found, err)
	for e := range w.Events() {
		fmt.Println(e.Kind, string(e.Value), e.Version)
	}
	fmt.Println("ended:", w.Err())
}
