// Package client talks to a state store over MQTT 5: Holdfast's own, or any
// other that speaks the protocol of docs/protocol.md.
//
//	c, err := client.Dial(ctx, "localhost:1883")
//	if err != nil { … }
//	defer c.Close()
//
//	set, err := c.Set(ctx, "greeting", []byte("hello"))
//	value, found, err := c.Get(ctx, "greeting")
//
// One [Client] is one MQTT connection that many goroutines share. Their
// requests are pipelined: each waits only for its own answer, and together they keep
// as many requests in flight as the server's Receive Maximum allows [MQTT-3.3.4-9].
// The answers come over one subscription that is made before the first request.
//
// # Conditional writes
//
// A condition is an option of [Client.Set]; [IfValue] is one of [Client.Del] too. A write
// whose condition is not met changes nothing and fails with [ErrNotApplied].
//
//   - [IfAbsent]: the key does not exist;
//   - [IfAbsentOrEqual]: the key does not exist, or has the value that is being set;
//   - [IfAbsentOrValue]: the key does not exist, or has a value that is given;
//   - [IfValue]: the key has a value that is given;
//   - [IfVersion]: the key has a version that is given.
//
// The server checks the condition and writes in one step. [IfValue] in a Set is the
// exception: see there how the client makes it atomic with two requests.
//
// # Several keys in one step
//
// [Client.Txn] begins a transaction: conditions on any number of keys, writes of any number
// and messages, of which the server does all or nothing (package txn).
//
//	result, err := c.Txn().
//		If(txn.Key("stock").HasVersion(stock.Version)).
//		Then(txn.Key("stock").Set(less), txn.Key("order/7").Set(order)).
//		Once("orders", "order-7", 0).
//		Commit(ctx)
//	// result.Outcome: txn.Committed, txn.AlreadyDone – or txn.ConditionFailed, with what the key is instead.
//
// # When the connection breaks
//
// The client reconnects by itself, waiting a little longer after each failure.
// Requests made meanwhile wait for the new connection until their context
// ends. Of the requests that were in flight,
//
//   - reads (Get, Load, Scan, ScanValues) are sent again;
//   - writes (Set, Del, Store, Done, Commit) fail with [ErrUnknownOutcome]: the client cannot
//     know whether the server carried them out. Read the key to find out, or make
//     the write conditional ([IfVersion], [IfAbsent]) so that repeating it is safe,
//     and have it repeated with [RetryWrites];
//   - watches are registered again, and the gap is closed with a GET: a
//     [Watch] whose key has changed meanwhile gets an [Event] for it;
//   - a [Session] sends messages again that the server has not acknowledged.
//
// A client that was given the addresses of several nodes of a cluster connects to the next one then; see
// [Dial].
//
// # Changes
//
// [Client.Watch] gives the changes of one key as they happen, [Client.WatchPattern] those
// of all keys that match a pattern, for example of all that begin with "sensor/". The
// second is built of the first and of [Client.Scan], so a new key is seen when the next
// scan finds it.
//
// # Processing each message once
//
// [Client.Load], [Client.Store] and [Client.Done] let a handler of messages have its effect
// exactly once although messages come twice, replies get lost and processes die:
//
//	loaded, err := c.Load(ctx, key, messageID)
//	// loaded.Status: NewMessage – or Duplicate, whose outputs may not all be out: handle it on
//	// loaded.State as before and publish the same – or Confirmed: nothing is left to do.
//	state, outputs := handle(loaded.State)
//	stored, err := c.Store(ctx, key, state, messageID, loaded.Version) // if it was new
//	// stored.Outcome: Stored, AlreadyStored – or VersionConflict: Load again.
//	publish(outputs)
//	_, err = c.Done(ctx, key, messageID)
//
// # Messages
//
// A [Session] publishes and receives application messages, at QoS 1. The application
// acknowledges each when it has processed it:
//
//	s, err := client.DialSession(ctx, "localhost:1883", client.WithClientID("recorder"))
//	if err != nil { … }
//	defer s.Close()
//	err = s.Subscribe(ctx, "plant/+/temperature")
//	for d, err := range s.Messages(ctx) {
//		if err != nil { … }
//		record(d.Topic, d.Payload)
//		d.Ack()
//	}
//
// [Session.Client] is a client of the store over the session's own connection: a transaction of
// it can acknowledge messages in the same step as it writes and publishes (txn.Txn.Settle).
//
// Package consistent is built on both.
//
// # Time
//
// Each request carries a timestamp of the client's hybrid logical clock, and
// the clock observes every version that comes back, so what one client writes
// after it has read is never older than what it has read. The server refuses
// writes of a client whose clock is more than a minute ahead
// ([ErrTimestampAhead]).
//
// This package never keeps a value: every Get asks the server.
package client
