package routing

import (
	"math"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/queue"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

const (
	pressedTenths = 9
	fairTenths    = 8
	fairInterval  = 250      // ms for which fair shares hold
	alwaysAllowed = 64 << 10 // bytes that any session may hold as long as the disk has room
)

// StoredBytes is how many bytes queued messages take on disk, or in memory only. A
// message that is in several queues counts once.
func (rt *Router) StoredBytes() int64 {
	return queue.Footprint(int(rt.Counters.Queued.Load()), rt.Counters.QueuedBytes.Load()-rt.Payloads.SavedBytes(), queue.RowOverhead)
}

// refuses says whether a publish must be refused before any client gets it: a
// matching session wants that of a full queue, or all queues together are near
// their bound and it would go to one that holds more than its share. If it is not
// refused, the queues that would have refused it have promised it room, which
// Turn.Promises returns.
func (rt *Router) refuses(t *session.Turn, o *message.Outgoing) bool {
	level := rt.fairLevel()
	if level == math.MaxInt64 && rt.Limits().QueueFull != limits.Reject && rt.Rejecting.Load() == 0 {
		return false
	}
	for _, sub := range rt.Match(t, o.Topic) {
		refused := false
		if sub.Session == nil {
			refused = groupOf(sub).Refuses(t, level, len(o.Payload))
		} else {
			refused = sub.Session.Refuses(t, sub, level, len(o.Payload))
		}
		if refused {
			t.Promises.Return()
			return true
		}
	}
	return false
}

// fairLevel gives the weight above which sessions get no more for now:
// math.MaxInt64, as long as all queues together are well below their bound.
func (rt *Router) fairLevel() int64 {
	l := rt.Limits()
	used := rt.Weight(int(rt.Counters.Queued.Load()), rt.StoredBytes())
	if used < l.MaxTotalQueuedBytes/10*session.NearFullTenths {
		if rt.nearTotal.Load() && used < l.MaxTotalQueuedBytes/session.WarnAgainDivisor {
			rt.nearTotal.Store(false)
		}
		return math.MaxInt64
	}
	if !rt.nearTotal.Swap(true) {
		rt.Counters.NearFull.Add(1)
		rt.Log.Warn("the queues of all sessions together are near their bound", "messages", rt.Counters.Queued.Load(), "bytes", rt.StoredBytes(), "bound", l.MaxTotalQueuedBytes)
	}
	switch {
	case used < l.MaxTotalQueuedBytes/10*pressedTenths:
		return math.MaxInt64
	case used >= l.MaxTotalQueuedBytes:
		return min(rt.fairShare(), alwaysAllowed)
	}
	return rt.fairShare()
}

// fairShare gives the weight that every session may have within fairTenths of the
// bound. It is counted anew once in a while.
func (rt *Router) fairShare() int64 {
	rt.fairMu.Lock()
	defer rt.fairMu.Unlock()
	if now := rt.Now(); rt.fairAt == 0 || now-rt.fairAt >= fairInterval {
		rt.fair, rt.fairAt = LevelOf(rt.weights(), rt.Limits().MaxTotalQueuedBytes/10*fairTenths), now
	}
	return rt.fair
}

// LevelOf gives the level for which the weights, each cut off at the level, add up to room.
func LevelOf(weights []int64, room int64) int64 {
	slices.Sort(weights)
	for i, w := range weights {
		others := int64(len(weights) - i)
		if w > room/others {
			return room / others
		}
		room -= w
	}
	return math.MaxInt64
}

// weights gives what each session and each backlog holds.
func (rt *Router) weights() (all []int64) {
	for _, s := range rt.sessions() {
		s.Mu.Lock()
		load, _ := s.Fullness(&s.Routed)
		if s.Routed.Messages > 0 {
			all = append(all, rt.Weight(s.Routed.Messages, load))
		}
		s.Mu.Unlock()
	}
	rt.GroupsMu.Lock()
	defer rt.GroupsMu.Unlock()
	for _, g := range rt.Groups {
		g.Mu.Lock()
		if g.Messages > 0 {
			all = append(all, rt.Weight(g.Messages, g.DiskBytes()))
		}
		g.Mu.Unlock()
	}
	return all
}

// JudgeQueueFull says whether the client may choose what it does.
func (rt *Router) JudgeQueueFull(props []byte) (code mqtt.ReasonCode, reason string) {
	l := rt.Limits()
	asked, ok := limits.AskedQueueFull(props)
	switch {
	case !ok:
		return mqtt.ImplementationSpecificError, "the user property " + limits.QueueFullProperty + " must be end-session, reject or drop-oldest"
	case l.KeepQueueFull && asked != 0 && limits.QueueFulls[asked] != l.QueueFull:
		return mqtt.NotAuthorized, "this server does not let sessions choose what happens when their queue is full"
	}
	return mqtt.Success, ""
}
