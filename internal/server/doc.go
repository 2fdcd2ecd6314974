// Package server assembles the server from one Config: journal, engine, service,
// broker, listeners. It is the only package that knows all of them.
package server
