package broker

import (
	"encoding/binary"
	"errors"

	"holdfast/internal/journal"
)

// What the broker keeps on disk besides sessions and subscriptions (persist.go):
//
//	q|{sid}|{seq}        → a message in a session's queue, or in a shared group's
//	p|{message number}   → a message that is in several queues
//	i|{sid}|{packet id}  → a QoS 2 publish received, between PUBREC and PUBCOMP
//	t|{topic}            → a retained message
//	o|{sid}|{number}     → retained messages that a new subscription is owed: from
//	                       which on, and which of them it has already; of several
//	                       rows of one filter the highest number counts
//	w|{sid}              → a will, with the time at which it is due. That of a session
//	                       that ends with its connection, which has no other row, has
//	                       a number of its own
//	g|{name}/{filter}    → a shared group with a backlog, and its sid
//
// with big-endian numbers. A row begins with the version of its form.
const (
	queuePrefix    = 'q'
	payloadPrefix  = 'p'
	receivedPrefix = 'i'
	retainedPrefix = 't'
	owedPrefix     = 'o'
	willPrefix     = 'w'
	groupPrefix    = 'g'
)

// Flags of a queue row.
const (
	rowSlotQoS       = 3 << 0 // of the delivery
	rowMessageQoS    = 3 << 2 // as published
	rowSlotRetain    = 1 << 4
	rowMessageRetain = 1 << 5
	rowReleased      = 1 << 6 // PUBREC received; there is no message any more
	rowElsewhere     = 1 << 7 // the message is a p row
)

// identifiedRowVersion is that of queue rows of deliveries whose packet identifier
// does not follow from the sequence number; the identifier comes after the flags.
const identifiedRowVersion = 2

var errRow = errors.New("a row on disk has an unknown form; was it written by a newer version?")

func numberedKey(prefix byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefix, '|'}, n)
}

func queueKey(sid, seq uint64) []byte { return appendQueueKey(nil, sid, seq) }

func appendQueueKey(dst []byte, sid, seq uint64) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, queuePrefix, '|'), sid)
	return binary.BigEndian.AppendUint64(dst, seq)
}

func receivedKey(sid uint64, id uint16) []byte {
	return binary.BigEndian.AppendUint16(numberedKey(receivedPrefix, sid), id)
}

func topicKey(prefix byte, topic []byte) []byte {
	return append([]byte{prefix, '|'}, topic...)
}

// afterNumber is the end of the range of keys that begin with prefix and n.
func afterNumber(prefix byte, n uint64) []byte { return numberedKey(prefix, n+1) }

// appendMessage appends the message itself: expiry, lengths, bytes. wall is what
// to add to the broker's clock to get the wall clock.
func appendMessage(dst []byte, m *Message, wall int64) []byte {
	expires := int64(0)
	if m.expiresAt != 0 {
		expires = m.expiresAt + wall
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(expires))
	dst = binary.AppendUvarint(dst, uint64(m.topicEnd))
	dst = binary.AppendUvarint(dst, uint64(m.propsEnd-m.topicEnd))
	return m.appendTo(dst)
}

// decodeMessage reads what appendMessage wrote into a message of its own.
func decodeMessage(row []byte, wall int64) (*Message, error) {
	if len(row) < 8 {
		return nil, errRow
	}
	expires := int64(binary.BigEndian.Uint64(row))
	row = row[8:]
	topicLen, n := binary.Uvarint(row)
	if n <= 0 {
		return nil, errRow
	}
	row = row[n:]
	propsLen, n := binary.Uvarint(row)
	if n <= 0 || topicLen > uint64(len(row)) || propsLen > uint64(len(row)) || topicLen+propsLen > uint64(len(row)-n) {
		return nil, errRow
	}
	row = row[n:]
	m := newMessage(len(row))
	m.buf = append(m.buf, row...)
	m.topicEnd, m.propsEnd = int(topicLen), int(topicLen+propsLen)
	if expires != 0 {
		m.expiresAt = max(1, expires-wall)
	}
	return m, nil
}

// stored is what has to be known of a message on disk.
type stored struct {
	size      int   // as Message.size
	expiresAt int64 // on the broker's clock in ms; 0: never
}

// storedMessage reads it from what appendMessage wrote.
func storedMessage(row []byte, wall int64) (m stored, err error) {
	if len(row) < 8 {
		return m, errRow
	}
	if expires := int64(binary.BigEndian.Uint64(row)); expires != 0 {
		m.expiresAt = max(1, expires-wall)
	}
	row = row[8:]
	for range 2 {
		_, n := binary.Uvarint(row)
		if n <= 0 {
			return m, errRow
		}
		row = row[n:]
	}
	m.size = len(row)
	return m, nil
}

