// Package registry has the sessions of a broker by client ID: each begins with a CONNECT,
// is taken over by the next, is away, and ends.
//
//   - [Registry.Attach] gives a connection its session (begin.go), [Registry.Detach] takes
//     it back (end.go).
//   - A session that is away ends after its expiry, and its will is published after its
//     delay, by timers that move when the machine's clock is set forward (clock.go).
//   - When there is no room for another session, one that is away with nothing queued ends
//     (sessions.go).
//   - An operator lists, disconnects and ends sessions (operate.go).
//
// It knows the connection only as a [peer.Peer]: it neither reads from the client nor
// judges what the client may do. What a session does for its client is told in package
// session.
package registry
