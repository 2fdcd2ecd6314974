// Package engine runs the rules of the state store on keys in memory and makes
// what they decide durable: order, group commit, versions, quota, expiry,
// watches, scans, and messages remembered on disk.
//
// The service opens a session for each connection and gives it commands, one after the
// other. Do leaves the reply in the Call and says what it waits for: the caller sends it
// to the client when that has happened. Notifications of changes go to the session's Sink. The
// engine knows nothing of MQTT, topics, or payloads; it does not decide anything that
// package statestore decides; it never waits for a client.
//
// # The way of a command
//
// A GET locks its key's shard, copies the entry into the Call, and says which batch of
// the journal has the entry's row, if that batch is not complete: no reply shows what could
// still be lost (protocol, section 6, Order). A key that was deleted stays as a tombstone until
// its batch is complete, so that a miss waits as well.
//
// A SET or DEL runs the rules under the shard's lock and, inside it, Local.mu (call.go,
// decide). Then, under the shard's lock alone, it writes the new entry in its place and
// appends its row to the journal's filling batch, with the journal's lock from Begin to End
// (change.go, carryOut). It returns the batch's number. For a SET of an unwatched key the engine does
// nothing more. If the key has watchers, a tombstone must be removed, or a memo has
// changed, the journal's committer calls [change.Durable] when the batch is durable.
//
// # Who owns which bytes
//
// The bytes of a command are the caller's, and used inside Do only. Those of a reply are
// the Call's until its next Do or Clear, or lasting ([statestore.Reply]). Those of an
// event are the change's until the Sink returns, or lasting.
//
// # Memory
//
// Keys and values stand in memory outside the Go heap (package table). A view of a record
// ends with its shard's lock.
//
// # Locks
//
// In this order: stripe.mu, shard.mu, session.mu, unapplied.Queue.mu, unapplied.Overlay.mu,
// Local.mu, the journal's or slab.Memory's. None is held while a Waiter or a Sink is
// called, and none over a read of the disk but stripe.mu, which only LOAD, STORE, DONE, a
// TXN with ONCE or VER ^messageId, and the clean-up of memos take (memo.go, txn.go).
// Local.mu guards what all keys share: the last version issued, and the quota.
//
// The order of the journal's rows of one key is the order of its changes,
// because both happen under the shard's lock; and the order of callbacks is that
// of the journal. Everything that is said about order rests on this.
package engine
