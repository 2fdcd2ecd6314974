// Package relief is what the broker does when traffic has come to its bound in the pool
// of memory: what is on disk as well leaves memory, and if that isn't enough, the
// connections that hold most are closed, until memory isn't tight any more.
//
// Readers have been held up before that, so it is connections whose clients don't take
// what they have asked for, or don't end the packets that they have begun.
package relief

import (
	"sort"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// Holder is a connection whose client makes the broker hold memory. It is comparable.
type Holder interface {
	// Waiting is how many bytes wait in memory for the client to take them.
	Waiting() int64
	// Unfinished is how many bytes of a packet have come that is not complete.
	Unfinished() int64
	// Progressed says whether bytes have come since the call before, or could not come as
	// the connection's reader doesn't read.
	Progressed() bool
	// Relieve closes the connection, which holds that many bytes. From then on it may
	// not go on holding as many as Least.
	Relieve(bytes int64)
}

// Source is where memory can come from.
type Source interface {
	// Evict has messages leave memory that are on disk as well.
	Evict()
	// Holders gives the connections that there are at this moment.
	Holders() []Holder
}

// Least is how much a connection holds at least that is closed for the others' sake:
// those with less are bystanders.
const Least = 32 << 10

const (
	// patience is for how many looks a packet that is still coming in doesn't count, if
	// its connection holds most.
	patience = 10
	// longestQuiet is for how many looks a client may pause in the middle of a packet and
	// the packet is still coming in.
	longestQuiet = 5
	// pause is the time between two looks.
	pause = 20 * time.Millisecond
	// longestReturn is for how many looks the memory of a connection that was closed is
	// waited for, before more is closed in its place.
	longestReturn = int(peer.GraceToWrite / pause)
)

// Serve makes room whenever the pool asks for it, until stop is closed.
func Serve(pool *memory.Pool, from Source, stop <-chan struct{}) {
	for {
		select {
		case <-pool.Relief():
		case <-stop:
			return
		}
		r := newRelief(from)
		for look := 0; pool.Tight(); {
			from.Evict()
			closed := r.closeHeaviest(pool.Excess(), look < patience)
			if !closed && look > patience && !pool.Over() {
				break // only small holders are left, and there is room for them
			}
			if len(r.closed) == 0 {
				look++ // otherwise memory is coming back
			}
			select {
			case <-time.After(pause):
			case <-stop:
				return
			}
		}
	}
}

// relief is what was found and done since memory was tight.
type relief struct {
	from   Source
	closed map[Holder]closing // connections that were closed and have not ended yet
	quiet  map[Holder]int     // for how many looks in a row nothing has come of the unfinished packet
}

func newRelief(from Source) *relief {
	return &relief{from: from, closed: map[Holder]closing{}, quiet: map[Holder]int{}}
}

// closing is what a connection that was closed is to give back, and for how many looks
// that has been waited for.
type closing struct {
	bytes int64
	looks int
}

// holding is a connection with the bytes that it makes the broker hold.
type holding struct {
	by    Holder
	bytes int64
}

// closeHeaviest closes the connections that hold most, until what they hold comes to
// excess, together with what those closed before have not given back yet. What several
// hold together is counted with each: it is given back by the last of them. With
// sparing, an unfinished packet that is still coming in doesn't count.
func (r *relief) closeHeaviest(excess int64, sparing bool) (closed bool) {
	holders := r.from.Holders()
	excess -= r.returning(holders)
	holdings := make([]holding, 0, len(holders))
	for _, h := range holders {
		if _, is := r.closed[h]; is {
			continue
		}
		bytes := h.Waiting()
		if input := h.Unfinished(); input > 0 && !(r.grows(h) && sparing) {
			bytes += input
		}
		holdings = append(holdings, holding{h, bytes})
	}
	sort.Slice(holdings, func(i, j int) bool { return holdings[i].bytes > holdings[j].bytes })
	for _, h := range holdings {
		if excess <= 0 || h.bytes < Least {
			break
		}
		excess -= h.bytes
		closed = true
		r.closed[h.by] = closing{bytes: h.bytes}
		h.by.Relieve(h.bytes)
	}
	return closed
}

// returning is how many bytes are still to come back from connections that were closed,
// of which those that are among the holders have not ended.
func (r *relief) returning(holders []Holder) (bytes int64) {
	left := make(map[Holder]closing, len(r.closed))
	for _, h := range holders {
		if was, is := r.closed[h]; is && was.looks < longestReturn {
			was.looks++
			left[h] = was
			bytes += was.bytes
		}
	}
	r.closed = left
	return bytes
}

// grows says whether the connection's unfinished packet is still coming in.
func (r *relief) grows(h Holder) bool {
	if h.Progressed() {
		delete(r.quiet, h)
		return true
	}
	r.quiet[h]++
	return r.quiet[h] < longestQuiet
}