// appendHead appends how a queue row begins: version, flags, and the packet
// identifier if it is one of its own.
func appendHead(dst []byte, id uint16, flags byte) []byte {
	if id == 0 {
		return append(dst, rowVersion, flags)
	}
	return binary.BigEndian.AppendUint16(append(dst, identifiedRowVersion, flags), id)
}

// ownID gives the packet identifier of a delivery if it doesn't follow from the
// sequence number, else 0.
func (q *outqueue) ownID(it *slot) uint16 {
	if it.id == q.packetID(it.seq) {
		return 0
	}
	return it.id
}

// appendReleasedRow appends the row of a delivery whose PUBREC has come.
func appendReleasedRow(dst []byte, id uint16, qos byte) []byte {
	return appendHead(dst, id, qos|rowReleased)
}

// appendQueueRow appends a session's queue row: version, flags, packet identifier
// (in version 2), subscription identifiers, the shared subscription's filter, and
// the message or its number.
func appendQueueRow(dst []byte, it *slot, id uint16, number uint64, wall int64) []byte {
	m := it.msg
	flags := it.qos | m.qos<<2
	if it.retain {
		flags |= rowSlotRetain
	}
	if m.retain {
		flags |= rowMessageRetain
	}
	if number != 0 {
		flags |= rowElsewhere
	}
	dst = appendHead(dst, id, flags)
	dst = binary.AppendUvarint(dst, uint64(len(it.subIDs)))
	for _, id := range it.subIDs {
		dst = binary.AppendUvarint(dst, uint64(id))
	}
	shared := ""
	if it.sub != nil && it.sub.group != nil {
		shared = it.sub.filter
	}
	dst = binary.AppendUvarint(dst, uint64(len(shared)))
	dst = append(dst, shared...)
	if number != 0 {
		return binary.BigEndian.AppendUint64(dst, number)
	}
	return appendMessage(dst, m, wall)
}

// queueRow is what a queue row says.
type queueRow struct {
	slot   slot
	shared string // filter of the shared subscription, empty: none
	flags  byte
	number uint64 // of the p row, 0: the message is here
	rest   []byte // the message
}

func decodeQueueRow(row []byte) (r queueRow, err error) {
	if len(row) < 2 || row[0] != rowVersion && row[0] != identifiedRowVersion {
		return r, errRow
	}
	r.flags = row[1]
	r.slot.qos = r.flags & 3
	r.slot.retain = r.flags&rowSlotRetain != 0
	identified := row[0] == identifiedRowVersion
	row = row[2:]
	if identified {
		if len(row) < 2 {
			return r, errRow
		}
		r.slot.id = binary.BigEndian.Uint16(row)
		row = row[2:]
	}
	if r.flags&rowReleased != 0 {
		r.slot.state = slotReleased
		return r, nil
	}
	ids, n := binary.Uvarint(row)
	if n <= 0 || ids > uint64(len(row)) {
		return r, errRow
	}
	row = row[n:]
	for range ids {
		id, n := binary.Uvarint(row)
		if n <= 0 {
			return r, errRow
		}
		r.slot.subIDs = append(r.slot.subIDs, uint32(id))
		row = row[n:]
	}
	length, n := binary.Uvarint(row)
	if n <= 0 || length > uint64(len(row)-n) {
		return r, errRow
	}
	r.shared = string(row[n : n+int(length)])
	row = row[n+int(length):]
	if r.flags&rowElsewhere != 0 {
		if len(row) != 8 {
			return r, errRow
		}
		r.number = binary.BigEndian.Uint64(row)
		return r, nil
	}
	r.rest = row
	return r, nil
}

// message gives the row's message, from the row itself or from its p row.
func (r *queueRow) message(j *journal.Journal, wall int64) (*Message, error) {
	row := r.rest
	if r.number != 0 {
		var found bool
		var err error
		if row, found, err = j.Get(numberedKey(payloadPrefix, r.number)); err != nil {
			return nil, err
		} else if !found || len(row) == 0 || row[0] != rowVersion {
			return nil, errRow
		}
		row = row[1:]
	}
	m, err := decodeMessage(row, wall)
	if err != nil {
		return nil, err
	}
	m.qos = r.flags & rowMessageQoS >> 2
	m.retain = r.flags&rowMessageRetain != 0
	return m, nil
}

// sessionRow is what a session's row says.
type sessionRow struct {
	sid    uint64
	expiry uint32 // seconds
	away   int64  // since when, on the wall clock in ms; 0: the client was connected
	sent   uint64 // sequence number before which messages may have been sent
	asked  byte   // see Session.asked
}

// unknownSent says that any message may have been sent.
const unknownSent = ^uint64(0)

