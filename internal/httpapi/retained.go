package httpapi

import (
	"encoding/base64"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Retained is what the API shows of a retained message.
type Retained struct {
	Topic           string  `json:"topic"`
	QoS             int     `json:"qos"`
	Bytes           int     `json:"bytes"`                     // of the payload
	ExpiresSeconds  int64   `json:"expiresInSeconds,omitzero"` // 0: never
	Publisher       string  `json:"publisher,omitempty"`       // principal, or client ID, that has published it
	Payload         *string `json:"payload,omitempty"`         // as text
	PayloadBase64   *string `json:"payloadBase64,omitempty"`   // of a payload that is no text
	PayloadWithheld bool    `json:"payloadWithheld,omitzero"`  // the policy does not let the administrator read the topic
}

// RetainedPage is a page of retained messages, in the order of their topics.
type RetainedPage struct {
	Retained []Retained `json:"retained"`
	Next     string     `json:"next,omitempty"` // what to give as after for the next page; empty: there is none
}

// filter reads the parameter filter.
func (a *API) filter(q *request) (string, error) {
	filter := q.query.Get("filter")
	switch {
	case strings.HasPrefix(filter, "$share/"):
		return "", failed(http.StatusBadRequest, "the parameter filter is that of a shared subscription: give its topic filter")
	case !topic.ValidFilter(filter) || !utf8.ValidString(filter):
		return "", failed(http.StatusBadRequest, "the parameter filter is %q: want a topic filter, in which the address has %%23 for # and %%2B for +", cut(filter))
	case topic.Levels(filter) > a.o.Sessions.Limits().MaxTopicLevels:
		return "", failed(http.StatusBadRequest, "the parameter filter has too many levels")
	}
	return filter, nil
}

func (a *API) listRetained(q *request) (any, error) {
	if !q.query.Has("filter") {
		q.query.Set("filter", "#")
	}
	filter, err := a.filter(q)
	if err != nil {
		return nil, err
	}
	limit, err := q.limit(MaxPage)
	if err != nil {
		return nil, err
	}
	payload, _, err := q.flag("payload")
	if err != nil {
		return nil, err
	}
	after, err := q.after()
	if err != nil {
		return nil, err
	}
	page := RetainedPage{Retained: []Retained{}}
	store, size := a.o.Sessions.Retained, 0
	for more := true; more && len(page.Retained) < limit && size < maxPageSize; {
		// One at a time, as the page may be full of bytes before it is full of messages.
		after, more = store.Match(filter, after, 1, func(e *retained.Entry) {
			m, found := store.Retained(e)
			if !found || len(m.Payload()) == 0 {
				return
			}
			page.Retained = append(page.Retained, a.show(q.by, m, payload))
			if payload {
				size += len(m.Payload())
			}
		})
		page.Next = cursor(after)
	}
	return page, nil
}

// show is what is shown of a message.
func (a *API) show(by *access.Identity, m *message.Message, payload bool) Retained {
	r := Retained{Topic: string(m.Topic()), QoS: int(m.QoS), Bytes: len(m.Payload()), Publisher: m.Principal()}
	if m.ExpiresAt != 0 {
		r.ExpiresSeconds = max(1, int64(message.SecondsLeft(m.ExpiresAt, a.o.Sessions.Now())))
	}
	if !payload {
		return r
	}
	if a.o.May != nil && !a.o.May.MaySubscribe(known(by), m.Topic()) {
		r.PayloadWithheld = true
		return r
	}
	if text := string(m.Payload()); utf8.ValidString(text) {
		r.Payload = &text
		return r
	}
	text := base64.StdEncoding.EncodeToString(m.Payload())
	r.PayloadBase64 = &text
	return r
}

// known is an administrator, or an anonymous client in place of one whom the server does not ask
// who it is.
func known(by *access.Identity) *access.Identity {
	if by == nil {
		return &access.Identity{Method: access.Anonymous}
	}
	return by
}

// Deleted says what was deleted of retained messages.
type Deleted struct {
	Deleted int    `json:"deleted"`
	Denied  int    `json:"denied"`         // that the policy does not let the administrator publish to, or that are the server's own
	Next    string `json:"next,omitempty"` // what to give as after to go on; empty: all were looked at
}

// deleteRetained deletes messages, and waits until that is durable. Subscribers are not told.
func (a *API) deleteRetained(q *request) (any, error) {
	if !q.query.Has("filter") {
		return nil, failed(http.StatusBadRequest, "the parameter filter is missing: it says which messages to delete; %%23, which is #, means all but those below $SYS")
	}
	filter, err := a.filter(q)
	if err != nil {
		return nil, err
	}
	limit, err := q.limit(MaxDeleted)
	if err != nil {
		return nil, err
	}
	after, err := q.after()
	if err != nil {
		return nil, err
	}
	r, by := a.o.Sessions, known(q.by)
	var d Deleted
	for more := true; more && limit > 0; {
		r.Journal.Admit()
		step := min(limit, deletedPerAdmission)
		limit -= step
		after, more = r.Retained.Match(filter, after, step, func(e *retained.Entry) {
			name := []byte(e.Name())
			if a.o.Reserved.Protected(name) || a.o.May != nil && !a.o.May.MayPublish(by, name) {
				d.Denied++
				return
			}
			lock := r.Retained.LockOfEntry(e)
			lock.Lock()
			if m, found := r.Retained.Retained(e); found && len(m.Payload()) > 0 {
				r.Retained.Remove(m)
				d.Deleted++
			}
			lock.Unlock()
		})
	}
	d.Next = cursor(after)
	r.WaitDurable(r.Journal.Last())
	return d, nil
}

// deletedPerAdmission is how many messages are deleted before the disk is asked whether it
// keeps up.
const deletedPerAdmission = 256
