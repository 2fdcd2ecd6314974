// Package faultrun tests package consistent as a black box: each message must be
// processed exactly once. Three instances of a processor, each a process, work with the
// built broker, while
//
//   - every request of theirs to the store fails now and then, before or after it was
//     executed, comes twice, or waits until another instance was faster;
//   - publishing breaks off in the middle, messages come twice and out of order;
//   - instances are killed with SIGKILL, started again, and paused with SIGSTOP;
//   - their clocks are wrong by up to a minute, and they come back with another version of the
//     code;
//   - handlers panic, and some of them are not deterministic;
//   - the sender sends duplicates, at once and long after, and its clock is wrong; some messages
//     are too old, or of the future;
//   - timers become due, are cancelled, and replace each other (timers.go);
//   - queues of sessions, and the store, become full;
//   - the broker is killed with SIGKILL and started again on its data, or is a cluster of three
//     nodes, of which leaders are killed and paused, followers are killed, and which all die at
//     once (broker.go).
//
// Then the results are checked (check.go): against the invariants
// (docs/consistent-messaging.md), and against a run of the same handler on the same
// messages, in the order of their commits, one after the other and without faults. Every
// published byte counts, duplicates included.
//
// Each instance has three processors: one of orders, and two of what that publishes. Messages of
// one of these share transactions and STOREs with others of their key (tally.go). Before the
// faults a full store certainly refuses attempts (overflow.go), and at the end messages come again
// after they were forgotten (forget.go).
//
// Two instances share a subscription, the third gets every message, so that instances
// always compete for messages. Each key's state contains the identifiers of all messages
// that were committed to it, in order: this is the only evidence that the handler itself
// can give.
//
// A seed decides everything but the interleaving. The test runs
// thousands of messages, the command internal/faultrun/faults a hundred thousand.
package faultrun
