// Package relay passes clients that connect to a node which does not lead on to the one that
// does. The server opens its listeners with [Relay.Listen]; while its node leads, it takes
// their connections itself, through [Socket.Lead], and at all other times they go to the
// leader's cluster port, byte for byte. So TLS and WebSocket are the leader's matter, and the
// client talks to one broker, whichever node it has reached.
//
// # A connection
//
//	client ──▶ this node                   the leader's cluster port
//	           holds it until a leader
//	           is known, 5 s at the most
//	           ── header ─────────────────▶ who the client is, at which listener (package proxy)
//	           ◀─ one byte ─────────────── it leads, and takes the client
//	client ◀══ bytes, both ways ══════════▶ listen.Listener.Pass
//
// If there is no leader, or none that takes the client, the client gets the CONNACK "server
// unavailable" (0x88; MQTT 3.1.1: 3) after 5 s. No SDK takes this for a reason to give up, as
// some do with "use another server". A client of TLS or WebSocket is disconnected instead: an
// answer would need the leader's part of the protocol.
//
// No byte of a client is read before the leader has said that it takes it, and none is sent
// for a client that has gone by then. Otherwise a CONNECT that has waited here would be
// delivered after its client has connected again elsewhere, and would take the session from
// the new connection.
//
// # When the leader changes
//
// Connections to the former leader are closed at once, because it may be cut off and never
// close them itself. While no leader is known they stay for as long as clients are held: most
// often the same leader is heard of again.
//
// # Bounds
//
// Options.MaxConnections bounds the connections that are held or passed on; each of the latter
// takes two descriptors. Beyond, a client gets the CONNACK "quota exceeded" (0x97), as at the
// leader's own bound, and some are disconnected without one: at most 64 are told at a time, for a
// second each. A connection that is held takes 8 KiB at the most. An idle connection has no buffer, and splice(2) is not used: it would
// take a pipe, so two descriptors and 64 KiB of the kernel's, for each direction of each
// connection. A client that does not read makes the leader wait, and the other way round;
// meanwhile the connection keeps its buffer. Options.MaxBuffered bounds these buffers in bytes:
// connections beyond are passed on 1 KiB at a time.
package relay
