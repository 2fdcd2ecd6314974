package httpapi

import (
	"container/heap"
	"math"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Client is what the API shows of a client, which has a session.
type Client struct {
	ClientID   string      `json:"clientId"`
	Principal  string      `json:"principal,omitempty"` // empty: the client has not proven who it is
	Connected  bool        `json:"connected"`
	Since      time.Time   `json:"since"` // connected, or away, since then
	Session    Session     `json:"session"`
	Connection *Connection `json:"connection,omitempty"` // nil: the client is away
}

// Session is what a client has, also while it is away.
type Session struct {
	ExpirySeconds  int64 `json:"expirySeconds"` // after its connection; 0: ends with it; -1: never
	Subscriptions  int   `json:"subscriptions"`
	QueuedMessages int   `json:"queuedMessages"` // waiting or inflight
	QueuedBytes    int64 `json:"queuedBytes"`
}

// Connection is how a client is connected.
type Connection struct {
	Address           string `json:"address"`
	Protocol          string `json:"protocol"`         // 3.1, 3.1.1 or 5.0
	KeepAliveSeconds  int    `json:"keepAliveSeconds"` // 0: none
	ReceiveMaximum    int    `json:"receiveMaximum"`
	InflightMessages  int    `json:"inflightMessages"`            // sent and not acknowledged
	MaximumPacketSize int64  `json:"maximumPacketSize,omitempty"` // bytes; 0: any
	OutputBytes       int    `json:"outputBytes"`                 // that its socket has not taken yet
}

// ClientPage is a page of clients, in the order of their IDs.
type ClientPage struct {
	Clients []Client `json:"clients"`
	Next    string   `json:"next,omitempty"` // what to give as after for the next page; empty: there is none
}

func clientOf(info *registry.Info) Client {
	c := Client{
		ClientID: info.ClientID, Principal: info.Owner, Connected: info.Connected, Since: info.Since.UTC(),
		Session: Session{ExpirySeconds: info.Expiry, Subscriptions: info.Subscriptions, QueuedMessages: info.Queued, QueuedBytes: info.QueuedBytes},
	}
	if l := info.Link; l != nil {
		c.Connection = &Connection{
			Address: info.Address, Protocol: l.Protocol.String(), KeepAliveSeconds: int(l.KeepAlive),
			ReceiveMaximum: int(l.ReceiveMaximum), InflightMessages: int(l.Inflight), MaximumPacketSize: int64(l.MaximumPacketSize), OutputBytes: l.Output,
		}
	}
	return c
}

func (a *API) listClients(q *request) (any, error) {
	limit, err := q.limit(MaxPage)
	if err != nil {
		return nil, err
	}
	connected, given, err := q.flag("connected")
	if err != nil {
		return nil, err
	}
	after, err := q.after()
	if err != nil {
		return nil, err
	}
	most := limit + 1
	if given { // it is not known how many must be looked at
		most = math.MaxInt
	}
	page := ClientPage{Clients: []Client{}}
	seen := ""
	for i, id := range a.firstIDs(q.query.Get("prefix"), after, most) {
		if len(page.Clients) == limit || i == limit && !given {
			page.Next = cursor(seen)
			break
		}
		if info, ok := a.o.Sessions.Info(id); ok && (!given || info.Connected == connected) {
			page.Clients = append(page.Clients, clientOf(&info))
		}
		seen = id
	}
	return page, nil
}

// firstIDs gives the first IDs in their order that have the prefix and come after one.
func (a *API) firstIDs(prefix, after string, most int) []string {
	var first lastOnTop
	for _, s := range a.o.Sessions.All() {
		switch id := s.ID; {
		case id <= after || !strings.HasPrefix(id, prefix):
		case len(first) < most:
			heap.Push(&first, id)
		case id < first[0]:
			first[0] = id
			heap.Fix(&first, 0)
		}
	}
	slices.Sort(first)
	return first
}

// lastOnTop implements heap.Interface: the last in the order of texts is on top.
type lastOnTop []string

func (h lastOnTop) Len() int           { return len(h) }
func (h lastOnTop) Less(i, j int) bool { return h[i] > h[j] }
func (h lastOnTop) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lastOnTop) Push(x any)        { *h = append(*h, x.(string)) }

