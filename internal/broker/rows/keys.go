package rows

import "encoding/binary"

// The broker's rows:
//
//	s|{client ID}        → a session that outlives its connection, and its sid
//	u|{sid}|{filter}     → a subscription
//	q|{sid}|{seq}        → a message in a session's queue, or in the backlog of a shared subscription
//	p|{message number}   → a message that is in several queues
//	i|{sid}|{packet id}  → a QoS 2 publish received, between PUBREC and PUBCOMP
//	t|{topic}            → a retained message
//	o|{sid}|{number}     → retained messages that a new subscription is owed: from
//	                       which on, and which of them it has already; of several
//	                       rows of one filter the highest number counts
//	w|{sid}              → a will, with the time at which it is due. That of a session
//	                       that ends with its connection, which has no other row, has
//	                       a number of its own
//	g|{name}/{filter}    → a shared subscription with a backlog, and its sid
//	d|{due}{number}      → a message to be published later (timers.go)
//	e|{principal}{id}    → which one that is
//
// with big-endian numbers. The sid is new for each session, so that what an earlier
// session of the client left can't come back. Rows whose sid belongs to no session
// are what a crash left of a session that ended; the next start deletes them.
//
// A row begins with the version of its form.

// Kind is the first byte of a row's key.
type Kind byte

// The kinds of rows.
const (
	SessionKind      Kind = 's'
	SubscriptionKind Kind = 'u'
	QueuedKind       Kind = 'q'
	PayloadKind      Kind = 'p'
	ReceivedKind     Kind = 'i'
	RetainedKind     Kind = 't'
	OwedKind         Kind = 'o'
	WillKind         Kind = 'w'
	GroupKind        Kind = 'g'
)

// numbered gives the key of a kind and a number, or how the keys of all rows of that
// kind begin that belong to the session with that sid.
func (k Kind) numbered(n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{byte(k), '|'}, n)
}

func (k Kind) named(name string) []byte { return append([]byte{byte(k), '|'}, name...) }

// Of gives the range of keys of all rows of this kind that belong to a session or
// group.
func (k Kind) Of(sid uint64) (from, to []byte) { return k.numbered(sid), k.numbered(sid + 1) }

// SessionKey is the key of a client's session.
func SessionKey(client string) []byte { return SessionKind.named(client) }

// SubscriptionKey is the key of a session's subscription.
func SubscriptionKey(sid uint64, filter string) []byte {
	return append(append(SubscriptionKind.numbered(sid), '|'), filter...)
}

// QueueKey is the key of a message in the queue of a session or group.
func QueueKey(sid, seq uint64) []byte { return AppendQueueKey(nil, sid, seq) }

// AppendQueueKey appends a QueueKey.
func AppendQueueKey(dst []byte, sid, seq uint64) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, byte(QueuedKind), '|'), sid)
	return binary.BigEndian.AppendUint64(dst, seq)
}

// QueueSeq reads the sequence number in a QueueKey.
func QueueSeq(key []byte) uint64 { return number(key[10:]) }

// PayloadKey is the key of a message that is in several queues.
func PayloadKey(n uint64) []byte { return PayloadKind.numbered(n) }

// ReceivedKey is the key of a QoS 2 publish received from a session's client.
func ReceivedKey(sid uint64, id uint16) []byte {
	return binary.BigEndian.AppendUint16(ReceivedKind.numbered(sid), id)
}

// RetainedKey is the key of a topic's retained message.
func RetainedKey(topic []byte) []byte { return append([]byte{byte(RetainedKind), '|'}, topic...) }

// OwedKey is the key of what a subscription of a session is owed.
func OwedKey(sid, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(OwedKind.numbered(sid), '|'), n)
}

// WillKey is the key of a will.
func WillKey(n uint64) []byte { return WillKind.numbered(n) }

// GroupKey is the key of a shared subscription, {name}/{filter}, with a backlog.
func GroupKey(group string) []byte { return GroupKind.named(group) }

// number reads the number that a key or row begins with.
func number(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
