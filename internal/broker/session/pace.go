package session

// Pacing: how the broker keeps a reader that always finds more input from taking the
// processors from all other readers.
//
// A reader counts its work in units of roughly a microsecond: packets, their bytes,
// the subscriptions that a publish matches, messages that are sent. A clock would be more
// exact, and reading it would cost more than the rest of a small packet. The work adds to
// the reader's debt. Each time that the reader has to wait for its client, the debt falls
// by a credit, so the reader of a client that waits for its answers has none. A reader
// whose debt is larger than a burst enters the gate (transport.Gate), where greedy readers
// take turns.
const (
	// PaceBurst is how much debt a reader may have outside of the gate, and how much work
	// it does inside before it gives its place away; in units.
	PaceBurst = 256
	// PaceCredit is how many units a wait for the client takes from the debt.
	PaceCredit = 128
	// MaxDebt bounds a reader's debt. However much a reader has worked, it is without
	// debt again after MaxDebt/PaceCredit waits for its client.
	MaxDebt = 32 * PaceBurst
)

// Work of different kinds, in units.
const (
	BytesPerUnit   = 1 << 10 // of a packet received
	MatchesPerUnit = 4       // subscriptions that a publish matched; one that is made or ended is a unit

	// Of what does not match: pieces of filters with wildcards that are compared with a topic, and members
	// of a shared subscription that a message is offered to.
	ComparedPerUnit, MembersPerUnit = 8, 16
)

// Pace is called between pieces of work, with no lock held. If the debt from turns before
// and the work of this turn are more than a burst, Pace flushes the output of this turn
// and lets other readers work.
func (t *Turn) Pace(debt int) {
	if debt+t.Worked <= PaceBurst || t.inside && t.Worked-t.paced < PaceBurst {
		return
	}
	t.Flush()
	if t.Self != nil {
		t.Self.Transport.Flush()
	}
	if t.inside {
		t.env.Gate.Yield()
	} else {
		t.env.Gate.Enter()
		t.inside = true
	}
	t.paced = t.Worked
}

// Work counts work of a Handler in units of about a microsecond, and calls Pace. A Handler
// calls it within Handle, between pieces of work, with no lock held. Work may wait for a
// place in the gate, so a Handler that is about to wait for something that another Handler
// may hold in that time calls Rest first.
func (t *Turn) Work(units int) {
	t.Worked += units
	t.Pace(t.Debt)
}

// Rest is called by a Handler before it waits.
func (t *Turn) Rest() { t.LeaveGate() }

// LeaveGate gives the place in the gate back, before a wait or at the end.
func (t *Turn) LeaveGate() {
	if t.inside {
		t.inside = false
		t.env.Gate.Leave()
	}
}

// InGate says whether the turn has a place in the gate.
func (t *Turn) InGate() bool { return t.inside }
