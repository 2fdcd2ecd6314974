package merging

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
)

// Sorting
//
// The keys of a batch have long common prefixes: the kind of row, a handler's name, the name of a
// key of the store. Comparing whole keys reads those again and again, each time at another place in
// memory. So a key is compared by its head, the 8 bytes behind what all keys have in common, as a
// number beside its place; keys of one head are sorted in the same way by what comes behind it.
// Each round of a key goes at least 8 bytes further, so all rounds together read no key more than
// about twice, whatever clients choose as keys.

// place is a change to be sorted.
type place struct {
	head uint64
	at   int32 // in changes
}

// fewPlaces is how many are sorted by comparing whole keys.
const fewPlaces = 12

// sort sorts places by their keys, which have their first depth bytes in common, and those of one
// key by their places.
func (m *Merging) sort(places []place, depth int) {
	if len(places) <= fewPlaces {
		m.compareAll(places, depth)
		return
	}
	depth = m.common(places, depth)
	for i := range places {
		places[i].head = headOf(m.changes[places[i].at].key[depth:])
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.head, b.head) })
	for len(places) > 0 {
		n, whole := 0, true // places of one head; each of their keys has all bytes of it
		for ; n < len(places) && places[n].head == places[0].head; n++ {
			whole = whole && len(m.changes[places[n].at].key) >= depth+headBytes
		}
		switch {
		case n == 1:
		case whole:
			m.sort(places[:n], depth+headBytes)
		default: // a key that ends has the head of one that goes on with zeros
			m.compareAll(places[:n], depth)
		}
		places = places[n:]
	}
}

// common returns how many bytes all keys have in common, which is depth at least.
func (m *Merging) common(places []place, depth int) int {
	first := m.changes[places[0].at].key
	same := len(first)
	for _, p := range places[1:] {
		key := m.changes[p.at].key
		same = min(same, len(key))
		for i := depth; i < same; i++ {
			if key[i] != first[i] {
				same = i
				break
			}
		}
	}
	return same
}

const headBytes = 8

func headOf(key []byte) uint64 {
	if len(key) >= headBytes {
		return binary.BigEndian.Uint64(key)
	}
	var head [headBytes]byte
	copy(head[:], key)
	return binary.BigEndian.Uint64(head[:])
}

func (m *Merging) compareAll(places []place, depth int) {
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(bytes.Compare(m.changes[a.at].key[depth:], m.changes[b.at].key[depth:]), int(a.at-b.at))
	})
}
