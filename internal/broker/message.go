package broker

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"holdfast/internal/mqtt"
)

// Message is one application message in memory that belongs to the broker: its
// topic, its forwardable properties and its payload in one buffer. A handler's
// message may have, somewhere in its payload, bytes of the handler's in place of a
// copy: its value.
//
// Messages are shared by the queues that hold them and counted: whoever keeps a
// pointer has called retain, and calls release when done. Contents don't change
// once the message has been given to anybody.
type Message struct {
	refs int32 // by package atomic, but for a pooled message that nobody else knows

	buf        []byte // topic, properties, payload but for value
	topicEnd   int
	propsEnd   int
	value      []byte // a part of the payload that is referred to, see Composer.Refer; nil: none
	valueAt    int    // where in buf it would stand
	qos        byte
	retain     bool   // RETAIN as published
	deadlineAt int32  // of a retained message that can expire: its place in the store's deadlines, guarded by their lock
	expiresAt  int64  // on the broker's clock in ms; 0: never
	stamp      uint64 // order of being stored as retained; 0: was not
	publisher  string // client identifier of whose message it is; empty: no client's
	fromPooled bool   // the buffer goes back to a pool with the last release

	charged   int32   // by package atomic: 0, or one more than the memory.Kind that the message is charged as
	chargedBy *Broker // set with charged
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

// newMessage gives an empty message with room for size bytes and one reference.
func newMessage(size int) *Message {
	class := classOf(size)
	if class >= classes {
		return &Message{refs: 1, buf: make([]byte, 0, size)}
	}
	m, _ := messagePools[class].Get().(*Message)
	if m == nil {
		m = &Message{buf: make([]byte, 0, 1<<(smallestClass+2*class)), fromPooled: true}
	}
	m.refs = 1
	return m
}

// newKeptMessage is newMessage for messages that stay: they aren't pooled, so
// that a reader may hold on to one without counting.
func newKeptMessage(size int) *Message {
	return &Message{refs: 1, buf: make([]byte, 0, size)}
}

func (m *Message) keep() { atomic.AddInt32(&m.refs, 1) }

// release gives one reference back. Who has the only one to a pooled message needs
// no atomic operation for that: nobody else can come by another.
func (m *Message) release() {
	if m.fromPooled && atomic.LoadInt32(&m.refs) == 1 {
		m.refs = 0
	} else if n := atomic.AddInt32(&m.refs, -1); n > 0 {
		return
	} else if n < 0 {
		panic("broker: message released more often than kept")
	}
	if m.charged != 0 {
		m.chargedBy.credit(m)
	}
	if !m.fromPooled {
		return
	}
	class := classOf(cap(m.buf))
	if class >= classes || cap(m.buf) != 1<<(smallestClass+2*class) {
		return // it grew out of its class
	}
	*m = Message{buf: m.buf[:0], fromPooled: true}
	messagePools[class].Put(m)
}

// notExpired gives a message that nobody has yet another moment to live.
func (m *Message) notExpired(now int64) {
	if m.expiresAt != 0 {
		m.expiresAt = max(m.expiresAt, now+1)
	}
}

func (m *Message) topic() []byte { return m.buf[:m.topicEnd] }
func (m *Message) props() []byte { return m.buf[m.topicEnd:m.propsEnd] }
func (m *Message) size() int64   { return int64(len(m.buf) + len(m.value)) }

// payload gives the payload, or what of it stands before the value.
func (m *Message) payload() []byte {
	if m.value != nil {
		return m.buf[m.propsEnd:m.valueAt]
	}
	return m.buf[m.propsEnd:]
}

// rest gives what of the payload follows the value.
func (m *Message) rest() []byte {
	if m.value != nil {
		return m.buf[m.valueAt:]
	}
	return nil
}

// appendTo appends the whole message.
func (m *Message) appendTo(dst []byte) []byte {
	if m.value == nil {
		return append(dst, m.buf...)
	}
	return append(append(append(dst, m.buf[:m.valueAt]...), m.value...), m.rest()...)
}

// Composer builds a message of the broker's own: topic first, then properties,
// then payload. Properties and payload are appended to Buf in place.
type Composer struct {
	Buf []byte
	m   *Message
}

// Compose begins a QoS 1 message to topic with room for about size more bytes.
func Compose(topic []byte, size int) Composer {
	m := newMessage(len(topic) + size)
	m.qos = 1
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
func (c *Composer) ExpireAt(ms int64) { c.m.expiresAt = ms }

// Message ends the building: the rest of Buf is the payload. The caller owns
// the one reference and gives it away with the call that takes the message.
func (c *Composer) Message() *Message {
	c.m.buf = c.Buf
	return c.m
}

// secondsLeft is what remains of an expiry, rounded up, or 0 when it has passed.
func secondsLeft(expiresAt, now int64) uint32 {
	if expiresAt <= now {
		return 0
	}
	return uint32((expiresAt - now + 999) / 1000)
}

// outgoing is a message on its way through routing: views into a reader's
// buffer, of which a Message is made only if a queue must keep it.
type outgoing struct {
	topic, payload []byte
	rawProps       []byte // property block as received; the forwardable part is made when needed
	props          []byte // forwardable properties
	propsReady     bool
	qos            byte
	retain         bool
	expiresAt      int64
	publisher      string   // client identifier, for No Local; empty: local to no client
	stamp          uint64   // order of being stored as retained; 0: it wasn't
	msg            *Message // made at first need
	direct         bool     // the message is a handler's: it never touches the disk and uses the upper packet identifiers
}

// forwardable gives the properties to pass on, made at first use in the turn's scratch.
func (o *outgoing) forwardable(t *Turn) []byte {
	if !o.propsReady {
		t.props = mqtt.AppendForwardProps(t.props[:0], o.rawProps)
		o.props, o.propsReady = t.props, true
	}
	return o.props
}

// message gives a Message of the contents with a reference for the caller;
// the outgoing keeps one of its own until done is called.
func (o *outgoing) message(t *Turn) *Message {
	if o.msg == nil {
		props := o.forwardable(t)
		m := newMessage(len(o.topic) + len(props) + len(o.payload))
		o.fill(m, props)
		o.msg = m
	}
	o.msg.keep()
	return o.msg
}

func (o *outgoing) fill(m *Message, props []byte) {
	m.buf = append(m.buf, o.topic...)
	m.topicEnd = len(m.buf)
	m.buf = append(m.buf, props...)
	m.propsEnd = len(m.buf)
	m.buf = append(m.buf, o.payload...)
	m.qos, m.retain, m.expiresAt, m.publisher = o.qos, o.retain, o.expiresAt, o.publisher
}

func (o *outgoing) done() {
	if o.msg != nil {
		o.msg.release()
		o.msg = nil
	}
}

// routed gives the outgoing form of a finished message, taking over the caller's reference.
func (m *Message) routed() outgoing {
	return outgoing{
		topic: m.topic(), payload: m.payload(), props: m.props(), propsReady: true,
		qos: m.qos, retain: m.retain, expiresAt: m.expiresAt, publisher: m.publisher, msg: m,
	}
}
