// Package queue is a queue of QoS 1 and 2 deliveries: the messages of a session that are
// inflight or wait, with their packet identifiers, and which of them are in memory and
// which are on disk only.
//
// A [Queue] is a data structure: its session locks it, sends, and writes its rows. The
// package also has what several queues share on disk ([Payloads]), and reads pages of a
// queue back ([Reader]).
package queue
