// Package server wires the rooms together from one Config: journal, engine,
// service, broker, listeners. It is the only place that knows them all.
package server
