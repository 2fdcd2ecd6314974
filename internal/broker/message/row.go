package message

import "github.com/holdfast-mqtt/holdfast/internal/broker/rows"

// AppendRow appends the message as it is on disk. wall is what to add to the broker's
// clock to get the wall clock.
func (m *Message) AppendRow(dst []byte, wall int64) []byte {
	expires := int64(0)
	if m.ExpiresAt != 0 {
		expires = m.ExpiresAt + wall
	}
	return m.appendTo(rows.AppendMessage(dst, expires, m.topicEnd, m.propsEnd-m.topicEnd))
}

// AppendRetainedRow appends the row of a retained message.
func (m *Message) AppendRetainedRow(dst []byte, wall int64) []byte {
	r := rows.Retained{QoS: m.QoS, Stamp: m.Stamp, Publisher: m.Publisher}
	if m.Owner != nil {
		r.Owner = *m.Owner
	}
	return m.AppendRow(r.Append(dst), wall)
}

// ExpiryOf gives the time on the broker's clock at which a message on disk expires.
func ExpiryOf(r *rows.Message, wall int64) int64 {
	if r.ExpiresAt == 0 {
		return 0
	}
	return max(1, r.ExpiresAt-wall)
}

// FromRow copies a message on disk.
func FromRow(r *rows.Message, wall int64) *Message {
	m := New(len(r.Body))
	m.buf = append(m.buf, r.Body...)
	m.topicEnd, m.propsEnd, m.ExpiresAt = r.TopicLen, r.TopicLen+r.PropsLen, ExpiryOf(r, wall)
	return m
}

// KeptFromRow is FromRow for a message that stays.
func KeptFromRow(r *rows.Message, wall int64) *Message {
	m := NewKept(len(r.Body))
	m.buf = append(m.buf, r.Body...)
	m.topicEnd, m.propsEnd, m.ExpiresAt = r.TopicLen, r.TopicLen+r.PropsLen, ExpiryOf(r, wall)
	return m
}
