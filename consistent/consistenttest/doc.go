// Package consistenttest tests handlers of package consistent.
//
// [New] runs a processor on a broker and a store in memory: no server, no sockets, no
// disk, and the same rules for LOAD, STORE and DONE as the server's.
//
//	func TestBooking(t *testing.T) {
//	    test := consistenttest.New(t, "bank", func(p *consistent.Processor) {
//	        consistent.Handle(p, "deposits/+", accountOf, book)
//	    })
//	    test.Send(consistenttest.Event("1", consistent.JSON("deposits/ann", Deposit{"ann", 10})))
//	    if got := test.Published("balances/+"); len(got) != 1 { … }
//	}
//
// The time stands still until [Broker.Advance] moves it, so that a test decides when a state
// expires, or a message is forgotten. [Test.Start] runs more instances, with the same handlers
// or those of another version of the program; [Instance.Kill] and [Instance.CrashAtCommit] end
// them as crashes do, and [Test.ClockAhead] has their clocks be wrong.
//
// [Replay] has every message processed twice, as after a crash, and fails the test where
// the second processing isn't like the first: a handler that takes the time or a random
// number from elsewhere than its Context is found here rather than at night.
//
// [WithFaults] stands between a processor and any [consistent.Conn] – the one of this
// package, or a real one – and duplicates, reorders, delays and loses, by a seed.
package consistenttest
