package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// Write a key and read it.
func Example() {
	ctx := context.Background()
	c, err := client.Dial(ctx, testserver.ForExample())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Set(ctx, "greeting", []byte("hello")); err != nil {
		log.Fatal(err)
	}
	v, found, err := c.Get(ctx, "greeting")
	fmt.Println(string(v.Bytes), found, err)
	// Output: hello true <nil>
}

// Only the first of two writers gets the key.
func ExampleIfAbsent() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	for _, worker := range []string{"worker 1", "worker 2"} {
		_, err := c.Set(ctx, "job/17", []byte(worker), client.IfAbsent())
		switch {
		case errors.Is(err, client.ErrNotApplied):
			fmt.Println(worker, "is too late")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(worker, "has it")
		}
	}
	// Output:
	// worker 1 has it
	// worker 2 is too late
}

// A lock that frees itself. While its holder sets the value that is there, it stays
// the holder's; its version fences what it protects.
func ExampleIfAbsentOrEqual() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	lock, err := c.Set(ctx, "lock", []byte("me"), client.IfAbsentOrEqual(), client.Expiry(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	// Once another holder has written with a later token, this write is refused.
	_, err = c.Set(ctx, "result", []byte("done"), client.Fencing(lock.Version))
	fmt.Println(err)
	// Output: <nil>
}

// Replace a value that the key is expected to have.
func ExampleIfValue() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	if _, err := c.Set(ctx, "valve/3", []byte("closed")); err != nil {
		log.Fatal(err)
	}
	_, err := c.Set(ctx, "valve/3", []byte("open"), client.IfValue([]byte("closed")))
	fmt.Println(err)
	_, err = c.Set(ctx, "valve/3", []byte("open"), client.IfValue([]byte("closed")))
	fmt.Println(errors.Is(err, client.ErrNotApplied))
	d, err := c.Del(ctx, "valve/3", client.IfValue([]byte("open")))
	fmt.Println(d.Deleted, err)
	// Output:
	// <nil>
	// true
	// true <nil>
}

// A counter that many clients may raise at once: read, and write only if no other
// client has written since.
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
			_, err = c.Set(ctx, "counter", fmt.Append(nil, n+1), client.IfVersion(v.Version))
			if !errors.Is(err, client.ErrNotApplied) {
				return err
			}
		}
	}
	c := exampleClient()
	defer c.Close()
	for range 3 {
		if err := increment(context.Background(), c); err != nil {
			log.Fatal(err)
		}
	}
	v, _, err := c.Get(context.Background(), "counter")
	fmt.Println(string(v.Bytes), err)
	// Output: 3 <nil>
}

// Get after Watch misses no change.
func ExampleClient_Watch() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	w, err := c.Watch(ctx, "setting")
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	v, found, err := c.Get(ctx, "setting")
	fmt.Printf("%q %v %v\n", v.Bytes, found, err)
	_, _ = c.Set(ctx, "setting", []byte("on"))
	_, _ = c.Del(ctx, "setting")
	for e, err := range w.Events() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Kind, string(e.Value))
		if e.Kind == client.KeyDeleted {
			break
		}
	}
	// Output:
	// "" false <nil>
	// set on
	// deleted
}

// Follow all keys that begin with a prefix, also keys that are created later.
func ExampleClient_WatchPattern() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	_, _ = c.Set(ctx, "door/1", []byte("open"))
	w, err := c.WatchPattern(ctx, client.LiteralPattern("door/")+"*", client.Rescan(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	_, _ = c.Set(ctx, "door/1", []byte("closed"))
	e := <-w.Chan()
	fmt.Println(e.Kind, e.Key, string(e.Value), e.Gap)
	_, _ = c.Set(ctx, "door/2", []byte("open"))
	e = <-w.Chan()
	fmt.Println(e.Kind, e.Key, string(e.Value), e.Gap) // its earlier values, if it had any, are unknown
	// Output:
	// set door/1 closed false
	// set door/2 open true
}

// List the keys that match a pattern.
func ExampleClient_Scan() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	for _, k := range []string{"sensor/1", "sensor/2", "pump/1"} {
		if _, err := c.Set(ctx, k, nil); err != nil {
			log.Fatal(err)
		}
	}
	n := 0
	for key, err := range c.Scan(ctx, "sensor/*") {
		if err != nil {
			log.Fatal(err)
		}
		n += len(key)
	}
	fmt.Println(n == len("sensor/1")+len("sensor/2"))
	// Output: true
}

