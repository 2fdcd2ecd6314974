// Package session is what the broker keeps for one client: subscriptions, inflight and
// waiting deliveries, the identifiers of QoS 2 publishes received, the will. It outlives
// the connection if the client asked for that.
//
//   - A [Session] sends to its client what its Receive Maximum and the output allow
//     (session.go), keeps a bounded part of its queue in memory (window.go), and says what
//     happens when the queue is full (bounds.go).
//   - It takes a message of a shared subscription, a [Group], if it has room, and hands
//     back what it did not send (shared.go).
//   - [Env.Commit] journals what routing has put into queues (commit.go).
//   - A [Turn] is what a goroutine does until it has nothing more to do. It remembers which
//     connections got output, so that each is flushed once.
//
// The broker decides which messages a session gets, when it begins and when it ends.
package session
