package server

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// watch keeps the $SYS topics up to date, and Go's memory limit.
func (s *Server) watch() {
	interval := s.config.SysInterval
	if interval == 0 {
		interval = 10 * time.Second
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	heap := time.NewTicker(heapInterval)
	defer heap.Stop()
	for {
		select {
		case <-tick.C:
		case <-heap.C:
			s.boundHeap()
			continue
		case <-s.stop:
			return
		}
		s.publishSys()
	}
}

// heapInUse is how many bytes Go's heap has in objects, also those that the collector has
// not freed yet.
func heapInUse() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// publishSys publishes the server's basic figures on $SYS topics, named as
// other brokers name theirs where they have them.
func (s *Server) publishSys() {
	b, levels, store, requests := s.broker.Stats(), s.broker.Levels(), s.engine.Stats(), s.service.Stats()
	s.broker.PublishSys("broker/version", "holdfast "+orDefault(s.config.Version, "development build"))
	s.broker.PublishSys("broker/uptime", fmt.Sprintf("%d seconds", int(time.Since(s.started).Seconds())))
	s.broker.PublishSys("store/durability", s.config.Durability.String())
	s.broker.PublishSys("store/clock/ahead_by", store.AheadBy)
	if free, _, known := s.journal.Free(); known {
		s.broker.PublishSys("broker/disk/free", strconv.FormatInt(free, 10))
		s.broker.PublishSys("broker/disk/low", strconv.FormatBool(s.journal.Low()))
	}
	if d := &s.descriptors; d.bounds != nil {
		s.broker.PublishSys("broker/descriptors/maximum", strconv.Itoa(d.limit))
		s.broker.PublishSys("broker/connections/closed", strconv.FormatInt(d.bounds.TurnedAway(), 10))
	}
	for _, kind := range memory.Kinds() {
		s.broker.PublishSys("broker/memory/"+kind.String(), strconv.FormatInt(s.memory.UsedBy(kind), 10))
	}
	_, storedMaximum := s.broker.QueueBounds()
	held := s.broker.Sessions.Principals.Figures()
	retainer, retained := s.broker.Retained.Most()
	s.publishMost("connections", held.MostConnections.Name, int64(held.MostConnections.Count))
	s.publishMost("sessions", held.MostSessions.Name, int64(held.MostSessions.Count))
	s.publishMost("retained messages", retainer, retained)
	s.publishMost("keys", store.MostID, store.MostKeys)
	figures := map[string]int64{
		"broker/memory/maximum":            s.maximum,
		"broker/memory/limit":              s.memory.Limit(),
		"broker/memory/used":               s.memory.Used(),
		"broker/memory/refused":            s.memory.Refused(),
		"broker/memory/go heap":            heapInUse(),
		"broker/goroutines":                int64(runtime.NumGoroutine()),
		"broker/clients/connected":         int64(levels.Connections),
		"broker/clients/total":             int64(levels.Sessions),
		"broker/clients/disconnected":      max(0, int64(levels.Sessions-levels.Connections)),
		"broker/clients/expired":           b.SessionsExpired.Load(),
		"broker/clients/displaced":         b.SessionsDisplaced.Load(),
		"broker/clients/overflowed":        b.SessionsOverflowed.Load(),
		"broker/handshakes/underway":       int64(s.handshakes.Under()),
		"broker/handshakes/ended":          s.handshakes.Ended(),
		"broker/connections/accepted":      b.Connects.Load(),
		"broker/connections/refused":       b.Refused.Load(),
		"broker/connections/displaced":     b.Displaced.Load(),
		"broker/connections/strangers":     b.Strangers.Load(),
		"broker/connections/reserved":      int64(held.Reserved),
		"broker/principals/count":          int64(held.Principals),
		"broker/connections/takeovers":     b.Takeovers.Load(),
		"broker/connections/not owned":     b.NotOwned.Load(),
		"broker/connections/expired":       b.IdentitiesExpired.Load(),
		"broker/connections/revoked":       b.IdentitiesRevoked.Load(),
		"broker/logins/again":              b.Reauthenticated.Load(),
		"broker/connections/maximum":       int64(s.broker.MaxConnections()),
		"broker/connections/timeouts":      b.KeepAliveTimeouts.Load(),
		"broker/connections/relieved":      b.Relieved.Load(),
		"broker/connections/failed":        b.Panics.Load(),
		"broker/messages/received":         b.PacketsIn.Load(),
		"broker/publish/messages/received": b.MessagesIn.Load(),
		"broker/publish/messages/sent":     b.MessagesOut.Load(),
		"broker/publish/messages/held up":  b.HeldToRate.Load(),
		"broker/publish/messages/dropped":  b.Dropped.Load(),
		"broker/publish/messages/expired":  b.Expired.Load(),
		"broker/publish/messages/toolarge": b.TooLarge.Load(),
		"broker/publish/messages/rejected": b.Rejected.Load() + b.Unauthorized.Load() + b.WillsUnauthorized.Load(),
		"broker/publish/messages/denied":   b.Unauthorized.Load() + b.WillsUnauthorized.Load(),
		"broker/subscriptions/ended":       b.SubscriptionsEnded.Load(),
		"broker/messages/queued":           b.Queued.Load(),
		"broker/messages/queued bytes":     b.QueuedBytes.Load(),
		"broker/messages/stored bytes":     s.broker.StoredBytes(),
		"broker/messages/stored maximum":   storedMaximum,
		"broker/messages/near full":        b.NearFull.Load(),
		"broker/retained messages/count":   int64(levels.Retained),
		"broker/retained messages/bytes":   levels.RetainedBytes,
		"broker/subscriptions/count":       b.Subscriptions.Load(),
		"store/keys":                       store.Keys,
		"store/bytes":                      store.Bytes,
		"store/watches":                    store.Watches,
		"store/scans":                      store.Scans,
		"store/remembered":                 store.Remembered.Messages,
		"store/remembered/bytes":           store.Remembered.Bytes,
		"store/remembered/bytes/maximum":   store.MaxRemembered,
		"store/remembered/forgotten":       store.Forgotten,
		"store/clock/ahead_ms":             store.AheadMs,
		"store/requests":                   requests.Requests(),
		"store/requests/ignored":           requests.Ignored.Load(),
		"store/requests/malformed":         requests.Malformed.Load(),
		"store/requests/expired":           requests.Expired.Load(),
		"store/requests/over quota":        requests.OverQuota(),
		"store/notifications":              requests.Notices.Load(),
		"store/transactions/committed":     requests.TxnCommitted.Load(),
		"store/transactions/repeated":      requests.TxnRepeated.Load(),
		"store/transactions/unmet":         requests.TxnUnmet.Load(),
		"store/transactions/refused":       requests.TxnRefused.Load(),
	}
	s.publishBridges()
	s.loginFigures(figures)
	for name, value := range figures {
		s.broker.PublishSys(name, strconv.FormatInt(value, 10))
	}
}

// publishMost publishes which principal has most of something: how many, and its name. Of
// a client that has not proven who it is that is its address, or its client ID.
func (s *Server) publishMost(what, name string, count int64) {
	s.broker.PublishSys("broker/principals/most "+what, strings.TrimSpace(strconv.FormatInt(count, 10)+" "+name))
}
