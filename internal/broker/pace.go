package broker

import "github.com/holdfast-mqtt/holdfast/internal/broker/session"

// beginPacing notes that a reader's turn begins, and what it owes from before.
func (c *Conn) beginPacing(t *session.Turn) {
	if c.Transport.Waited() {
		c.owed = max(0, c.owed-session.PaceCredit)
	}
	t.Worked, t.Owed, t.Asked = 1, int(c.owed), false
}

// pace is called before each packet.
func (c *Conn) pace(t *session.Turn) { t.Pace(int(c.owed)) }

// endPacing ends a reader's turn; what it has appended has been written. Readers in the
// gate make room for a client that has asked for something and waits for its answers.
func (c *Conn) endPacing(t *session.Turn) {
	if t.Asked && t.Owed == 0 && !t.InGate() {
		c.b.Gate.NoteOther()
	}
	t.LeaveGate()
	c.owed = int32(min(int(c.owed)+t.Worked, session.MaxOwed))
}
