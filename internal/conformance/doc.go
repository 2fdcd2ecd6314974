// Package conformance tests the broker and the state store against their
// specifications, as a black box: every test starts the real server on a data
// directory of its own and talks to it over real sockets, byte by byte where
// it matters. It uses the settings of package server and nothing below it.
//
// The files follow the specifications: connect, publish, subscribe, retain,
// will, session and flow for MQTT 5 and 3.1.1; store for the state store
// protocol; restart for what must survive one; page for the examples of
// docs/protocol.md. traps covers mistakes that were found in other brokers.
package conformance
