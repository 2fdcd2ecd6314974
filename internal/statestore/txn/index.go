package txn

import "hash/maphash"

// seed keeps a client from choosing keys that are slow to find.
var seed = maphash.MakeSeed()

// index finds the number of a thing by its hash: the things are numbered from 0 in the order in
// which they were added. The zero value is empty.
type index struct {
	hashes []uint64 // of each
	slots  []uint32 // numbers + 1, each at its hash or behind it; 0: free. A power of two, at least twice as many as things
}

// maxKept is how many slots an index keeps that is empty.
const maxKept = 1 << 10

// find returns the number of a thing of this hash for which same is true, or adds one.
func (x *index) find(hash uint64, same func(i int) bool) (i int, known bool) {
	if 2*len(x.hashes) >= len(x.slots) {
		x.grow()
	}
	at := x.at(hash)
	for ; x.slots[at] != 0; at = (at + 1) & (len(x.slots) - 1) {
		if i := int(x.slots[at] - 1); x.hashes[i] == hash && same(i) {
			return i, true
		}
	}
	x.hashes = append(x.hashes, hash)
	x.slots[at] = uint32(len(x.hashes))
	return len(x.hashes) - 1, false
}

func (x *index) at(hash uint64) int { return int(hash & uint64(len(x.slots)-1)) }

func (x *index) grow() {
	x.slots = make([]uint32, max(16, 2*len(x.slots)))
	for i, hash := range x.hashes {
		at := x.at(hash)
		for x.slots[at] != 0 {
			at = (at + 1) & (len(x.slots) - 1)
		}
		x.slots[at] = uint32(i + 1)
	}
}

// reset empties it.
func (x *index) reset() {
	if len(x.slots) > maxKept {
		*x = index{}
		return
	}
	x.hashes = x.hashes[:0]
	clear(x.slots)
}
