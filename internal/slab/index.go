package slab

import "unsafe"

const (
	tagBits = 64 - refBits
	refMask = 1<<refBits - 1
	// minWords fill a page.
	minWords = 512
)

// Index finds records by the hash of their names. Several may have the same hash:
// the caller compares names. Its methods are for one goroutine at a time.
type Index struct {
	memory *Memory
	array  []byte   // as it came from memory
	words  []uint64 // the same
	used   int
}

// NewIndex returns an Index without records, on memory of m.
func NewIndex(m *Memory) Index { return Index{memory: m} }

// Len is the number of records.
func (x *Index) Len() int { return x.used }

// tag is the part of the hash that the index uses: the upper bits.
func tag(hash uint64) uint64 { return hash >> refBits }

// home is the place where a record with this tag belongs.
func (x *Index) home(tag uint64) int {
	return int(tag * uint64(len(x.words)) >> tagBits)
}

// First begins a search: it returns the first record that may have the hash, 0 if
// there is none, and the place for Next.
func (x *Index) First(hash uint64) (Ref, int) {
	if x.used == 0 {
		return 0, 0
	}
	return x.search(tag(hash), x.home(tag(hash)))
}

// Next returns the record after the one at a place.
func (x *Index) Next(hash uint64, place int) (Ref, int) {
	return x.search(tag(hash), x.after(place))
}

func (x *Index) search(tag uint64, place int) (Ref, int) {
	for {
		word := x.words[place]
		if word == 0 {
			return 0, place
		}
		if word>>refBits == tag {
			return Ref(word & refMask), place
		}
		place = x.after(place)
	}
}

func (x *Index) after(place int) int {
	if place++; place < len(x.words) {
		return place
	}
	return 0
}

// Add adds a record that is not in the index.
func (x *Index) Add(hash uint64, r Ref) {
	if (x.used+1)*5 > len(x.words)*4 {
		x.resize(max(minWords, len(x.words)*5/4))
	}
	x.insert(tag(hash)<<refBits | uint64(r))
	x.used++
}

func (x *Index) insert(word uint64) {
	place := x.home(word >> refBits)
	for x.words[place] != 0 {
		place = x.after(place)
	}
	x.words[place] = word
}

// Move makes the index find at to what it has found at from.
func (x *Index) Move(hash uint64, from, to Ref) {
	x.words[x.place(hash, from)] = tag(hash)<<refBits | uint64(to)
}

// Remove takes a record out of the index.
func (x *Index) Remove(hash uint64, r Ref) {
	hole := x.place(hash, r)
	// Those behind it, up to the next free word, were displaced by others, maybe
	// by this one: each moves into the hole unless that is before its home.
	for next := x.after(hole); x.words[next] != 0; next = x.after(next) {
		if home := x.home(x.words[next] >> refBits); x.distance(home, hole) <= x.distance(home, next) {
			x.words[hole] = x.words[next]
			hole = next
		}
	}
	x.words[hole] = 0
	x.used--
	if len(x.words) > minWords && x.used*3 < len(x.words) {
		x.resize(max(minWords, x.used*3/2))
	}
}

// distance is how far it is from one place to another, going on at the beginning.
func (x *Index) distance(from, to int) int {
	if to < from {
		to += len(x.words)
	}
	return to - from
}

// place returns where a record is that is in the index.
func (x *Index) place(hash uint64, r Ref) int {
	for found, at := x.First(hash); found != 0; found, at = x.Next(hash, at) {
		if found == r {
			return at
		}
	}
	panic("slab: the index has lost a record")
}

// resize makes the array n words long or a little longer, to fill its last page.
func (x *Index) resize(n int) {
	before, array := x.words, x.array
	x.array = x.memory.array(n * 8)
	x.words = unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(x.array))), len(x.array)/8)
	for _, word := range before {
		if word != 0 {
			x.insert(word)
		}
	}
	if array != nil {
		x.memory.releaseArray(array)
	}
}
