// Package engine runs the rules of the state store on keys in memory and makes
// what they decide durable: order, group commit, versions, quota, expiry,
// watches, scans, and messages remembered on disk.
//
// The service opens a session for each connection and gives it commands; replies
// and notifications come back through the session's Completion and Sink. The
// engine knows nothing of MQTT, topics, or payloads; it does not decide anything
// that package statestore decides; it never waits for a client.
//
// # The way of a command
//
// A GET locks its key's shard, copies the entry, and replies to the caller at
// once, unless the entry rides in a batch of the journal that is not complete.
// Then the reply joins that batch: no reply shows what could still be lost
// (protocol, section 6, Order). A key that was deleted stays as a tombstone
// until its batch is complete, so that a miss waits as well.
//
// A SET or DEL applies the rules under the shard's lock, writes the new entry in
// its place, appends it to the journal's filling batch and returns. The reply is
// valid once the batch is durable, and is given with the batch's number
// ([Completion].ReplyWhenDurable). If there is more to do then, for there are
// watchers, or a deletion's tombstone is to go, the journal's committer calls
// [turn.Durable], which tells the requester's own watch, replies, and tells the
// other watchers.
//
// # Memory
//
// Keys and values stand in memory outside the Go heap, where a record is written
// over in place, and moves when others go (package slab; record.go, table.go). So a
// view of a record ends with its shard's lock.
//
// # Locks
//
// In this order: stripe.mu, shard.mu, session.mu, Local.mu or stripe.overlayMu, the
// journal's or slab.Memory's. None is held while a Completion replies or a Sink is
// called, and none over a read of the disk but stripe.mu, which only LOAD, STORE,
// DONE and their clean-up take (remember.go). Local.mu guards what all keys share:
// the last version issued, and the quota.
//
// The order of the journal's rows of one key is the order of its changes,
// because both happen under the shard's lock; and the order of callbacks is that
// of the journal. Everything that is said about order below rests on this.
package engine
