// Package conformance holds the broker and the state store to their
// specifications, from outside: every test starts the real server on a data
// directory of its own and talks to it over real sockets, byte by byte where
// it matters. It knows the settings of package server and nothing of what is
// behind them.
//
// The files follow the specifications: connect, publish, subscribe, retain,
// will, session and flow for MQTT 5 and 3.1.1; store for the state store
// protocol; restart for what a process leaves to the next one. traps holds what
// other brokers were found to get wrong.
package conformance
