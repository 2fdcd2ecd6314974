// Package client talks to a state store over MQTT 5: Holdfast's own, or any
// other that speaks the protocol of docs/protocol.md.
//
//	c, err := client.Dial(ctx, "localhost:1883")
//	if err != nil { … }
//	defer c.Close()
//
//	version, applied, err := c.Set(ctx, "greeting", []byte("hello"))
//	value, found, err := c.Get(ctx, "greeting")
//
// One [Client] is one MQTT connection that many goroutines share. Their
// requests are pipelined: each waits for its own answer and for nobody else's,
// and together they keep as many requests in flight as the server's Receive
// Maximum allows [MQTT-3.3.4-9]. The answers come over one subscription that
// is made before the first request.
//
// # When the connection breaks
//
// The client reconnects by itself, waiting a little longer after each failure.
// Requests made meanwhile wait for the new connection until their context
// ends. Of the requests that were in flight,
//
//   - reads (Get, Load, Scan) are sent again;
//   - writes (Set, Del, VDel, Store, Done) fail with [ErrUnknownOutcome]: nobody can know
//     whether the server carried them out. Read the key to find out, or make
//     the write conditional ([IfVersion], [NX]) so that repeating it is safe,
//     and ask for it to be repeated with [RetryWrites];
//   - watches are registered again, and the gap is closed with a GET: a
//     [Watch] whose key has changed meanwhile gets an [Event] for it.
//
// # Processing each message once
//
// [Client.Load], [Client.Store] and [Client.Done] let a handler of messages work
// exactly once although messages come twice, replies get lost and processes die:
//
//	m, err := c.Load(ctx, key, messageID)
//	// m.Status: NewMessage – or Duplicate, whose outputs may not all be out: handle it on
//	// m.State as before and publish the same – or Confirmed: nothing is left to do.
//	state, outputs := handle(m.State)
//	s, err := c.Store(ctx, key, state, messageID, m.Version) // if it was new
//	// s.Outcome: Stored, AlreadyStored – or VersionConflict: Load again.
//	publish(outputs)
//	_, err = c.Done(ctx, key, messageID)
//
// # Messages
//
// A [Session] publishes and receives application messages, at QoS 1, and acknowledges
// what it received when it has been processed. Package consistent stands on both.
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
