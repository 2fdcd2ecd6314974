// Package consistent processes each MQTT message exactly once, with state, through duplicates,
// crashes and lost replies: what the outside can see of a handler – its state, the messages it
// sends – is the same as in a run in which every message came once and nothing failed.
//
//	p, err := consistent.New(conn, "range")
//	if err != nil { … }
//	consistent.Handle(p, "games/+/fire", FireAt.Game,
//	    func(c *consistent.Context, s Range, m FireAt) (Range, []consistent.Message, error) {
//	        s, hit := s.Fire(m)
//	        return s, []consistent.Message{consistent.JSON("games/"+m.GameID+"/hit", hit)}, nil
//	    })
//	err = p.Run(ctx)
//
// # How it works
//
// A handler is a function of a state and a message, which returns the next state and the messages
// to send. There are two paths from one to the other.
//
// The transactional path is the default. The state, the outputs, the memory of the message and its
// acknowledgement are one transaction (protocol, section 12), on the condition that the state is
// still the one that was handled: all of it is on disk, or nothing. A duplicate changes nothing and
// sends nothing. Messages that wait for one key share a transaction, and so do those of different
// keys that come while others are committed. States are kept at hand ([WithStatesAtHand]), so that
// the usual message takes one request.
//
// The state-based path ([Replay]) is for outputs that leave the broker, and for handlers that must
// not depend on transactions. LOAD tells whether a message is new; STORE sets the state and
// remembers the message, with the state before it, in one commit; then the outputs are published;
// DONE says that they are, and the message is acknowledged. Messages that wait for one key share a
// STORE. A duplicate that comes between STORE and DONE is handled again, on the state of the first
// time, and publishes exact copies of what that has sent (docs/consistent-messaging.md).
//
// An output may be a timer, which the server delivers later: [After], [At], [CancelTimer].
//
// # What a handler must be
//
// On the transactional path, no more than a function without effects of its own: it may run several
// times for one message, and what it returned counts once. On the state-based path, deterministic:
// its results depend on nothing but the [Context], the state and the message. Time, identifiers,
// random numbers and other values from outside, it takes from the Context, which gives a replay
// what the first run got. A handler that isn't deterministic is caught: see
// [NonDeterministicError].
//
// # What becomes of a message that can't be processed
//
// An error of the handler is retried with growing pauses, in which other messages of the key go
// first; the last one, a [Terminal] one, a panic, and a message without handler, identity or key,
// with the identity of another one, or that can't be decoded, go to the dead-letter topic with the
// reason. The input is acknowledged after that is published. Failures of the store and the
// connection are retried without limit.
package consistent
