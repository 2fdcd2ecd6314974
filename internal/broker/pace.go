package broker

import (
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
)

// beginPacing begins a reader's turn with the debt of its turns before.
func (c *Conn) beginPacing(t *session.Turn) {
	if c.Transport.Waited() {
		c.debt = max(0, c.debt-session.PaceCredit)
	}
	t.Worked, t.Debt, t.ClientWaits = 1, int(c.debt), false
}

// pace lets other readers work if this one has worked for long. The reader calls it before
// each packet.
func (c *Conn) pace(t *session.Turn) { t.Pace(int(c.debt)) }

// endPacing ends a reader's turn, after the output has been flushed. If the client waits
// for its answers, endPacing tells the gate, which then leaves a processor free for such
// clients.
func (c *Conn) endPacing(t *session.Turn) {
	if t.ClientWaits && t.Debt == 0 && !t.InGate() {
		c.b.Gate.NoteOther()
	}
	t.LeaveGate()
	c.debt = int32(min(int(c.debt)+t.Worked, session.MaxDebt))
}

// policyLook is how often a reader that is held to a rate looks whether the policy has
// changed.
const policyLook = time.Second

// holdToRate holds the reader up before it handles a PUBLISH of size bytes, until the
// client's principal is within the rates of its quota. The client is not told: what it sends
// waits in its socket, and so its own flow control slows it down. As long as the reader is
// held up the client does not count as silent (Conn.heldUp); its PINGREQ is answered when
// the packets before it have been handled. What the client is owed is written before.
func (c *Conn) holdToRate(t *session.Turn, size int) error {
	grants := c.b.may.Grants(c.Identity())
	t.Grants = grants.Version
	q := &grants.Quota
	if !q.Limited() || c.session == nil {
		return nil
	}
	now := c.b.SinceStart
	rates := c.place.Rates()
	ticket := rates.Enter(q, size, now())
	wait := rates.Wait(q, ticket, int64(c.b.Limits().MaxPacketSize), now())
	if wait == 0 {
		return nil
	}
	c.b.Counters.HeldToRate.Add(1)
	t.Flush()
	c.Transport.Flush()
	t.LeaveGate()
	for ; wait > 0; wait = rates.Wait(q, ticket, int64(c.b.Limits().MaxPacketSize), now()) {
		if err := c.Transport.Pause(min(wait, policyLook)); err != nil {
			rates.Return(ticket)
			return errGone
		}
		grants = c.b.may.Grants(c.Identity())
		t.Grants, q = grants.Version, &grants.Quota
	}
	return nil
}
