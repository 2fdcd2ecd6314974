package slab

import (
	"fmt"
	"math/bits"
)

// Ref says where a record is. The zero value is nowhere.
type Ref uint64

// The parts of a Ref, from the lowest bit: class, slot in the chunk, chunk.
const (
	classBits = 7
	slotBits  = 11
	chunkBits = 22
	refBits   = classBits + slotBits + chunkBits
	maxChunks = 1 << chunkBits
)

func makeRef(class, chunk, slot int) Ref {
	return Ref(class) | Ref(slot)<<classBits | Ref(chunk)<<(classBits+slotBits)
}

func (r Ref) class() int { return int(r & (1<<classBits - 1)) }
func (r Ref) slot() int  { return int(r >> classBits & (1<<slotBits - 1)) }
func (r Ref) chunk() int { return int(r >> (classBits + slotBits)) }

// Size classes: see the package's description. Class 0 is none.
const (
	minSize   = 32
	fineStep  = 8
	fineLimit = 256 // up to here classes are fineStep apart
	fineCount = (fineLimit-minSize)/fineStep + 1
	// MaxSize is the size of the largest record.
	MaxSize    = 16 << 10
	octaves    = 6 // from fineLimit to MaxSize
	classCount = 1 + fineCount + octaves*8
)

// sizes and perChunk are of each class: bytes of a slot, slots in a chunk.
var sizes, perChunk = makeClasses()

func makeClasses() (sizes, perChunk [classCount]int) {
	for class, size := 1, minSize; class < classCount; class++ {
		sizes[class], perChunk[class] = size, ChunkSize/size
		if size < fineLimit {
			size += fineStep
		} else {
			size += 1 << (bits.Len(uint(size)) - 4)
		}
	}
	return sizes, perChunk
}

// classOf returns the smallest class for size bytes, at most MaxSize.
func classOf(size int) int {
	switch {
	case size <= minSize:
		return 1
	case size <= fineLimit:
		return 1 + (size-minSize+fineStep-1)/fineStep
	case size > MaxSize:
		panic(fmt.Sprintf("slab: a record of %d bytes; the largest has %d", size, MaxSize))
	}
	octave := bits.Len(uint(size-1)) - bits.Len(uint(fineLimit)) // 0 for 257 to 512
	step := 1 << (octave + 5)
	return fineCount + octave*8 + (size-fineLimit<<octave+step-1)/step
}

// Slots holds records. Its methods are for one goroutine at a time.
type Slots struct {
	memory  *Memory
	classes [classCount]class
}

// class is the records of one size: all slots of the chunks but the last, and tail
// slots of that.
type class struct {
	chunks [][]byte
	tail   int
}

// NewSlots returns Slots without records, on memory of m.
func NewSlots(m *Memory) Slots { return Slots{memory: m} }

// Bytes is the record's slot: as long as its class, with the class's last bytes
// unused. It stays in its place until the next Free.
func (s *Slots) Bytes(r Ref) []byte {
	size := sizes[r.class()]
	at := r.slot() * size
	return s.classes[r.class()].chunks[r.chunk()][at : at+size : at+size]
}

// Fits reports whether size bytes, at most MaxSize, are of r's class, so that a
// record may be overwritten.
func (r Ref) Fits(size int) bool { return r != 0 && r.class() == classOf(size) }

// Alloc returns a slot for size bytes, at most MaxSize. What is in it is left from
// others.
func (s *Slots) Alloc(size int) Ref {
	n := classOf(size)
	c := &s.classes[n]
	if len(c.chunks) == 0 || c.tail == perChunk[n] {
		if len(c.chunks) == maxChunks {
			panic("slab: there are too many records of one size")
		}
		c.chunks = append(c.chunks, s.memory.chunk())
		c.tail = 0
	}
	c.tail++
	return makeRef(n, len(c.chunks)-1, c.tail-1)
}

// Free gives the slot back. The record of the slot moved, if it isn't 0, has moved
// to r.
func (s *Slots) Free(r Ref) (moved Ref) {
	n := r.class()
	c := &s.classes[n]
	if last := makeRef(n, len(c.chunks)-1, c.tail-1); last != r {
		copy(s.Bytes(r), s.Bytes(last))
		moved = last
	}
	c.tail--
	if c.tail == 0 {
		last := len(c.chunks) - 1
		s.memory.release(c.chunks[last])
		c.chunks[last] = nil
		c.chunks = c.chunks[:last]
		c.tail = perChunk[n]
	}
	return moved
}

// Each calls fn with every record.
func (s *Slots) Each(fn func(Ref)) {
	for p, more := (Place{}), true; more; {
		p, more = s.EachFrom(p, fn)
	}
}

// Place is a chunk of Slots, where EachFrom goes on; the zero Place is the first.
type Place struct{ class, chunk int }

// EachFrom calls fn with the records of one chunk, and says where to go on, and whether there is
// more. Between two calls records may come, go and move: one that moves may be passed twice or
// not at all.
func (s *Slots) EachFrom(p Place, fn func(Ref)) (next Place, more bool) {
	for p.class < len(s.classes) && p.chunk >= len(s.classes[p.class].chunks) {
		p = Place{class: p.class + 1}
	}
	if p.class == len(s.classes) {
		return p, false
	}
	c := &s.classes[p.class]
	slots := perChunk[p.class]
	if p.chunk == len(c.chunks)-1 {
		slots = c.tail
	}
	for k := range slots {
		fn(makeRef(p.class, p.chunk, k))
	}
	p.chunk++
	return p, true
}
