package rows

import (
	"encoding/binary"
	"errors"
)

// version is the first byte of a row in the first form of its kind. Later forms of a kind
// have constants of their own.
const version = 1

var errRow = errors.New("a row on disk has an unknown form; was it written by a newer version?")

// Message is an application message in a row. Body is a slice of the row.
type Message struct {
	ExpiresAt int64  // on the wall clock in ms; 0: never. Of a will: an interval in ms that begins when the will is published
	Body      []byte // topic, forwardable properties, payload
	TopicLen  int
	PropsLen  int
}

// Topic is the message's topic.
func (m *Message) Topic() []byte { return m.Body[:m.TopicLen] }

// AppendMessage appends the head of a message. The caller appends the body.
func AppendMessage(dst []byte, expiresAt int64, topicLen, propsLen int) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(expiresAt))
	dst = binary.AppendUvarint(dst, uint64(topicLen))
	return binary.AppendUvarint(dst, uint64(propsLen))
}

func decodeMessage(row []byte) (m Message, err error) {
	if len(row) < 8 {
		return m, errRow
	}
	m.ExpiresAt = int64(number(row))
	row = row[8:]
	topicLen, n := binary.Uvarint(row)
	if n <= 0 {
		return m, errRow
	}
	row = row[n:]
	propsLen, n := binary.Uvarint(row)
	if n <= 0 || topicLen > uint64(len(row)) || propsLen > uint64(len(row)) || topicLen+propsLen > uint64(len(row)-n) {
		return m, errRow
	}
	m.Body, m.TopicLen, m.PropsLen = row[n:], int(topicLen), int(propsLen)
	return m, nil
}

// AppendPayload appends the head of a p row, which holds a message that is in several
// queues. The caller appends the message.
func AppendPayload(dst []byte) []byte { return append(dst, version) }

// DecodePayload decodes a p row.
func DecodePayload(row []byte) (Message, error) {
	if len(row) == 0 || row[0] != version {
		return Message{}, errRow
	}
	return decodeMessage(row[1:])
}

// Flags of the row of a queued message.
const (
	flagDeliveryQoS    = 3 << 0
	flagMessageQoS     = 3 << 2 // as published
	flagDeliveryRetain = 1 << 4
	flagMessageRetain  = 1 << 5
	flagReleased       = 1 << 6 // PUBREC received; the row has no message
	flagElsewhere      = 1 << 7 // the message is in a p row
)

// identifiedVersion is the version of the rows of deliveries whose packet identifier does
// not follow from the sequence number. The identifier comes after the flags.
const identifiedVersion = 2

// Queued is a message in the queue of a session or group.
type Queued struct {
	QoS           byte // of the delivery
	Retain        bool // of the delivery
	MessageQoS    byte // as published
	MessageRetain bool // as published
	Released      bool // PUBREC received: the row has only QoS and ID
	ID            uint16
	SubIDs        []uint32 // subscription identifiers of all subscriptions that matched
	Shared        string   // filter of the shared subscription, $share/… included; empty: none
	Number        uint64   // of the p row that holds the message; 0: this row holds it
	Message       Message
}

// Append appends the row without its message. If Number is 0 and Released is false, the
// caller appends the message.
func (q *Queued) Append(dst []byte) []byte {
	flags := q.QoS | q.MessageQoS<<2
	if q.Retain {
		flags |= flagDeliveryRetain
	}
	if q.MessageRetain {
		flags |= flagMessageRetain
	}
	if q.Number != 0 {
		flags |= flagElsewhere
	}
	if q.Released {
		flags = q.QoS | flagReleased
	}
	if q.ID == 0 {
		dst = append(dst, version, flags)
	} else {
		dst = binary.BigEndian.AppendUint16(append(dst, identifiedVersion, flags), q.ID)
	}
	if q.Released {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(q.SubIDs)))
	for _, id := range q.SubIDs {
		dst = binary.AppendUvarint(dst, uint64(id))
	}
	dst = appendText(dst, q.Shared)
	if q.Number != 0 {
		dst = binary.BigEndian.AppendUint64(dst, q.Number)
	}
	return dst
}

// DecodeQueued decodes the row of a queued message.
func DecodeQueued(row []byte) (q Queued, err error) {
	if len(row) < 2 || row[0] != version && row[0] != identifiedVersion {
		return q, errRow
	}
	flags, identified := row[1], row[0] == identifiedVersion
	q.QoS, q.Retain = flags&flagDeliveryQoS, flags&flagDeliveryRetain != 0
	row = row[2:]
	if identified {
		if len(row) < 2 {
			return q, errRow
		}
		q.ID = binary.BigEndian.Uint16(row)
		row = row[2:]
	}
	if flags&flagReleased != 0 {
		q.Released = true
		return q, nil
	}
	q.MessageQoS, q.MessageRetain = flags&flagMessageQoS>>2, flags&flagMessageRetain != 0
	ids, n := binary.Uvarint(row)
	if n <= 0 || ids > uint64(len(row)) {
		return q, errRow
	}
	row = row[n:]
	for range ids {
		id, n := binary.Uvarint(row)
		if n <= 0 {
			return q, errRow
		}
		q.SubIDs = append(q.SubIDs, uint32(id))
		row = row[n:]
	}
	var ok bool
	if q.Shared, row, ok = cutText(row); !ok {
		return q, errRow
	}
	if flags&flagElsewhere != 0 {
		if len(row) != 8 {
			return q, errRow
		}
		q.Number = number(row)
		return q, nil
	}
	q.Message, err = decodeMessage(row)
	return q, err
}

