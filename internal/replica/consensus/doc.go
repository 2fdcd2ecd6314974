// Package consensus decides, on one node, who leads and which entries are committed. It is
// the library go.etcd.io/raft with a lease for reads, and without anything that waits: no
// goroutine, clock, disk or socket. Its caller gives it messages, ticks and the time, stores,
// applies and sends what it asks for, and tells it when that is done. So a test runs a whole
// cluster, with failing disks, networks and clocks, in one goroutine, and the same events
// always have the same outcome (see world_test.go).
//
// # Work
//
// After each call that may change anything the caller takes Work from Core.Work:
//
//   - Send: to be sent to other nodes. Messages may be lost, delayed, doubled and reordered.
//   - Store: to be stored, in this order. When one is durable, Stored is called, and gives
//     more messages to be sent. The leader's entries are sent to the others while it stores
//     them itself.
//   - Apply: entries that are committed, to be given to the state machine in this order.
//     When it has them, in memory, Applied is called.
//
// # What differs from the library
//
// The library's own lease reads are not used: a node that was started, or that learns of a
// newer term by an answer that was delayed, would vote in spite of the answer that it gave to
// the leader. Here a node keeps its promises by its own clock (package lease), whatever it
// has learned since: it drops requests for votes, and does not send its own.
//
// Proposals are not forwarded: the leader alone proposes.
//
// That a node is removed is on the disk of another one before the removed node knows it (removals.go).
//
// The leader does not tell followers at once that entries are committed: they learn it with the next
// entries, or by the next heartbeat, within a tick. Entries go at once to as many followers as make a
// quorum with the leader, and a little later, several in one message, to the others (spare.go).
package consensus
