// Package broker is the MQTT broker for MQTT 5.0, 3.1.1 and 3.1 on one port: it accepts
// connections (accept.go), and reads and answers their packets. The packages below it
// hold sessions, route messages and keep them.
//
// Who does what:
//
//   - The reader goroutine of a connection (conn.go) decodes packets in place
//     and does everything that they ask for: it matches, enqueues at other
//     sessions, and acknowledges. It hands no message to another goroutine to be
//     routed, and allocates nothing for a message that only passes through. Flushers
//     write the output of other connections; the journal's committer writes
//     acknowledgements that waited for the disk.
//   - A session.Session is what a client ID has: subscriptions, inflight and
//     waiting deliveries. It outlives its connection when the client asked for that. The
//     registry.Registry has all of them, and says when one begins and ends.
//   - Acknowledgements leave in the order of the packets that they answer
//     (acks.Ring), some of them only when the journal has made something durable.
//   - A session.Turn is what a goroutine does until it has nothing more to do, for a reader
//     with the bytes of one read. It notes which connections got output, to flush each once.
//
// The broker knows nothing of the state store. It has a Handler that takes the
// publishes to some exact topics in place of routing them: it makes the response at once,
// and says which batch of the journal must be durable before the broker sends it.
//
// The order of the locks is the list in package lockrank, which CI checks.
//
// A panic while a reader decodes ends its connection; any other ends the process,
// see package failstop. Deferred calls therefore do no more than unlock: the end of a
// turn, which flushes, is never deferred (session.Env.Do).
package broker
