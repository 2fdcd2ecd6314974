package members

// History knows the List after each entry, from some entry on. The zero value knows none.
// Callers lock it.
type History struct{ changes []changed }

type changed struct {
	index uint64
	list  *List
}

// Reset forgets everything, and notes the List after an entry.
func (h *History) Reset(index uint64, l *List) { h.changes = []changed{{index, l}} }

// Add notes that an entry has changed the List. Entries come in their order.
func (h *History) Add(index uint64, l *List) { h.changes = append(h.changes, changed{index, l}) }

// Now is the newest List.
func (h *History) Now() *List { return h.changes[len(h.changes)-1].list }

// At is the List after an entry, which must not be one before those that Forget has kept.
func (h *History) At(index uint64) *List {
	i := len(h.changes) - 1
	for i > 0 && h.changes[i].index > index {
		i--
	}
	return h.changes[i].list
}

// Forget forgets what only entries before index need.
func (h *History) Forget(index uint64) {
	for len(h.changes) > 1 && h.changes[1].index <= index {
		h.changes = h.changes[1:]
	}
}
