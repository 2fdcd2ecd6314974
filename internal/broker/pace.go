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
	t.Worked, t.Debt, t.ClientWaits = 1+int(c.readWork), int(c.debt), false
}

// beginRead and endRead are called before and after a read, which is work as well unless it waits
// for the client: a client may send a packet in records of TLS, or fragments of WebSocket, of a
// byte each, and with other records between them that have the server make new keys. The clock is
// read only for a reader that has found more input several times in a row.
func (c *Conn) beginRead() (began time.Duration) {
	if c.debt < timedDebt {
		return 0
	}
	return c.b.SinceStart()
}

// timedDebt is the debt of a reader from which on its reads are timed.
const timedDebt = 16

// endRead is the counterpart of beginRead, whose result it is given.
func (c *Conn) endRead(began time.Duration) {
	c.readWork = 0
	if began > 0 && !c.Transport.Waited() {
		c.readWork = int16(min((c.b.SinceStart()-began)/time.Microsecond, session.PaceBurst))
	}
}

// countPart counts the work for a packet of which only a part has been read, so that a reader
// of large packets, or of very small parts, takes turns between reads, and not only between
// packets.
func (c *Conn) countPart(t *session.Turn) {
	part := len(c.Transport.Buffered())
	c.partWork = int16(min(int(c.partWork)+t.Worked, session.PaceBurst))
	if part-int(c.counted) < minCountedPart && c.partWork < session.PaceBurst {
		return
	}
	c.decoding = false
	t.Worked += (part - int(c.counted)) / session.BytesPerUnit
	c.counted, c.partWork = int32(part), 0
	c.pace(t)
}

// minCountedPart is how many bytes of an unfinished packet the reader reads before it counts
// them.
const minCountedPart = 64 << 10

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