// ReceivedRow is the row of the packet identifier of a QoS 2 publish received.
func ReceivedRow() []byte { return []byte{version} }

// Versions of session rows. Version 1 has no QueueFull, and its Sent is valid only if the
// client was away; otherwise any message may have been sent.
const (
	sessionVersion      = 2
	ownedSessionVersion = 3 // with an owner
)

// Session is a session that outlives its connection.
type Session struct {
	SID       uint64
	Expiry    uint32 // seconds
	Away      int64  // since when the client is away, on the wall clock in ms; 0: it was connected
	Sent      uint64 // sequence number before which messages may have been sent
	QueueFull byte   // what the client asked the broker to do when its queue is full, an index of limits.QueueFulls
	Owner     string // principal to which it belongs; empty: it belongs to clients that have not proven who they are
}

// UnknownSent is the value of Session.Sent if any message may have been sent.
const UnknownSent = ^uint64(0)

// Row is version (1 byte), sid (8), expiry (4), away (8), sent (8), queue full (1) and, if
// the session has one, its owner.
func (s *Session) Row() []byte {
	row := binary.BigEndian.AppendUint64([]byte{sessionVersion}, s.SID)
	row = binary.BigEndian.AppendUint32(row, s.Expiry)
	row = binary.BigEndian.AppendUint64(row, uint64(s.Away))
	row = binary.BigEndian.AppendUint64(row, s.Sent)
	row = append(row, s.QueueFull)
	if s.Owner != "" {
		row[0] = ownedSessionVersion
		row = append(row, s.Owner...)
	}
	return row
}

func decodeSession(row []byte) (s Session, err error) {
	switch {
	case len(row) == 29 && row[0] == version:
	case len(row) == 30 && row[0] == sessionVersion:
		s.QueueFull = row[29]
	case len(row) > 30 && row[0] == ownedSessionVersion:
		s.QueueFull, s.Owner = row[29], string(row[30:])
	default:
		return s, errRow
	}
	s.SID = number(row[1:])
	s.Expiry = binary.BigEndian.Uint32(row[9:])
	s.Away = int64(number(row[13:]))
	s.Sent = number(row[21:])
	if row[0] == version && s.Away == 0 {
		s.Sent = UnknownSent
	}
	return s, nil
}

// Options of a subscription row; the lowest two bits are the QoS.
const (
	optionNoLocal           = 1 << 2
	optionRetainAsPublished = 1 << 3
)

// Subscription is a subscription of a session.
type Subscription struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	ID                uint32 // Subscription Identifier; 0: none
}

// Row is version (1 byte), options (1), subscription identifier (4). The filter is in the
// key.
func (s *Subscription) Row() []byte {
	options := s.QoS
	if s.NoLocal {
		options |= optionNoLocal
	}
	if s.RetainAsPublished {
		options |= optionRetainAsPublished
	}
	return binary.BigEndian.AppendUint32([]byte{version, options}, s.ID)
}

// decodeSubscription decodes the key and the row of a subscription. The key begins with
// the sid.
func decodeSubscription(key, row []byte) (sid uint64, s Subscription, err error) {
	if len(key) < 10 || len(row) != 6 || row[0] != version {
		return 0, s, errRow
	}
	options := row[1]
	return number(key), Subscription{
		Filter: string(key[9:]), QoS: options & 3,
		NoLocal:           options&optionNoLocal != 0,
		RetainAsPublished: options&optionRetainAsPublished != 0,
		ID:                binary.BigEndian.Uint32(row[2:]),
	}, nil
}

// GroupRow is the row of a shared subscription with a backlog: version (1 byte), and the sid
// (8) that the keys of the backlog's messages have.
func GroupRow(sid uint64) []byte { return binary.BigEndian.AppendUint64([]byte{version}, sid) }

func decodeGroup(row []byte) (sid uint64, err error) {
	if len(row) != 9 || row[0] != version {
		return 0, errRow
	}
	return number(row[1:]), nil
}

// Versions of retained messages' rows: those of retainedVersion have stamp and publisher,
// those of ownedRetainedVersion also the principal to which the publisher belonged. Rows of
// version 1 have none of these.
const (
	retainedVersion      = 2
	ownedRetainedVersion = 3
)

// Retained is a retained message.
type Retained struct {
	QoS       byte
	Stamp     uint64 // rises with each message stored; 0: not known
	Publisher string // client identifier; empty: not known
	Owner     string // the publisher's principal; empty: the publisher had not proven who it is, or the row does not say
	Message   Message
}

