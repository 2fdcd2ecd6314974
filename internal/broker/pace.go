package broker

import "github.com/holdfast-mqtt/holdfast/internal/broker/session"

// beginPacing begins a reader's turn with the debt of its turns before.
func (c *Conn) beginPacing(t *session.Turn) {
	if c.Transport.Waited() {
		c.debt = max(0, c.debt-session.PaceCredit)
	}
	t.Worked, t.Debt, t.Asked = 1, int(c.debt), false
}

// pace lets other readers work if this one has worked for long. The reader calls it before
// each packet.
func (c *Conn) pace(t *session.Turn) { t.Pace(int(c.debt)) }

// endPacing ends a reader's turn, after the output has been flushed. If the client waits
// for its answers, endPacing tells the gate, which then leaves a processor free for such
// clients.
func (c *Conn) endPacing(t *session.Turn) {
	if t.Asked && t.Debt == 0 && !t.InGate() {
		c.b.Gate.NoteOther()
	}
	t.LeaveGate()
	c.debt = int32(min(int(c.debt)+t.Worked, session.MaxDebt))
}
