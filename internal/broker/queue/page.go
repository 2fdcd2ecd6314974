package queue

import (
	"errors"
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Reader reads messages of queues back from disk.
type Reader struct {
	Journal *journal.Journal
	Wall    int64 // what to add to the broker's clock to get the wall clock, in ms
}

// Page is a part of a queue that is to be read from disk: the messages of Seqs or, if Seqs
// is empty, those with From <= sequence number < To.
type Page struct {
	SID      uint64
	Seqs     []uint64 // sequence numbers of messages to read one by one
	From, To uint64   // a range of sequence numbers
	Messages int      // of a range: how many messages Read reads at most
	Bytes    int64    // of a range: Read ends with the message that reaches this
}

// Loaded is a message that Read has read.
type Loaded struct {
	Seq uint64
	It  Slot  // with the message
	Err error // why there is no message
}

// Read reads a page. whole: it has read all of the page's messages.
func (r *Reader) Read(p *Page) (found []Loaded, whole bool, err error) {
	read := func(seq uint64, value []byte) int {
		l := Loaded{Seq: seq}
		q, err := rows.DecodeQueued(value)
		if err == nil {
			l.It = SlotOf(&q)
			l.It.Message, err = r.Message(&q)
		}
		l.Err = err
		found = append(found, l)
		if err != nil {
			return 0
		}
		return int(l.It.Message.Size())
	}
	if len(p.Seqs) > 0 {
		for _, seq := range p.Seqs {
			value, there, err := r.Journal.Get(rows.QueueKey(p.SID, seq))
			if err != nil {
				return found, false, err
			}
			if there {
				read(seq, value)
			}
		}
		return found, true, nil
	}
	whole = true
	bytes := int64(0)
	err = r.Journal.Iterate(rows.QueueKey(p.SID, p.From), rows.QueueKey(p.SID, p.To), func(key, value []byte) bool {
		bytes += int64(read(rows.QueueSeq(key), value))
		whole = len(found) < p.Messages && bytes < p.Bytes
		return whole
	})
	return found, whole, err
}

// Message makes the message of a queue's row, or of the p row that it refers to.
func (r *Reader) Message(q *rows.Queued) (*message.Message, error) {
	stored := q.Message
	if q.Number != 0 {
		payload, found, err := r.Journal.Get(rows.PayloadKey(q.Number))
		if err != nil {
			return nil, err
		} else if !found {
			return nil, fmt.Errorf("its message %d is missing", q.Number)
		}
		if stored, err = rows.DecodePayload(payload); err != nil {
			return nil, err
		}
	} else if q.Released {
		return nil, errors.New("it has been released, and has no message")
	}
	m := message.FromRow(&stored, r.Wall)
	m.QoS, m.Retain = q.MessageQoS, q.MessageRetain
	return m, nil
}

// Release releases the messages that are still in found.
func Release(found []Loaded) {
	for _, l := range found {
		if l.It.Message != nil {
			l.It.Message.Release()
		}
	}
}

// ExpiredRow is a row on disk whose message has expired.
type ExpiredRow struct {
	Seq    uint64
	Number uint64 // of the p row that has the message; 0: this one has
	Size   int    // bytes of the message
}

// Expired reads at most most rows of a queue. It returns the rows whose messages have
// expired by now, the earliest expiry of the others (0: none expires), and the sequence
// number at which to continue; to: all are read. Times are on the broker's clock in ms.
func (r *Reader) Expired(sid, from, to uint64, most int, now int64) (gone []ExpiredRow, earliest int64, next uint64, err error) {
	looked := 0
	next = to
	err = r.Journal.Iterate(rows.QueueKey(sid, from), rows.QueueKey(sid, to), func(key, value []byte) bool {
		if looked == most {
			next = rows.QueueSeq(key)
			return false
		}
		looked++
		q, err := rows.DecodeQueued(value)
		if err != nil || q.Released {
			return true // the goroutine that loads it for sending reports the error
		}
		m := q.Message
		if q.Number != 0 {
			payload, found, err := r.Journal.Get(rows.PayloadKey(q.Number))
			if err != nil || !found {
				return true
			}
			if m, err = rows.DecodePayload(payload); err != nil {
				return true
			}
		}
		switch expires := message.ExpiryOf(&m, r.Wall); {
		case expires == 0:
		case expires <= now:
			gone = append(gone, ExpiredRow{rows.QueueSeq(key), q.Number, len(m.Body)})
		case earliest == 0 || expires < earliest:
			earliest = expires
		}
		return true
	})
	return gone, earliest, next, err
}

// Numbers returns the numbers of the p rows that a part of a queue refers to.
func (r *Reader) Numbers(sid, from, to uint64) (numbers []uint64, err error) {
	err = r.Journal.Iterate(rows.QueueKey(sid, from), rows.QueueKey(sid, to), func(_, value []byte) bool {
		if q, err := rows.DecodeQueued(value); err == nil && q.Number != 0 {
			numbers = append(numbers, q.Number)
		}
		return true
	})
	return numbers, err
}
