package backup

import (
	"bytes"
	"container/heap"
	"slices"
	"sort"
)

// span is a range of keys, and a sequence number.
type span struct {
	from, to []byte // to is exclusive
	number   uint64
}

// spans are asked about keys in rising order.
type spans []span

// sweep goes along spans.
type sweep struct {
	waiting, active spans
}

func (s spans) sweep() *sweep {
	sort.Slice(s, func(i, j int) bool { return bytes.Compare(s[i].from, s[j].from) < 0 })
	return &sweep{waiting: s}
}

// at gives the highest number of the spans that have key.
func (s *sweep) at(key []byte) (number uint64) {
	for len(s.waiting) > 0 && bytes.Compare(s.waiting[0].from, key) <= 0 {
		s.active = append(s.active, s.waiting[0])
		s.waiting = s.waiting[1:]
	}
	s.active = slices.DeleteFunc(s.active, func(a span) bool { return bytes.Compare(a.to, key) <= 0 })
	for _, a := range s.active {
		number = max(number, a.number)
	}
	return number
}

// after is the key that follows.
func after(key []byte) []byte { return append(bytes.Clone(key), 0) }

// mergeTables writes the newest row of each key.
func (s *salvage) mergeTables() error {
	var rows rowHeap
	for _, t := range s.tables {
		if t.reader != nil && t.next() {
			rows = append(rows, t)
		}
	}
	heap.Init(&rows)
	removed, unknown := s.removed.sweep(), s.unknown.sweep()
	var last []byte
	for first := true; len(rows) > 0; first = false {
		t := rows[0]
		newest := first || !bytes.Equal(t.key, last)
		if newest {
			last = append(last[:0], t.key...)
			switch bad, gone := unknown.at(t.key), removed.at(t.key); {
			case t.number < bad:
				s.found.Older++
			case !t.deleted && t.number >= gone:
				s.set(t.key, t.value)
			}
		}
		if t.next() {
			heap.Fix(&rows, 0)
		} else {
			heap.Pop(&rows)
		}
		if err := s.to.Failure(); err != nil {
			return err
		}
	}
	for _, t := range s.tables {
		t.report(s)
	}
	return nil
}

// rowHeap has tables by the row that each is at: keys rise, and of a key the newest row
// comes first.
type rowHeap []*table

func (h rowHeap) Len() int      { return len(h) }
func (h rowHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h rowHeap) Less(i, j int) bool {
	if c := bytes.Compare(h[i].key, h[j].key); c != 0 {
		return c < 0
	}
	return h[i].number > h[j].number
}
func (h *rowHeap) Push(x any) { *h = append(*h, x.(*table)) }
func (h *rowHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
