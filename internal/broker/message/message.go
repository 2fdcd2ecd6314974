package message

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Message is one application message in memory that belongs to the broker: its
// topic, its forwardable properties and its payload in one buffer. A handler's
// message may have, somewhere in its payload, bytes of the handler's in place of a
// copy: its value.
//
// Queues and outputs share messages and count references: a goroutine that keeps a
// pointer calls Keep before and Release when done. The contents don't change once
// another goroutine can see the message.
type Message struct {
	refs int32 // by package atomic, but for a pooled message that one goroutine has alone

	buf        []byte // topic, properties, payload but for value
	topicEnd   int
	propsEnd   int
	value      []byte // a part of the payload that is referred to, see Composer.Refer; nil: none
	valueAt    int    // where in buf it would stand
	QoS        byte
	Retain     bool        // RETAIN as published
	DeadlineAt int32       // of a retained message that can expire: its place in the store's deadlines, guarded by their lock
	ExpiresAt  int64       // on the broker's clock in ms; 0: never
	Stamp      uint64      // order of being stored as retained; 0: was not
	AfterBatch journal.Seq // no client is sent it before this batch is durable: the transaction's that has published it; 0: none has
	Publisher  string      // client identifier of whose message it is; empty: no client's
	Owner      *string     // which principal that client belongs to, if it has proven one; shared, not to be changed. nil: none
	pooled     bool        // the buffer goes back to a pool with the last release

	charged   int32     // by package atomic: 0, or one more than the memory.Kind that the message is charged as
	chargedBy *Accounts // set when it is first charged
}

// Buffers are pooled by size class, 256 bytes to 16 KiB, each four times the
// one before; larger ones are left to the garbage collector.
const (
	smallestClass = 8 // 1<<8 bytes
	classes       = 4
)

var messagePools [classes]sync.Pool

func classOf(size int) int {
	if size <= 1<<smallestClass {
		return 0
	}
	return (bits.Len(uint(size-1)) - smallestClass + 1) / 2
}

// New is an empty pooled message with room for size bytes and one reference.
func New(size int) *Message {
	class := classOf(size)
	if class >= classes {
		return &Message{refs: 1, buf: make([]byte, 0, size)}
	}
	m, _ := messagePools[class].Get().(*Message)
	if m == nil {
		m = &Message{buf: make([]byte, 0, 1<<(smallestClass+2*class)), pooled: true}
	}
	m.refs = 1
	return m
}

// NewKept is New for messages that stay: they aren't pooled, so
// that a goroutine may keep a pointer without counting. The store of retained messages
// does so: the references are those of queues and outputs.
func NewKept(size int) *Message {
	return &Message{refs: 1, buf: make([]byte, 0, size)}
}

// Keep counts one more reference.
func (m *Message) Keep() { atomic.AddInt32(&m.refs, 1) }

// Release gives one reference back. The only reference to a pooled message takes no atomic
// operation: no other goroutine can get one meanwhile.
func (m *Message) Release() {
	if m.pooled && atomic.LoadInt32(&m.refs) == 1 {
		m.refs = 0
	} else if n := atomic.AddInt32(&m.refs, -1); n > 0 {
		return
	} else if n < 0 {
		panic("broker: message released more often than kept")
	}
	if atomic.LoadInt32(&m.charged) != 0 {
		if m.Stamp != 0 {
			m.chargedBy.creditStored(m)
			return
		}
		m.chargedBy.credit(m)
	}
	if !m.pooled {
		return
	}
	class := classOf(cap(m.buf))
	if class >= classes || cap(m.buf) != 1<<(smallestClass+2*class) {
		return // it grew out of its class
	}
	*m = Message{buf: m.buf[:0], pooled: true}
	messagePools[class].Put(m)
}

// NotExpired extends the expiry of a message that only the caller has, so that the
// time that the disk took cannot expire it.
func (m *Message) NotExpired(now int64) {
	if m.ExpiresAt != 0 {
		m.ExpiresAt = max(m.ExpiresAt, now+1)
	}
}

// Topic is the topic name.
func (m *Message) Topic() []byte { return m.buf[:m.topicEnd] }

// Props is the block of forwardable properties.
func (m *Message) Props() []byte { return m.buf[m.topicEnd:m.propsEnd] }

// Size is the bytes of topic, properties and payload.
func (m *Message) Size() int64 { return int64(len(m.buf) + len(m.value)) }

// Payload gives the payload, or what of it stands before the value.
func (m *Message) Payload() []byte {
	if m.value != nil {
		return m.buf[m.propsEnd:m.valueAt]
	}
	return m.buf[m.propsEnd:]
}

// LentValue gives the bytes of a handler's that the payload refers to; nil: none.
func (m *Message) LentValue() []byte { return m.value }

// Rest gives what of the payload follows the value.
func (m *Message) Rest() []byte {
	if m.value != nil {
		return m.buf[m.valueAt:]
	}
	return nil
}

// Principal is what the message counts for when it is retained: the principal that its
// publisher has proven to be, or its client ID; empty: no client's.
func (m *Message) Principal() string { return principal(m.Owner, m.Publisher) }

// Principal is the same for a message on its way.
func (o *Outgoing) Principal() string { return principal(o.Owner, o.Publisher) }

