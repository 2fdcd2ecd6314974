package routing

import (
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/share"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Router decides which sessions and groups get a message.
type Router struct {
	*session.Env
	Retained *retained.Store
	Timers   *delayed.Store
	sessions func() []*session.Session // all that there are at this moment

	Filters topic.Index[*session.Subscription]

	GroupsMu lockrank.Mutex[lockrank.Groups]
	Groups   map[string]*share.Group // by {name}/{filter}; guarded by GroupsMu

	fitted int64 // bytes for all queues, if no setting says how many; set by FitQueues

	nearTotal atomic.Bool // all queues together are near their bound, and the log has it
	fairMu    lockrank.Mutex[lockrank.Fair]
	fair      int64 // guarded by fairMu, as fairAt
	fairAt    int64 // when fair was counted, on the broker's clock in ms
}

// New makes a Router without subscriptions. The Router also feeds sessions again. may judges
// messages that are published later; nil: everything is allowed.
func New(env *session.Env, kept *retained.Store, sessions func() []*session.Session, may access.Permissions) *Router {
	rt := &Router{Env: env, Retained: kept, sessions: sessions, Groups: make(map[string]*share.Group)}
	env.ResumeFeed = rt.ResumeFeed
	rt.Timers = delayed.New(env, delayed.Options{May: may, Publish: rt.publishTimer})
	return rt
}

// Match finds the subscriptions that match a topic, in t.Matches, and counts what that takes as
// work of the turn.
func (rt *Router) Match(t *session.Turn, topic []byte) []*session.Subscription {
	matches, compared := rt.Filters.MatchCounting(topic, t.Matches[:0])
	t.Matches = matches
	t.Worked += compared / session.ComparedPerUnit
	return matches
}
