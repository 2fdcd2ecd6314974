// Package consistent processes each MQTT message exactly once, with state, through
// duplicates, crashes and lost replies: what the outside can see of a handler – its
// state, the messages it sends – is the same as in a run in which every message came
// once and nothing failed.
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
// A handler is a function of a state and a message, which returns the next state and
// the messages to send. One message goes this way, in this order:
//
//	 message ──► LOAD key, message ID
//	               │
//	  ┌────────────┼──────────────────────────┐
//	 new       duplicate                 confirmed
//	  │            │                          │
//	handle       handle again, on the state   │
//	  │          before the message, with     │
//	  │          what the first run took      │
//	  │          from outside                 │
//	STORE          │                          │
//	  │ version    │ the digest of the        │
//	  │ as loaded? │ outputs is the same?     │
//	  ▼            ▼                          │
//	publish the outputs, wait for PUBACKs     │
//	  │                                       │
//	DONE, acknowledge ◄───────────────────────┘
//
// A message that has waited behind another one of its key starts from what that one has
// stored, without a LOAD; STORE tells if that was not right, and then it is loaded.
//
// Nothing is visible before the STORE, which sets the state and remembers the message
// in one commit, and only if no other instance has changed the state since the LOAD. A
// processor that dies after it leaves a message that comes again, is found to be a
// duplicate, and is handled again on the state of that moment: that publishes exact
// copies of what the first processing sent (docs/consistent-messaging.md).
//
// # What a handler must be
//
// Deterministic: its results depend on nothing but the [Context], the state and the
// message. Time, identifiers, random numbers and other values from outside, it takes
// from the Context, which gives a replay what the first run got. A handler that isn't
// deterministic is caught: see [NonDeterministicError].
//
// # What becomes of a message that can't be processed
//
// An error of the handler is retried with growing pauses, in which other messages of the
// key go first; the last one, a [Terminal] one, a panic, and a message without handler,
// identity or key, with the identity of another one, or that can't be decoded, go to the
// dead-letter topic with the reason. The input is acknowledged after that is
// published. Failures of the store and the connection are retried without limit.
package consistent