// Process a message once, however often it comes.
func ExampleClient_Load() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	deposit := func(messageID string) error {
		loaded, err := c.Load(ctx, "account", messageID)
		if err != nil || loaded.Status != client.NewMessage {
			return err
		}
		stored, err := c.Store(ctx, "account", append(loaded.State, '+'), messageID, loaded.Version)
		fmt.Println(messageID, stored.Outcome)
		return err
	}
	for _, id := range []string{"m1", "m2", "m1"} {
		if err := deposit(id); err != nil {
			log.Fatal(err)
		}
	}
	v, _, err := c.Get(ctx, "account")
	fmt.Println(string(v.Bytes), err)
	// Output:
	// m1 stored
	// m2 stored
	// ++ <nil>
}

// Receive messages and acknowledge each when it is processed.
func ExampleSession_Messages() {
	ctx := context.Background()
	s, err := client.DialSession(ctx, testserver.ForExample())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := s.Subscribe(ctx, "plant/+/temperature"); err != nil {
		log.Fatal(err)
	}
	if err := s.Publish(ctx, client.Message{Topic: "plant/7/temperature", Payload: []byte("21.5")}); err != nil {
		log.Fatal(err)
	}
	for d, err := range s.Messages(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Topic, string(d.Payload))
		d.Ack()
		break
	}
	fmt.Println(s.Unsubscribe(ctx, "plant/+/temperature"))
	// Output:
	// plant/7/temperature 21.5
	// <nil>
}

// A part is reserved and an order written in one step, if nothing has changed meanwhile.
func ExampleClient_Txn() {
	ctx := context.Background()
	c := exampleClient()
	defer c.Close()
	stock, err := c.Set(ctx, "stock/lid", []byte("3"))
	if err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"order/7", "order/8"} {
		result, err := c.Txn().
			If(txn.Key("stock/lid").HasVersion(stock.Version), txn.Key(order).Absent()).
			Then(txn.Key("stock/lid").Set([]byte("2")), txn.Key(order).Set([]byte("reserved"))).
			Publish(txn.Message{Topic: "orders", Payload: []byte(order)}).
			Commit(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %v %q\n", order, result.Outcome, result.Failed.Key)
	}
	// Output:
	// order/7: committed ""
	// order/8: condition failed "stock/lid"
}

// A message is delivered later, unless it is cancelled before.
func ExampleMessage_After() {
	ctx := context.Background()
	s, err := client.DialSession(ctx, testserver.ForExample())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := s.Subscribe(ctx, "orders/remind"); err != nil {
		log.Fatal(err)
	}
	late := client.Message{Topic: "orders/remind", Payload: []byte("7")}.After(time.Hour).WithTimerID("order/7")
	soon := client.Message{Topic: "orders/remind", Payload: []byte("8")}.After(10 * time.Millisecond).WithTimerID("order/8")
	if err := s.Publish(ctx, late, soon); err != nil {
		log.Fatal(err)
	}
	for timer, err := range s.Client().Timers(ctx, "order/7") {
		fmt.Println("waits:", timer.ID, timer.Topic, err)
	}
	waited, err := s.Client().CancelTimer(ctx, "order/7")
	fmt.Println("cancelled:", waited, err)
	for d, err := range s.Messages(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("delivered:", string(d.Payload))
		d.Ack()
		break
	}
	// Output:
	// waits: order/7 orders/remind <nil>
	// cancelled: true <nil>
	// delivered: 8
}

// A reason code tells why a connection was refused.
func ExampleReasonCode() {
	err := error(&client.ConnectError{Code: client.ReasonBadCredentials})
	var refused *client.ConnectError
	if errors.As(err, &refused) && refused.Code == client.ReasonBadCredentials {
		fmt.Println(refused.Code)
	}
	// Output: bad user name or password (0x86)
}