func principal(owner *string, publisher string) string {
	if owner != nil {
		return *owner
	}
	return publisher
}

// appendTo appends the whole message.
func (m *Message) appendTo(dst []byte) []byte {
	if m.value == nil {
		return append(dst, m.buf...)
	}
	return append(append(append(dst, m.buf[:m.valueAt]...), m.value...), m.Rest()...)
}

// Composer builds a message of the broker's own: topic first, then properties,
// then payload. Properties and payload are appended to Buf in place.
type Composer struct {
	Buf []byte
	m   *Message
}

// Compose begins a QoS 1 message to topic with room for about size more bytes.
func Compose(topic []byte, size int) Composer {
	m := New(len(topic) + size)
	m.QoS = 1
	buf := append(m.buf, topic...)
	m.topicEnd = len(buf)
	return Composer{Buf: buf, m: m}
}

// EndProperties says that what has been appended since Compose is the block of
// properties, without its length.
func (c *Composer) EndProperties() { c.m.propsEnd = len(c.Buf) }

// Refer puts p into the payload, after what is in Buf, without copying it: its bytes
// must never change. At most once, after EndProperties; p is not empty.
func (c *Composer) Refer(p []byte) { c.m.value, c.m.valueAt = p, len(c.Buf) }

// ExpireAt makes the message expire at a time that Broker.Now gives.
func (c *Composer) ExpireAt(ms int64) { c.m.ExpiresAt = ms }

// Message ends the building: the rest of Buf is the payload. The caller owns
// the one reference and gives it away with the call that takes the message.
func (c *Composer) Message() *Message {
	c.m.buf = c.Buf
	return c.m
}

// SecondsLeft is what remains of an expiry, rounded up, or 0 when it has passed.
func SecondsLeft(expiresAt, now int64) uint32 {
	if expiresAt <= now {
		return 0
	}
	return uint32((expiresAt - now + 999) / 1000)
}

// Outgoing is a message on its way through routing: views into a reader's
// buffer, of which a Message is made only if a queue must keep it.
type Outgoing struct {
	Topic, Payload []byte
	RawProps       []byte // property block as received; the forwardable part is made when needed
	props          []byte // forwardable properties
	propsReady     bool
	QoS            byte
	Retain         bool
	ExpiresAt      int64
	Publisher      string        // client identifier, for No Local; empty: local to no client
	Owner          *string       // which principal that client belongs to, if it has proven one; nil: none
	Quota          *access.Quota // of that principal, for a message that is to be retained; nil: bounds nothing
	Stamp          uint64        // order of being stored as retained; 0: it wasn't
	Msg            *Message      // made at first need
	Direct         bool          // the message is a handler's: it never touches the disk and uses the upper packet identifiers
}

// Forwardable gives the properties to pass on, made at first use in scratch.
func (o *Outgoing) Forwardable(scratch *[]byte) []byte {
	if !o.propsReady {
		*scratch = mqtt.AppendForwardProps((*scratch)[:0], o.RawProps)
		o.props, o.propsReady = *scratch, true
	}
	return o.props
}

// Message gives a Message of the contents with a reference for the caller;
// the Outgoing keeps one of its own until Done is called.
func (o *Outgoing) Message(scratch *[]byte) *Message {
	if o.Msg == nil {
		props := o.Forwardable(scratch)
		m := New(len(o.Topic) + len(props) + len(o.Payload))
		o.fill(m, props)
		o.Msg = m
	}
	o.Msg.Keep()
	return o.Msg
}

// Kept gives the unpooled Message of the contents, which further calls of Message
// return, too.
func (o *Outgoing) Kept() *Message {
	if o.Msg == nil || o.Msg.pooled {
		props := o.props
		if !o.propsReady {
			props = mqtt.AppendForwardProps(nil, o.RawProps)
		}
		m := NewKept(len(o.Topic) + len(props) + len(o.Payload))
		o.fill(m, props)
		// What these were views of may be the message that is let go.
		o.Topic, o.props, o.Payload, o.propsReady = m.Topic(), m.Props(), m.Payload(), true
		o.Done()
		o.Msg = m
	}
	return o.Msg
}

func (o *Outgoing) fill(m *Message, props []byte) {
	m.buf = append(m.buf, o.Topic...)
	m.topicEnd = len(m.buf)
	m.buf = append(m.buf, props...)
	m.propsEnd = len(m.buf)
	m.buf = append(m.buf, o.Payload...)
	m.QoS, m.Retain, m.ExpiresAt, m.Publisher, m.Owner = o.QoS, o.Retain, o.ExpiresAt, o.Publisher, o.Owner
}

// Done lets go of the message, if one was made.
func (o *Outgoing) Done() {
	if o.Msg != nil {
		o.Msg.Release()
		o.Msg = nil
	}
}

// Outgoing gives the outgoing form of a finished message, taking over the caller's reference.
func (m *Message) Outgoing() Outgoing {
	return Outgoing{
		Topic: m.Topic(), Payload: m.Payload(), props: m.Props(), propsReady: true,
		QoS: m.QoS, Retain: m.Retain, ExpiresAt: m.ExpiresAt, Publisher: m.Publisher, Owner: m.Owner, Msg: m,
	}
}
