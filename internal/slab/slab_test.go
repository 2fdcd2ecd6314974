package slab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// store keeps records called by numbers, the way the engine does: the number and its
// hash stand in the record, so that one that has moved can be found again.
type store struct {
	slots Slots
	index Index
	refs  map[uint64]Ref // where each is, by the moves that Free has told
}

func newStore(m *Memory) *store {
	return &store{slots: NewSlots(m), index: NewIndex(m), refs: map[uint64]Ref{}}
}

// hashOf spreads few hashes over many numbers, so that they collide.
func hashOf(name uint64) uint64 { return name % 61 << 58 }

func (s *store) find(name uint64) (Ref, bool) {
	for ref, at := s.index.First(hashOf(name)); ref != 0; ref, at = s.index.Next(hashOf(name), at) {
		if nameIn(s.slots.Bytes(ref)) == name {
			return ref, true
		}
	}
	return 0, false
}

func nameIn(slot []byte) uint64 { return binary.LittleEndian.Uint64(slot) }

// add writes a record of this size; every byte after the name is its name's lowest.
func (s *store) add(name uint64, size int) {
	ref := s.slots.Alloc(size)
	slot := s.slots.Bytes(ref)[:size]
	binary.LittleEndian.PutUint64(slot, name)
	fill(slot[8:], byte(name))
	s.index.Add(hashOf(name), ref)
	s.refs[name] = ref
}

func fill(b []byte, c byte) {
	for i := range b {
		b[i] = c
	}
}

func (s *store) remove(name uint64) {
	ref := s.refs[name]
	delete(s.refs, name)
	s.index.Remove(hashOf(name), ref)
	if from := s.slots.Free(ref); from != 0 {
		moved := nameIn(s.slots.Bytes(ref))
		s.index.Move(hashOf(moved), from, ref)
		s.refs[moved] = ref
	}
}

// Records of any size come and go in any order; each is found, with its own bytes.
func TestRecordsAgainstAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, want := newStore(NewMemory()), map[uint64]int{}
		check := func(name uint64) {
			ref, found := s.find(name)
			size, there := want[name]
			if found != there || found && ref != s.refs[name] {
				t.Fatalf("%d: found %v at %x, want %v at %x", name, found, ref, there, s.refs[name])
			}
			if found && !bytes.Equal(s.slots.Bytes(ref)[8:size], bytes.Repeat([]byte{byte(name)}, size-8)) {
				t.Fatalf("%d has another's bytes", name)
			}
		}
		steps := rapid.IntRange(1, 3000).Draw(t, "steps")
		names := rapid.Uint64Range(0, uint64(steps))
		sizes := rapid.OneOf(rapid.IntRange(8, 300), rapid.IntRange(8, MaxSize))
		for range steps {
			name := names.Draw(t, "name")
			check(name)
			if _, there := want[name]; there {
				s.remove(name)
				delete(want, name)
			} else {
				size := sizes.Draw(t, "size")
				s.add(name, size)
				want[name] = size
			}
		}
		for name := range uint64(steps) {
			check(name)
		}
		n := 0
		s.slots.Each(func(Ref) { n++ })
		if n != len(want) || s.index.Len() != len(want) {
			t.Fatalf("%d records and %d in the index, want %d", n, s.index.Len(), len(want))
		}
	})
}

func TestSizeClasses(t *testing.T) {
	t.Parallel()
	for size := 1; size <= MaxSize; size++ {
		class := classOf(size)
		if sizes[class] < size || class > 1 && sizes[class-1] >= size {
			t.Fatalf("%d bytes: class %d of %d bytes", size, class, sizes[class])
		}
		if lost := sizes[class] - size; size > minSize && lost >= fineStep && lost*8 > size {
			t.Fatalf("%d bytes: %d are lost", size, lost)
		}
	}
	if last := sizes[classCount-1]; last != MaxSize {
		t.Errorf("the last class has %d bytes", last)
	}
	if classCount > 1<<classBits || perChunk[1] > 1<<slotBits {
		t.Errorf("%d classes, %d slots in a chunk: they don't fit into a Ref", classCount, perChunk[1])
	}
}

// What is freed is used again: records that come and go, and change their size, take
// no more memory than they did at first.
func TestFreedMemoryIsUsedAgain(t *testing.T) {
	t.Parallel()
	const records, rounds = 2000, 20
	m := NewMemory()
	s := newStore(m)
	sizeIn := func(round, i int) int { return 40 + (i*7+round*31)%400 }
	for i := range records {
		s.add(uint64(i), sizeIn(0, i))
	}
	first := m.Bytes()
	for round := range rounds {
		for i := range records {
			s.remove(uint64(i))
			s.add(uint64(i), sizeIn(round, i))
		}
	}
	if last := m.Bytes(); last > first+first/10 {
		t.Errorf("%d bytes after %d rounds, %d at first", last, rounds, first)
	}
	for i := range records {
		s.remove(uint64(i))
	}
	if left := m.Bytes(); left > 8*minWords {
		t.Errorf("%d bytes are left of nothing", left)
	}
}

// The index has few words too many, at any number of records.
func TestBytesOfTheIndex(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	x := NewIndex(m)
	spread := func(i int) uint64 { return uint64(i) * 0x9E3779B97F4A7C15 }
	for i := range 200_000 {
		x.Add(spread(i), makeRef(1, i>>slotBits, i&(1<<slotBits-1)))
		if n := i + 1; n > 8*minWords && m.Bytes() > int64(n)*27/2 {
			t.Fatalf("%d records: %d bytes", n, m.Bytes())
		}
	}
	for i := range 200_000 {
		x.Remove(spread(i), makeRef(1, i>>slotBits, i&(1<<slotBits-1)))
	}
	if x.Len() != 0 || m.Bytes() > 8*minWords {
		t.Errorf("%d records, %d bytes are left", x.Len(), m.Bytes())
	}
}

func TestTooLargeARecordIsRefused(t *testing.T) {
	t.Parallel()
	defer func() {
		if r := recover(); r != fmt.Sprintf("slab: a record of %d bytes; the largest has %d", MaxSize+1, MaxSize) {
			t.Errorf("%v", r)
		}
	}()
	s := NewSlots(NewMemory())
	s.Alloc(MaxSize + 1)
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{1000, 100_000, 4_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := NewIndex(NewMemory())
			spread := func(i int) uint64 { return uint64(i) * 0x9E3779B97F4A7C15 }
			for i := range n {
				x.Add(spread(i), makeRef(1, i>>slotBits, i&(1<<slotBits-1)))
			}
			for i := 0; b.Loop(); i++ {
				if ref, _ := x.First(spread(i % n)); ref == 0 {
					b.Fatal("lost")
				}
			}
		})
	}
}
