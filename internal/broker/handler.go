package broker

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Handler takes the publishes to some exact topics in place of routing them.
type Handler interface {
	// Open gives the handler's side of a connection, at its first publish.
	Open(c *Conn) Endpoint
}

// Endpoint is a Handler's side of one connection.
type Endpoint interface {
	// Handle takes one publish, on the reader's goroutine; p is a view that is
	// valid during the call. A publish of QoS 1 or 2 needs exactly one answer within the
	// call: Conn.Answer, or Conn.AnswerWhenDurable (QoS 1 only). If the connection is gone
	// (Conn.Gone), it needs none.
	Handle(t *session.Turn, p *mqtt.Publish)
	// Close says that the connection is gone.
	Close()
}

// requests is what a connection has from its first request to the handler on.
type requests struct {
	endpoint Endpoint          // the handler's side of the connection
	topic    access.Remembered // a topic of the handler that the client may publish to
	response access.Remembered // a Response Topic that the client may subscribe to
}

// mayRequest says whether the handler handles publishes to the topic, and the client may
// publish to it. The first time it opens the handler's side.
func (c *Conn) mayRequest(t *session.Turn, topic []byte) bool {
	if c.requests != nil && c.requests.topic.Is(t.Grants, topic) {
		return true
	}
	if !c.b.reservedTopics.Handled(topic) || !c.b.mayPublish(c, topic) {
		return false
	}
	if c.requests == nil {
		c.requests = &requests{endpoint: c.b.handler.Open(c)}
		c.session.NoteRequests()
	}
	c.requests.topic.Remember(t.Grants, topic)
	return true
}

// MayBeAnswered says whether the client may subscribe to the Response Topic of a request.
// Called by a Handler within Handle.
func (c *Conn) MayBeAnswered(t *session.Turn, responseTopic []byte) bool {
	if c.b.may == nil || c.requests.response.Is(t.Grants, responseTopic) {
		return true
	}
	if !c.b.mayBeAnswered(c, responseTopic) {
		return false
	}
	c.requests.response.Remember(t.Grants, responseTopic)
	return true
}

// BeginDecoding is called by a Handler, within Handle, before it decodes bytes of the
// client. Until EndDecoding the Handler must hold no lock and change no state, because a
// panic in that time ends the connection and not the process.
func (c *Conn) BeginDecoding() { c.decoding = true }

// EndDecoding says that the Handler has decoded the bytes: from here on a panic ends the
// process.
func (c *Conn) EndDecoding() { c.decoding = false }

// TooManyLevels says whether a topic name has more levels than the broker takes.
func (c *Conn) TooManyLevels(topic []byte) bool {
	return reserved.TooManyLevels(topic, c.b.Limits().MaxTopicLevels)
}

// Now is the broker's clock in milliseconds. It is monotonic and begins at 1 ms, when
// the broker starts.
func (c *Conn) Now() int64 { return c.b.Now() }

// Identity is what the client has proven to be; nil: the server neither authenticates
// clients nor has a policy. Safe for concurrent use.
func (c *Conn) Identity() *access.Identity { return c.identity.Load() }

// Notify sends a handler's notification to the client, and takes over the caller's
// reference to m. A notification that is queued when the connection is lost goes to a
// later connection of the session. Notify returns false if the notification is lost: the
// connection is gone, or its pending notifications have reached their bound. Safe for
// concurrent use; the caller need not flush.
func (c *Conn) Notify(m *message.Message) bool {
	t := c.b.LockDeferred()
	defer c.b.UnlockDeferred()
	if len(t.Notified) >= session.NotifiedAtOnce {
		t.Flush()
	}
	return c.session.Notify(t, &c.Peer, m)
}