func decodeSessionRow(row []byte) (r sessionRow, err error) {
	switch {
	case len(row) == 29 && row[0] == rowVersion:
	case len(row) == 30 && row[0] == sessionRowVersion:
		r.asked = row[29]
	default:
		return r, errRow
	}
	r.sid = binary.BigEndian.Uint64(row[1:])
	r.expiry = binary.BigEndian.Uint32(row[9:])
	r.away = int64(binary.BigEndian.Uint64(row[13:]))
	r.sent = binary.BigEndian.Uint64(row[21:])
	if row[0] == rowVersion && r.away == 0 {
		r.sent = unknownSent
	}
	return r, nil
}

// decodeSubscriptionRow reads a subscription, whose session is the caller's to
// find; key begins with the sid.
func decodeSubscriptionRow(key, row []byte) (*subscription, error) {
	if len(key) < 10 || len(row) != 6 || row[0] != rowVersion {
		return nil, errRow
	}
	options := row[1]
	return &subscription{
		filter: string(key[9:]), qos: options & 3,
		noLocal:           options&optionNoLocal != 0,
		retainAsPublished: options&optionRetainAsPublished != 0,
		id:                binary.BigEndian.Uint32(row[2:]),
	}, nil
}

func decodeGroupRow(row []byte) (gid uint64, err error) {
	if len(row) != 9 || row[0] != rowVersion {
		return 0, errRow
	}
	return binary.BigEndian.Uint64(row[1:]), nil
}

// retainedRowVersion is the form of a retained message's row that says when it was
// stored and by which client. Rows of version 1 don't.
const retainedRowVersion = 2

func appendRetainedRow(dst []byte, m *Message, wall int64) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, retainedRowVersion, m.qos), m.stamp)
	return appendMessage(appendText(dst, m.publisher), m, wall)
}

func decodeRetainedRow(row []byte, wall int64) (*Message, error) {
	if len(row) < 2 {
		return nil, errRow
	}
	version, qos, stamp, publisher := row[0], row[1]&3, uint64(0), ""
	row = row[2:]
	switch {
	case version == rowVersion:
	case version == retainedRowVersion && len(row) > 8:
		stamp = binary.BigEndian.Uint64(row)
		var ok bool
		if publisher, row, ok = cutText(row[8:]); !ok {
			return nil, errRow
		}
	default:
		return nil, errRow
	}
	m, err := decodeMessage(row, wall)
	if err == nil {
		m.qos, m.retain, m.stamp, m.publisher = qos, true, stamp, publisher
	}
	return m, err
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// cutText takes what appendText wrote from the front of row.
func cutText(row []byte) (text string, rest []byte, ok bool) {
	length, n := binary.Uvarint(row)
	if n <= 0 || length > uint64(len(row)-n) {
		return "", nil, false
	}
	return string(row[n : n+int(length)]), row[n+int(length):], true
}

func owedKey(sid, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(numberedKey(owedPrefix, sid), '|'), number)
}

// row is version, the stamp that it began at, how often it begins anew, filter,
// cursor, and the stamps that were routed.
func (r *replay) row() []byte {
	row := binary.BigEndian.AppendUint64([]byte{rowVersion}, r.since)
	row = binary.AppendUvarint(row, r.again)
	row = appendText(appendText(row, r.filter), r.after)
	for _, stamp := range r.routed {
		row = binary.BigEndian.AppendUint64(row, stamp)
	}
	return row
}

// decodeOwedRow reads a replay, whose subscription is the caller's to find, and the
// number that its key ends with.
func decodeOwedRow(key, row []byte) (r *replay, number uint64, err error) {
	if len(key) != 17 || len(row) < 9 || row[0] != rowVersion {
		return nil, 0, errRow
	}
	r = &replay{since: binary.BigEndian.Uint64(row[1:]), key: append([]byte{owedPrefix, '|'}, key...)}
	again, n := binary.Uvarint(row[9:])
	if n <= 0 {
		return nil, 0, errRow
	}
	r.again = again
	var ok, whole bool
	r.filter, row, ok = cutText(row[9+n:])
	r.after, row, whole = cutText(row)
	if !ok || !whole || len(row)%8 != 0 {
		return nil, 0, errRow
	}
	for ; len(row) > 0; row = row[8:] {
		r.routed = append(r.routed, binary.BigEndian.Uint64(row))
	}
	return r, keyNumber(key[9:]), nil
}

func decodeWillRow(key, row []byte) (*will, error) {
	if len(key) != 8 || len(row) < 14 || row[0] != rowVersion {
		return nil, errRow
	}
	m, err := decodeMessage(row[14:], 0)
	if err != nil {
		return nil, err
	}
	m.qos, m.retain = row[1]&3, row[1]&rowMessageRetain != 0
	return &will{message: m, due: int64(keyNumber(row[2:])), delay: binary.BigEndian.Uint32(row[10:])}, nil
}
