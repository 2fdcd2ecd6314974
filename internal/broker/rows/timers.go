package rows

import (
	"encoding/binary"
)

// Timers: messages to be published later. Each has two rows, which one batch writes and one
// batch deletes:
//
//	d|{due}{number}                     → the message, and how it is to be published
//	e|{length}{principal}{timer ID}     → due and number, and what a list shows
//
// with big-endian numbers; the length is a varint. due is in ms on the wall clock. The first
// rows give the order in which timers become due, the second find one by its ID.

// The kinds of the rows of timers.
const (
	TimerKind   Kind = 'd'
	TimerIDKind Kind = 'e'
)

// TimerKey is the key of a timer's message.
func TimerKey(due int64, number uint64) []byte {
	return binary.BigEndian.AppendUint64(TimerKind.numbered(uint64(max(0, due))), number)
}

// TimersFrom begins the keys of the timers that are due at a time or later.
func TimersFrom(due int64) []byte { return TimerKind.numbered(uint64(max(0, due))) }

// AfterTimers is behind the keys of all timers.
func AfterTimers() []byte { return []byte{byte(TimerKind), '|' + 1} }

// SplitTimerKey reads a TimerKey.
func SplitTimerKey(key []byte) (due int64, number uint64, err error) {
	if len(key) != 18 {
		return 0, 0, errRow
	}
	return int64(binary.BigEndian.Uint64(key[2:])), binary.BigEndian.Uint64(key[10:]), nil
}

// TimerIDKey is the key by which a timer is found by its ID. Each principal has IDs of its
// own; empty: those of clients that have not proven who they are.
func TimerIDKey(principal string, id []byte) []byte {
	return append(TimerIDsOf(principal), id...)
}

// TimerIDsOf begins the keys of all timers of a principal.
func TimerIDsOf(principal string) []byte {
	return appendText([]byte{byte(TimerIDKind), '|'}, principal)
}

// Timer is the row of a timer's message.
type Timer struct {
	QoS       byte
	Retain    bool
	Tries     byte   // how often it was due and found no room
	Run       int64  // the run of the server in which an interval began, by its epoch; 0: it is due at a time
	RunDue    int64  // when it is due on that run's clock, which no step of the wall clock moves
	Principal string // of the client; empty: it had not proven who it is
	Client    string
	ID        string
	Identity  string  // of the client, as JSON; empty: it had none
	Message   Message // ExpiresAt is an interval in ms that begins when the message is published
}

const timerRetain = 1 << 2

// Append appends the row without its message. The caller appends that.
func (r *Timer) Append(dst []byte) []byte {
	flags := r.QoS
	if r.Retain {
		flags |= timerRetain
	}
	dst = append(dst, version, flags, r.Tries)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Run))
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.RunDue))
	for _, text := range []string{r.Principal, r.Client, r.ID, r.Identity} {
		dst = appendText(dst, text)
	}
	return dst
}

// DecodeTimer decodes the row of a timer's message.
func DecodeTimer(row []byte) (r Timer, err error) {
	if len(row) < 19 || row[0] != version || row[1] >= timerRetain<<1 || row[1]&3 > 2 {
		return r, errRow
	}
	r.QoS, r.Retain, r.Tries = row[1]&3, row[1]&timerRetain != 0, row[2]
	r.Run, r.RunDue = int64(number(row[3:])), int64(number(row[11:]))
	row = row[19:]
	for _, text := range []*string{&r.Principal, &r.Client, &r.ID, &r.Identity} {
		var ok bool
		if *text, row, ok = cutText(row); !ok {
			return r, errRow
		}
	}
	if r.ID == "" {
		return r, errRow
	}
	r.Message, err = decodeMessage(row)
	return r, err
}

// TimerID is the row by which a timer is found.
type TimerID struct {
	Due      int64 // with Number the key of the message
	Number   uint64
	Interval int64  // in ms, from when the timer was set; -1: it is due at a time
	At       int64  // that time on the wall clock in ms, or when the interval ends
	Size     int64  // bytes on disk that the timer counts, of both rows
	Client   string // that has set it
	Topic    string
}

// Latest is when the timer is due at the latest, by a wall clock that shows now: at its time,
// or when its interval would be over that begins now.
func (r *TimerID) Latest(now int64) int64 {
	if r.Interval >= 0 {
		return now + r.Interval
	}
	return max(r.At, now)
}

// Append appends the row.
func (r *TimerID) Append(dst []byte) []byte {
	dst = append(dst, version)
	for _, n := range []uint64{uint64(r.Due), r.Number, uint64(r.Interval), uint64(r.At), uint64(r.Size)} {
		dst = binary.BigEndian.AppendUint64(dst, n)
	}
	return append(appendText(dst, r.Client), r.Topic...)
}

// DecodeTimerID decodes the row by which a timer is found.
func DecodeTimerID(row []byte) (r TimerID, err error) {
	if len(row) < 41 || row[0] != version {
		return r, errRow
	}
	r.Due, r.Number = int64(number(row[1:])), number(row[9:])
	r.Interval, r.At, r.Size = int64(number(row[17:])), int64(number(row[25:])), int64(number(row[33:]))
	var ok bool
	if r.Client, row, ok = cutText(row[41:]); !ok || r.Size < 0 {
		return r, errRow
	}
	r.Topic = string(row)
	return r, nil
}

// SplitTimerIDKey reads a TimerIDKey.
func SplitTimerIDKey(key []byte) (principal string, id []byte, err error) {
	if len(key) < 2 {
		return "", nil, errRow
	}
	principal, id, ok := cutText(key[2:])
	if !ok || len(id) == 0 {
		return "", nil, errRow
	}
	return principal, id, nil
}
