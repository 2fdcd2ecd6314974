package retained

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Store holds the retained message of each topic.
//
// A publish stores and routes under the lock of its topic, a replay reads and enqueues
// under it: a subscriber never gets an older message after a newer one.
type Store struct {
	o           Options
	names       topic.Names[*message.Message] // messages that aren't pooled
	stripes     [256]lockrank.Mutex[lockrank.TopicStripe]
	seed        maphash.Seed
	stamps      atomic.Uint64 // order in which messages were stored
	count       atomic.Int64  // messages, without the broker's own on $SYS
	bytesStored atomic.Int64  // their bytes
	bounds      atomic.Pointer[Bounds]
	owners      owners
	deadlines   deadlines
}

// Options configures a Store.
type Options struct {
	Journal *journal.Journal
	Memory  *memory.Pool
	Now     func() int64 // the broker's clock in ms
	Bounds  Bounds
}

// Bounds are for all retained messages, and for those that one principal has published, if
// its quota says nothing else.
type Bounds struct {
	Messages, ClientMessages int
	Bytes, ClientBytes       int64
}

// New is an empty store.
func New(o Options) *Store {
	r := &Store{o: o, seed: maphash.MakeSeed()}
	r.bounds.Store(&o.Bounds)
	r.owners.byName = make(map[string]holding)
	return r
}

// Bounds are those in force.
func (r *Store) Bounds() Bounds { return *r.bounds.Load() }

// SetBounds puts other bounds in force. What is stored beyond them stays.
func (r *Store) SetBounds(b Bounds) { r.bounds.Store(&b) }

// Counts says whether a retained message counts against the bounds, and is on disk: all
// but the broker's own figures.
func Counts(name []byte) bool { return !topic.OwnSys(name) }

// note counts a message that came, or with a sign of -1 one that went. The lock of its
// topic's stripe is held, or others don't know the store yet.
func (r *Store) note(m *message.Message, sign int64) {
	if Counts(m.Topic()) && len(m.Payload()) > 0 { // without payload it stands for a deletion, see Change
		switch {
		case m.ExpiresAt == 0:
		case sign > 0:
			r.deadlines.add(m)
		default:
			r.deadlines.remove(m)
		}
		r.count.Add(sign)
		r.bytesStored.Add(sign * sizeOf(m))
		r.owners.add(m.Principal(), sign, sign*sizeOf(m))
		r.o.Memory.Charge(memory.Retained, sign*(sizeOf(m)+int64(len(m.Topic()))+overhead))
	}
}

// overhead is about what a retained message takes of memory besides its bytes and its topic, which the
// index of names has as well: the Message and its places in that index and among the deadlines.
const overhead = 200

// sizeOf is what the message counts as in the bound of retained messages.
func sizeOf(m *message.Message) int64 { return m.Size() + int64(len(m.Publisher)) }

// LockOfEntry is the lock of the entry's topic.
func (r *Store) LockOfEntry(e *Entry) *lockrank.Mutex[lockrank.TopicStripe] {
	return &r.stripes[int(maphash.String(r.seed, e.Name())%uint64(len(r.stripes)))]
}

// LockOf is the lock of a topic.
func (r *Store) LockOf(topic []byte) *lockrank.Mutex[lockrank.TopicStripe] {
	return &r.stripes[r.StripeOf(topic)]
}

// StripeOf is the number of that lock, and Stripe the lock of a number: several are
// acquired in the order of their numbers.
func (r *Store) StripeOf(topic []byte) int {
	return int(maphash.Bytes(r.seed, topic) % uint64(len(r.stripes)))
}

// Stripe is the lock that StripeOf numbers.
func (r *Store) Stripe(i int) *lockrank.Mutex[lockrank.TopicStripe] { return &r.stripes[i] }

// Put stores the message, or with an empty payload deletes what is stored
// [MQTT-3.3.1-5, 3.3.1-6]. It says false at the bound. The topic's lock is held.
func (r *Store) Put(o *message.Outgoing) bool {
	if len(o.Payload) == 0 {
		if old, had := r.names.Delete(o.Topic); had {
			r.note(old, -1)
		}
		return true
	}
	old, had := r.names.Get(o.Topic)
	if had && len(old.Payload()) == 0 {
		old, had = nil, false // it stands for a deletion
	}
	size := int64(len(o.Topic) + len(o.RawProps) + len(o.Payload) + len(o.Publisher))
	if Counts(o.Topic) && (!r.mayRetain(o, old, size) || !r.o.Memory.Fits(memory.Retained, size)) {
		return false
	}
	m := o.Kept()
	m.Stamp = r.stamps.Add(1)
	o.Stamp = m.Stamp
	r.names.Put(string(o.Topic), m)
	r.note(m, 1)
	if had {
		r.note(old, -1)
	}
	return true
}

// Get gives the retained message of a topic. Its lock is held, unless the message may
// be replaced meanwhile.
func (r *Store) Get(topic []byte) (*message.Message, bool) { return r.names.Get(topic) }

// Entry is a topic that Match has found.
type Entry = topic.Entry[*message.Message]

// Match visits topics that match the filter and have retained messages, as
// topic.Names.Match does.
func (r *Store) Match(filter, after string, limit int, visit func(e *Entry)) (next string, more bool) {
	return r.names.Match(filter, after, limit, visit)
}

// Retained gives the message of a topic that Match has found, unless it has been deleted
// since. The topic's lock is held, unless the message may be replaced meanwhile.
func (r *Store) Retained(e *Entry) (m *message.Message, found bool) { return r.names.Value(e) }

// LastStamp is the stamp of the message that was stored last.
func (r *Store) LastStamp() uint64 { return r.stamps.Load() }

// StampedTo lets stamps go on from one that is on disk, while the server starts.
func (r *Store) StampedTo(stamp uint64) { r.stamps.Store(max(r.stamps.Load(), stamp)) }

// Restore adds a message that is on disk, while the server starts. It takes over the
// caller's reference, and keeps none, as with any message that is stored.
func (r *Store) Restore(topic string, m *message.Message) {
	r.StampedTo(m.Stamp)
	r.names.Put(topic, m)
	r.note(m, 1)
	m.Release()
}

// Len is how many messages are retained, without the broker's own on $SYS.
func (r *Store) Len() int { return int(r.count.Load()) }

// Bytes is the bytes of these messages.
func (r *Store) Bytes() int64 { return r.bytesStored.Load() }
