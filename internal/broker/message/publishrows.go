package message

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// PublishRows is what goes to disk in the same batch as a publish's messages.
type PublishRows struct {
	Received uint64 // sid of the session whose client sent a QoS 2 publish; 0: none
	ID       uint16
	Retained *Message // stored under its topic; one without payload deletes
	Will     uint64   // number of the row of the will that this was; 0: it has none
	Owed     []byte   // key of a replay's row; nil: none
	OwedRow  []byte   // its value

	Mute       bool // the publisher can't be told that a message isn't retained
	Unretained bool // by Router.Publish: the message was to be retained, and there was no room
}

// Empty says whether there are none.
func (w *PublishRows) Empty() bool {
	return w.Received == 0 && w.Retained == nil && w.Will == 0 && w.Owed == nil
}

// Append appends the rows to the journal; row is scratch memory, which it returns. wall is
// what to add to the broker's clock to get the wall clock, in ms.
func (w *PublishRows) Append(a journal.Append, row []byte, wall int64) []byte {
	if w.Received != 0 {
		a.Set(rows.ReceivedKey(w.Received, w.ID), rows.ReceivedRow())
	}
	if m := w.Retained; m != nil {
		key := rows.RetainedKey(m.Topic())
		if len(m.Payload()) == 0 {
			a.Delete(key)
		} else {
			row = m.AppendRetainedRow(row[:0], wall)
			a.Set(key, row)
		}
	}
	if w.Will != 0 {
		a.Delete(rows.WillKey(w.Will))
	}
	if w.Owed != nil {
		a.Set(w.Owed, w.OwedRow)
	}
	return row
}
