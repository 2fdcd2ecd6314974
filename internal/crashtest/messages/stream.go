package messages

import (
	"maps"
	"slices"
)

// stream records which messages of one publisher have come.
type stream struct {
	last    uint64          // highest sequence number that came
	missing map[uint64]bool // lower ones that have not come
}

// arrival says how a message came.
type arrival int

const (
	inOrder arrival = iota // after all messages with lower numbers that have come
	late                   // for the first time, after a message with a higher number
	again                  // not for the first time
)

// newStreams makes a stream for each of n publishers.
func newStreams(n int) []stream {
	streams := make([]stream, n)
	for i := range streams {
		streams[i].missing = map[uint64]bool{}
	}
	return streams
}

// receive records a message.
func (st *stream) receive(seq uint64) arrival {
	switch {
	case seq > st.last:
		st.expect(seq - 1)
		st.last = seq
		return inOrder
	case st.missing[seq]:
		delete(st.missing, seq)
		return late
	default:
		return again
	}
}

// expect notes that the messages up to seq have been sent.
func (st *stream) expect(seq uint64) {
	for ; st.last < seq; st.last++ {
		st.missing[st.last+1] = true
	}
}

// settle returns the numbers of the messages up to seq that never came, in their order.
// They do not count as missing any more.
func (st *stream) settle(seq uint64) (lost []uint64) {
	st.expect(seq)
	lost = slices.Sorted(maps.Keys(st.missing))
	clear(st.missing)
	return lost
}
