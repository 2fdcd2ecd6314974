package broker

// Pacing: how a reader that always finds more to read is kept from taking the
// processors from all others.
//
// A reader counts its work in units of roughly a microsecond: packets, their bytes,
// the subscriptions that a publish matches, messages that are sent. A clock would
// tell it more exactly, and cost more than the rest of a small packet. Whenever its
// client made it wait it is credited some units; a client that waits for its
// answers never owes any. One that owes more than a burst enters the gate
// (transport.Gate), where greedy readers take turns.
const (
	// paceBurst is how much work a reader may owe, and how much it does inside
	// before it gives its place away.
	paceBurst = 256
	// paceCredit is what a reader is credited when its client made it wait.
	paceCredit = 128
	// maxOwed bounds what a reader may owe: after so much work, and as many waits
	// as that is credits, it counts as any other.
	maxOwed = 32 * paceBurst
)

// Work of different kinds, in units.
const (
	bytesPerUnit   = 1 << 10 // of a packet received
	matchesPerUnit = 4       // subscriptions that a publish matched; one that is made or ended is a unit
)

// beginPacing notes that a reader's turn begins, and what it owes from before.
func (c *Conn) beginPacing(t *Turn) {
	if c.tr.Waited() {
		c.owed = max(0, c.owed-paceCredit)
	}
	t.work = 1
}

// pace is called before each packet.
func (c *Conn) pace(t *Turn) { t.pace(c.owed) }

// pace is called between pieces of work, with no lock held. If the turn has done
// much, on top of what was owed before, it lets others work, and before that has
// written what it has for them.
func (t *Turn) pace(owed int) {
	if owed+t.work <= paceBurst || t.inside && t.work-t.paced < paceBurst {
		return
	}
	t.flush()
	if t.self != nil {
		t.self.tr.Flush()
	}
	if t.inside {
		t.b.gate.Yield()
	} else {
		t.b.gate.Enter()
		t.inside = true
	}
	t.paced = t.work
}

// Work counts work of a Handler in units of about a microsecond. If that has become
// much, others are let to work first, before it returns. Called within Handle, between
// pieces of work, with no lock held; a Handler that waits for what another one may hold
// while it calls Work calls Rest before.
func (t *Turn) Work(units int) {
	t.work += units
	owed := 0
	if t.self != nil {
		owed = t.self.owed
	}
	t.pace(owed)
}

// Rest is called by a Handler before it waits.
func (t *Turn) Rest() { t.leaveGate() }

// endPacing ends a reader's turn; what it has appended has been written.
func (c *Conn) endPacing(t *Turn) {
	t.leaveGate()
	c.owed = min(c.owed+t.work, maxOwed)
}

// leaveGate gives the place in the gate back, before a wait or at the end.
func (t *Turn) leaveGate() {
	if t.inside {
		t.inside = false
		t.b.gate.Leave()
	}
}