func (h *lastOnTop) Pop() any {
	last := len(*h) - 1
	id := (*h)[last]
	*h = (*h)[:last]
	return id
}

func noClient(id string) error {
	return failed(http.StatusNotFound, "there is no client %q: GET /api/v1/clients lists them. In the address, a / of a client ID is written %%2F", cut(id))
}

func (a *API) client(q *request) (any, error) {
	info, ok := a.o.Sessions.Info(q.id)
	if !ok {
		return nil, noClient(q.id)
	}
	return clientOf(&info), nil
}

// Ended says what was ended of a client.
type Ended struct {
	ClientID       string `json:"clientId"`
	Disconnected   bool   `json:"disconnected"`
	SessionDeleted bool   `json:"sessionDeleted"`
}

func (a *API) endClient(q *request) (any, error) {
	session, _, err := q.flag("session")
	if err != nil {
		return nil, err
	}
	info, ok := a.o.Sessions.Info(q.id)
	if !ok {
		return nil, noClient(q.id)
	}
	switch {
	case session && a.o.Sessions.EndSession(q.id):
		a.o.Audit.Operated(q.id, true)
		return Ended{ClientID: q.id, Disconnected: info.Connected, SessionDeleted: true}, nil
	case session:
		return nil, noClient(q.id)
	case a.o.Sessions.Kick(q.id):
		a.o.Audit.Operated(q.id, false)
		return Ended{ClientID: q.id, Disconnected: true}, nil
	}
	return nil, failed(http.StatusConflict, "the client %q is not connected: with ?session=true its session is deleted", cut(q.id))
}

// Subscription is one subscription of a session.
type Subscription struct {
	ClientID          string `json:"clientId"`
	Filter            string `json:"filter"` // as subscribed, $share/… included
	QoS               int    `json:"qos"`
	NoLocal           bool   `json:"noLocal"`
	RetainAsPublished bool   `json:"retainAsPublished"`
	Identifier        int    `json:"identifier,omitempty"` // 0: none
}

// SubscriptionPage is a page of subscriptions, in the order of their clients and filters.
type SubscriptionPage struct {
	Subscriptions []Subscription `json:"subscriptions"`
	Next          string         `json:"next,omitempty"` // what to give as after for the next page; empty: there is none
}

func (a *API) listSubscriptions(q *request) (any, error) {
	limit, err := q.limit(MaxPage)
	if err != nil {
		return nil, err
	}
	name := []byte(q.query.Get("topic"))
	if q.query.Has("topic") && !topic.ValidName(name) {
		return nil, failed(http.StatusBadRequest, "the parameter topic is no topic name: it must be there, and has no wildcards")
	}
	after, err := q.after()
	if err != nil {
		return nil, err
	}
	// A client ID has no U+0000, so it ends what comes before the filter.
	afterID, afterFilter, _ := strings.Cut(after, "\x00")
	ids := []string{q.query.Get("client")}
	if !q.query.Has("client") {
		ids = a.o.Sessions.ClientIDs()
	}
	first, _ := slices.BinarySearch(ids, afterID)
	page := SubscriptionPage{Subscriptions: []Subscription{}}
	for _, id := range ids[first:] {
		for _, sub := range a.subscriptionsOf(id, name) {
			if id == afterID && sub.Filter <= afterFilter {
				continue
			}
			if len(page.Subscriptions) == limit {
				last := &page.Subscriptions[limit-1]
				page.Next = cursor(last.ClientID + "\x00" + last.Filter)
				return page, nil
			}
			page.Subscriptions = append(page.Subscriptions, sub)
		}
	}
	return page, nil
}

// subscriptionsOf gives a client's subscriptions by their filters; with a topic name those that
// match it.
func (a *API) subscriptionsOf(id string, name []byte) (subs []Subscription) {
	s := a.o.Sessions.Lookup(id)
	if s == nil {
		return nil
	}
	s.Mu.Lock()
	for filter, sub := range s.Subs {
		if _, rest := topic.GroupOf(filter); len(name) == 0 || topic.Matches(rest, name) {
			subs = append(subs, Subscription{ClientID: id, Filter: filter, QoS: int(sub.QoS), NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished, Identifier: int(sub.ID)})
		}
	}
	s.Mu.Unlock()
	sort.Slice(subs, func(i, j int) bool { return subs[i].Filter < subs[j].Filter })
	return subs
}
