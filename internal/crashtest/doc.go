// Package crashtest proves, from outside, that the broker loses nothing: it
// runs the built program on a real data directory, lets real clients work on it
// over sockets, kills it with SIGKILL at random moments, starts it again, and
// holds what every client saw, over all lives, against what was promised.
//
// The way of a run: [Run] starts the program ([Program], program.go) and
// lets its actors live on it until it is killed ([life], life.go). Between two
// lives nothing runs, so an actor's memory needs no lock and is never lost,
// whatever becomes of the broker's. The actors are
//
//   - store clients (store.go), watchers (watch.go) and lock holders (lock.go),
//     whose history must be linearizable (model.go, history.go);
//   - processors (processor.go), who process messages with LOAD, STORE and DONE, of
//     which none may be committed twice, be forgotten, or lose its being done;
//   - roamers (roamer.go), who make, resume and end sessions and subscriptions;
//   - publishers, subscribers and retainers (publisher.go, subscriber.go,
//     retainer.go), between whom no acknowledged message may be lost, come out of order
//     or, at QoS 2, come twice.
//
// Every few kills the run settles: everybody finishes what is open, looks at
// everything, and the books are balanced. What was found comes back as a
// [Summary].
//
// One seed decides what every actor does and when the broker is killed; the
// interleaving on the machine is its own, so a seed makes a failure likely to
// come again and not certain.
//
// The tests of this package run it for some seconds, and the command
// internal/crashtest/crash for hundreds of kills, on this broker or, for the
// messages, on another. It knows the protocols and nothing of the broker's
// inside. It is never part of the program.
package crashtest
