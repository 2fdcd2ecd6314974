// Package listen makes the server's listeners from URLs: MQTT over TCP or WebSocket, with
// or without TLS, behind a balancer that speaks the PROXY protocol or not, each with
// rules of its own.
//
// The server calls [Open] for each, and gives the listeners to the broker. What a
// connection needs before its first byte of MQTT (a PROXY header, a TLS handshake) is
// done on a goroutine of its own, which a deadline and sockets.Handshakes
// bound; so no peer holds up another one's accept.
//
// It knows nothing of MQTT, and of certificates only that package certs gives a
// configuration for each handshake.
package listen
