// Package broker is the MQTT broker: connections, sessions, subscriptions,
// routing, retained messages and wills, for MQTT 5.0, 3.1.1 and 3.1 on one port.
//
// Who does what:
//
//   - The reader goroutine of a connection (conn.go) decodes packets in place
//     and does everything that they ask for: it matches, enqueues at other
//     sessions, and acknowledges. Nothing is handed to another goroutine and
//     nothing is allocated for a message that only passes through.
//   - A Session (session.go) is what a client ID has: subscriptions, the window
//     of packets under way (outqueue.go), the queue behind it. It outlives its
//     connection when the client asked for that.
//   - Acknowledgements leave in the order of the packets that they answer
//     (acks.go), some of them only when the journal has made something durable.
//   - A Turn (turn.go) is the work between two moments at which a goroutine has
//     nothing to do: it remembers which connections got output, so that each is
//     flushed once.
//
// The broker knows nothing of the state store. It has a Handler that takes the
// publishes to some exact topics in place of routing them, and answers when it
// likes.
//
// The order of the locks is the list in package lockrank, which CI checks.
//
// A panic while a reader decodes ends its connection; any other ends the process,
// see package failstop. Deferred calls therefore do no more than unlock: the end of a
// turn, which flushes, is never deferred (Broker.work).
package broker
