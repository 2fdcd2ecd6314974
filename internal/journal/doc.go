// Package journal makes writes durable: rows are appended to the batch that is
// filling, batches go to disk one after the other with one fsync each, and the
// waiters of a batch are called once it is there. After a restart everything for
// which a waiter was called is found again.
//
// The engine (keys of the state store) and the broker (sessions,
// subscriptions, queues, retained messages) append to the same journal, hence
// share the same fsync. The package knows nothing of what the rows mean, never
// takes a caller's lock, and never waits for a socket.
//
// A batch is durable when it is in the log (the interface Log; package wal
// implements it), which is what pipeline.go does with it; from there its rows go
// into a Pebble database, from which they are read (apply.go). A start reads back
// from the log what the database had in memory.
//
// # Keys on disk
//
// The log, and one Pebble database. A key of a row begins with a letter that says
// whose it is, and a "|"; what follows is that owner's business:
//
//	m|format   version of this layout, written when the directory is created
//	m|applied  the last batch whose rows are in the database
//	m|raft     in a cluster: the term of that batch, and the membership (package node)
//	m|disguise  the log's mask (package wal)
//	m|logged   present: there is a log, always with a segment
//	m|meta     the record that Options.Meta gives, rewritten when it changed
//	k|key      state store: an entry (version, fencing token, deadline, value)
//	r|len|key|message     state store: a remembered message of a key
//	x|deadline|len|key|message   state store: when it may be forgotten
//	x|deadline|0|version         state store: when those of a transaction may be forgotten
//	s|client   broker: a session and its number (sid)
//	u|sid|filter      broker: a subscription
//	q|sid|seq         broker: a message in a queue
//	p|number          broker: a message that is in several queues
//	i|sid|packet id   broker: a QoS 2 publish received, until its PUBREL
//	t|topic           broker: a retained message
//	o|sid|number      broker: retained messages that a new subscription is still owed
//	w|sid             broker: a will
//	g|group           broker: a shared subscription with a backlog
//	d|due number      broker: a message to be published later
//	e|principal id    broker: which of them has this timer ID
//
// Pebble's on-disk format is pinned (see format.go); a database written by a
// newer program is refused.
package journal
