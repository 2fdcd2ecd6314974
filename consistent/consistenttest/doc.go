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
// [Replay] has every message processed twice, as after a crash, and fails the test where
// the second processing isn't like the first: a handler that takes the time or a random
// number from elsewhere than its Context is found here rather than at night.
//
// [WithFaults] stands between a processor and any [consistent.Conn] – the one of this
// package, or a real one – and duplicates, reorders, delays and loses, by a seed.
package consistenttest
