// Package faultrun proves, from outside, that package consistent processes each message
// exactly once: three instances of a processor, each a process of its own, work on the
// built broker, while
//
//   - every request of theirs to the store fails now and then, before or after it was
//     carried out, comes twice, or waits until another instance was faster;
//   - publishing breaks off in the middle, messages come twice and out of order;
//   - instances are killed with SIGKILL, started again, and paused with SIGSTOP;
//   - their clocks are wrong by up to a minute;
//   - handlers panic, and some of them are not deterministic;
//   - the sender sends duplicates, at once and long after;
//   - the broker is killed with SIGKILL and started again on its data.
//
// Then the books are balanced (check.go): against the seven invariants, and against a
// run of the same handler on the same messages, in the order in which they were
// committed, one after the other and without faults. What counts is every byte that was
// published, not what a reader who removes duplicates makes of it.
//
// Two instances share a subscription, the third gets every message, so that there is
// always somebody to be faster. Each key's state carries the identifiers of all messages
// that were committed to it, in order: the only witness that the handler itself can
// give.
//
// One seed decides everything but the interleaving on the machine. The test runs
// thousands of messages, the command internal/faultrun/faults a hundred thousand.
package faultrun
