package routing

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
)

// The bounds of queues may change while the broker runs. A queue that holds more than a bound
// that has become lower keeps all of it, and its client gets all of it. The next message for
// the queue finds it full, and so does what QueueFull says:
//
//   - reject: publishers are refused until the client has taken enough. Nothing is lost.
//   - drop-oldest: the oldest messages go until the queue is at its bound.
//   - end-session: the session ends, with all that it holds.
//
// So the log says at once how many queues that would be.

// FitQueues sets those bounds of queues on disk that the settings leave open by the room on
// the disk: half of what is free or taken by queues already for all of them, and a quarter
// of that for one. It is called once, when the sessions have been read back.
func (rt *Router) FitQueues() {
	rt.fitted = unknownDisk
	if free, reserve, known := rt.Journal.Free(); known {
		rt.fitted = max((free-reserve+rt.StoredBytes())/2, leastQueued)
	}
	l := *rt.Limits()
	rt.fit(&l)
	rt.Set(l)
	for _, s := range rt.sessions() {
		s.Mu.Lock()
		load, _ := s.Fullness(&s.Routed)
		rt.Found(s.Routed.Messages, load)
		s.Mu.Unlock()
	}
	rt.GroupsMu.Lock()
	defer rt.GroupsMu.Unlock()
	for _, g := range rt.Groups {
		g.Mu.Lock()
		rt.Found(g.Messages, g.DiskBytes())
		g.Mu.Unlock()
	}
}

// fit sets the bounds that l leaves open, as they were fitted at the start.
func (rt *Router) fit(l *limits.Limits) {
	if l.MaxTotalQueuedBytes == 0 {
		l.MaxTotalQueuedBytes = max(rt.fitted, l.MaxQueuedBytes)
	}
	if l.MaxQueuedBytes == 0 {
		l.MaxQueuedBytes = l.MaxTotalQueuedBytes / 4
	}
}

// SetLimits puts limits in force. After FitQueues, one goroutine at a time calls it.
func (rt *Router) SetLimits(l limits.Limits) {
	rt.fit(&l)
	rt.Set(l)
	if over := rt.overfull(); len(over) > 0 {
		rt.Log.Warn("queues hold more than they may now: they keep it until the next message for them, which does to so many of them what their setting for a full queue says",
			string(limits.EndSession), over[limits.EndSession], string(limits.DropOldest), over[limits.DropOldest], string(limits.Reject), over[limits.Reject])
	}
}

// overfull counts the queues of sessions, and the backlogs, that are beyond their bound, by
// what the next message for them does.
func (rt *Router) overfull() map[limits.QueueFull]int {
	over := make(map[limits.QueueFull]int)
	for _, s := range rt.sessions() {
		s.Mu.Lock()
		if then, is := s.Overfull(); is {
			over[then]++
		}
		s.Mu.Unlock()
	}
	rt.GroupsMu.Lock()
	defer rt.GroupsMu.Unlock()
	for _, g := range rt.Groups {
		g.Mu.Lock()
		if g.Overfull() {
			over[g.WhenFull()]++
		}
		g.Mu.Unlock()
	}
	return over
}

// QueueBounds gives the bytes that one session's queue on disk may have, and all
// together.
func (rt *Router) QueueBounds() (session, total int64) {
	l := rt.Limits()
	return l.MaxQueuedBytes, l.MaxTotalQueuedBytes
}

const (
	unknownDisk = 4 << 30  // bytes for all queues where the file system doesn't say what is free
	leastQueued = 64 << 20 // bytes for all queues on a disk that is all but full
)