// Append appends the row without its message. The caller appends that.
func (r *Retained) Append(dst []byte) []byte {
	form := byte(retainedVersion)
	if r.Owner != "" {
		form = ownedRetainedVersion
	}
	dst = binary.BigEndian.AppendUint64(append(dst, form, r.QoS), r.Stamp)
	dst = appendText(dst, r.Publisher)
	if r.Owner != "" {
		dst = appendText(dst, r.Owner)
	}
	return dst
}

func decodeRetained(row []byte) (r Retained, err error) {
	if len(row) < 2 {
		return r, errRow
	}
	form := row[0]
	r.QoS = row[1] & 3
	row = row[2:]
	switch {
	case form == version:
	case (form == retainedVersion || form == ownedRetainedVersion) && len(row) > 8:
		r.Stamp = number(row)
		var ok bool
		if r.Publisher, row, ok = cutText(row[8:]); !ok {
			return r, errRow
		}
		if form == retainedVersion {
			break
		}
		if r.Owner, row, ok = cutText(row); !ok || r.Owner == "" {
			return r, errRow
		}
	default:
		return r, errRow
	}
	r.Message, err = decodeMessage(row)
	return r, err
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// cutText decodes a text that appendText wrote at the beginning of row, and returns the
// bytes after it.
func cutText(row []byte) (text string, rest []byte, ok bool) {
	length, n := binary.Uvarint(row)
	if n <= 0 || length > uint64(len(row)-n) {
		return "", nil, false
	}
	return string(row[n : n+int(length)]), row[n+int(length):], true
}

// Owed says which retained messages a new subscription is still owed.
type Owed struct {
	Filter string
	Since  uint64   // the subscription is owed no message with a higher stamp: such a message is routed to it
	Routed []uint64 // stamps up to Since of messages that were routed to the subscription, and are therefore not owed
	After  string   // all messages of topics up to this one have been sent
	Again  uint64   // how many more times the replay is to start from the first topic
}

// Row is version (1 byte), since (8), again (varint), filter, after, and the stamps of
// Routed (8 each).
func (o *Owed) Row() []byte {
	row := binary.BigEndian.AppendUint64([]byte{version}, o.Since)
	row = binary.AppendUvarint(row, o.Again)
	row = appendText(appendText(row, o.Filter), o.After)
	for _, stamp := range o.Routed {
		row = binary.BigEndian.AppendUint64(row, stamp)
	}
	return row
}

// decodeOwed decodes the key and the row of an Owed. The key has the sid and a number.
func decodeOwed(key, row []byte) (sid, n uint64, o Owed, err error) {
	if len(key) != 17 || len(row) < 9 || row[0] != version {
		return 0, 0, o, errRow
	}
	o.Since = number(row[1:])
	again, length := binary.Uvarint(row[9:])
	if length <= 0 {
		return 0, 0, o, errRow
	}
	o.Again = again
	var ok, whole bool
	o.Filter, row, ok = cutText(row[9+length:])
	o.After, row, whole = cutText(row)
	if !ok || !whole || len(row)%8 != 0 {
		return 0, 0, o, errRow
	}
	for ; len(row) > 0; row = row[8:] {
		o.Routed = append(o.Routed, number(row))
	}
	return number(key), number(key[9:]), o, nil
}

// Will is a client's will.
type Will struct {
	QoS      byte
	Retain   bool
	Due      int64  // when it is to be published, on the wall clock in ms; 0: the client was connected
	Delay    uint32 // seconds
	Identity []byte // the client's access.Identity as JSON; empty: it had none, or the row is of version 1
	Message  Message
}

// identityWillVersion is the version of wills' rows with the client's identity.
const identityWillVersion = 2

// Row is version (1 byte), QoS and RETAIN (1), due (8), delay (4) and, in version 2, the
// identity with its length. The caller appends the message.
func (w *Will) Row() []byte {
	row := binary.BigEndian.AppendUint64([]byte{version, w.QoS}, uint64(w.Due))
	if w.Retain {
		row[1] |= flagMessageRetain
	}
	row = binary.BigEndian.AppendUint32(row, w.Delay)
	if len(w.Identity) > 0 {
		row[0] = identityWillVersion
		row = append(binary.AppendUvarint(row, uint64(len(w.Identity))), w.Identity...)
	}
	return row
}

func decodeWill(key, row []byte) (n uint64, w Will, err error) {
	if len(key) != 8 || len(row) < 14 || row[0] != version && row[0] != identityWillVersion {
		return 0, w, errRow
	}
	w.QoS, w.Retain = row[1]&3, row[1]&flagMessageRetain != 0
	w.Due, w.Delay = int64(number(row[2:])), binary.BigEndian.Uint32(row[10:])
	rest := row[14:]
	if row[0] == identityWillVersion {
		size, n := binary.Uvarint(rest)
		if n <= 0 || size == 0 || size > uint64(len(rest)-n) {
			return 0, w, errRow
		}
		w.Identity, rest = rest[n:n+int(size)], rest[n+int(size):]
	}
	w.Message, err = decodeMessage(rest)
	return number(key), w, err
}
