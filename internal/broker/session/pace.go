package session

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
	// PaceBurst is how much work a reader may owe, and how much it does inside
	// before it gives its place away.
	PaceBurst = 256
	// PaceCredit is what a reader is credited when its client made it wait.
	PaceCredit = 128
	// MaxOwed bounds what a reader may owe: after so much work, and as many waits
	// as that is credits, it counts as any other.
	MaxOwed = 32 * PaceBurst
)

// Work of different kinds, in units.
const (
	BytesPerUnit   = 1 << 10 // of a packet received
	MatchesPerUnit = 4       // subscriptions that a publish matched; one that is made or ended is a unit
)

// Pace is called between pieces of work, with no lock held. If the turn has done
// much, on top of what was owed before, it lets others work, and before that has
// written what it has for them.
func (t *Turn) Pace(owed int) {
	if owed+t.Worked <= PaceBurst || t.inside && t.Worked-t.paced < PaceBurst {
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

// Work counts work of a Handler in units of about a microsecond. If that has become
// much, others are let to work first, before it returns. Called within Handle, between
// pieces of work, with no lock held; a Handler that waits for what another one may hold
// while it calls Work calls Rest before.
func (t *Turn) Work(units int) {
	t.Worked += units
	t.Pace(t.Owed)
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
