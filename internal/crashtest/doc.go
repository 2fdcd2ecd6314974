// Package crashtest tests the built program as a black box: it runs the program on
// a real data directory with real clients on sockets, kills it with SIGKILL at random
// moments, starts it again, and checks everything that the clients saw against what
// docs/reliability.md promises.
//
// [Run] starts the program (internal/harness) and runs its actors until it kills the
// program; that is one life (package lives). Between two lives no actor runs, so an
// actor's memory needs no lock, and it survives the kills. The actors are in packages of
// their own:
//
//   - store: clients of the state store, watchers and lock holders, whose history must be
//     linearizable (package history), and processors, which process messages with LOAD,
//     STORE and DONE: no message may be committed twice, be forgotten, or be undone after
//     DONE; and an archivist, whose keys must stay as they are for the whole run;
//   - sessions: roamers, which make, resume and end sessions and subscriptions;
//   - messages: publishers, subscribers and retainers, for which no acknowledged message
//     may be lost, come out of order or, at QoS 2, come twice; and testators, whose wills
//     must reach one subscriber, the heir, once each.
//
// Every few kills the run settles: every actor finishes its open work and reads all
// of its data, and the run checks the results. They are returned as a [Summary].
//
// Instead of one broker a run may have the three nodes of a cluster (cluster.go). Its actors connect to any
// node, and connect again when a follower dies; in each life the run kills the leader, followers, or
// all of them, pauses nodes, or has the leadership transferred.
//
// A seed decides what every actor does and when the broker is killed. It does not
// decide the interleaving, so a failure is likely to come again with its seed, not
// certain to.
//
// The tests of this package run it for some seconds, and the command
// internal/crashtest/crash for hundreds of kills, on this broker or, for the
// messages, on another. It knows the protocols and nothing of the broker's
// inside. It is never part of the program.
package crashtest
