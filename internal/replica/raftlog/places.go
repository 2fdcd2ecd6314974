package raftlog

import (
	"slices"
	"sort"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/holdfast-mqtt/holdfast/internal/wal"
)

// places is where the entries of a log are: the newest ones in memory, and all of them in
// records. Of those that are in memory it knows the record of each; of the others, the terms,
// and the records of some, from which a reader goes on to the one that it wants. It can do so
// because a replaced entry takes all those behind it along: the records of the entries of a
// log are in the order of the entries.
type places struct {
	terms   []Position      // where each term begins, in order: entries from Index on are of Term
	marks   []place         // of entries that are in files only, in order, the first of them included
	kept    uint64          // index of the first entry in memory, or that will be
	entries []*raftpb.Entry // those in memory, in order
	placed  []place         // of each of entries
	memory  int64           // bytes of entries, by sizeOf
	first   place           // of the first entry
	end     int64           // where the next entry will be, see place.at
	spacing int64           // bytes of entries that are between two marks
}

// place is where an entry is.
type place struct {
	index  uint64
	record uint64 // its number; 0: none is written yet
	at     int64  // bytes of the entries before it, since some entry that was long ago
}

// entryBytes is about what an entry takes in memory besides its data, recordBytes what one
// takes in the files if its record has no other.
const (
	entryBytes  = 200
	recordBytes = wal.FrameHeader + recordHeader + 8 + entryHeader
	// marksPerFile is about how many marks there are for a segment.
	marksPerFile = 8
)

func sizeOf(e *raftpb.Entry) int64 { return int64(len(e.GetData())) + entryBytes }

// empty leaves no entry; the next one has an index.
func (p *places) empty(next uint64) {
	*p = places{kept: next, first: place{index: next}, spacing: p.spacing}
}

// bytes is about what the entries take in the files.
func (p *places) bytes() int64 { return p.end - p.first.at }

// put puts entries behind those before the first of them, which are in a record.
func (p *places) put(entries []*raftpb.Entry, record uint64) {
	if len(entries) == 0 {
		return
	}
	p.cut(entries[0].GetIndex())
	for _, e := range entries {
		if n := len(p.terms); n == 0 || p.terms[n-1].Term != e.GetTerm() {
			p.terms = append(p.terms, Position{Index: e.GetIndex(), Term: e.GetTerm()})
		}
		at := place{index: e.GetIndex(), record: record, at: p.end}
		if at.index == p.first.index {
			p.first = at
		}
		p.entries, p.placed = append(p.entries, e), append(p.placed, at)
		p.memory += sizeOf(e)
		p.end += int64(len(e.GetData())) + recordBytes
	}
}

// cut drops the entries from index on, which are in memory. Their room in the files is not
// free.
func (p *places) cut(index uint64) {
	keep := index - p.kept
	if keep >= uint64(len(p.entries)) {
		return
	}
	for _, e := range p.entries[keep:] {
		p.memory -= sizeOf(e)
	}
	clear(p.entries[keep:])
	p.entries, p.placed = p.entries[:keep], p.placed[:keep]
	for n := len(p.terms); n > 0 && p.terms[n-1].Index >= index; n-- {
		p.terms = p.terms[:n-1]
	}
}

// forget drops the oldest entries from memory, while those there take more than most bytes,
// but none behind the last that is committed.
func (p *places) forget(most int64, committed uint64) {
	n := 0
	for ; n < len(p.entries) && p.memory > most && p.placed[n].index <= committed; n++ {
		if m := len(p.marks); m == 0 || p.placed[n].at-p.marks[m-1].at >= p.spacing {
			p.marks = append(p.marks, p.placed[n])
		}
		p.memory -= sizeOf(p.entries[n])
	}
	p.release(n)
}

// release drops the first n entries from memory.
func (p *places) release(n int) {
	clear(p.entries[:n])
	p.entries, p.placed = p.entries[n:], p.placed[n:]
	p.kept += uint64(n)
}

// drop drops the entries before index, of which the place is known.
func (p *places) drop(index uint64) {
	p.first = p.placeBefore(index)
	n := 0
	for ; n < len(p.placed) && p.placed[n].index < index; n++ {
		p.memory -= sizeOf(p.entries[n])
	}
	p.release(n)
	before := sort.Search(len(p.marks), func(i int) bool { return p.marks[i].index >= index })
	p.marks = slices.Clone(p.marks[before:])
	run := sort.Search(len(p.terms), func(i int) bool { return p.terms[i].Index > index })
	p.terms = slices.Clone(p.terms[max(run-1, 0):])
}

// placeBefore is the place of the entry with an index or, if that is not known, of the last
// one before it of which it is.
func (p *places) placeBefore(index uint64) place {
	if index >= p.kept {
		if i := index - p.kept; i < uint64(len(p.placed)) {
			return p.placed[i]
		}
		return place{index: p.kept + uint64(len(p.placed)), at: p.end}
	}
	i := sort.Search(len(p.marks), func(i int) bool { return p.marks[i].index > index })
	if i == 0 {
		return p.first
	}
	return p.marks[i-1]
}

// firstRecord is the number of the record with the first entry; none: there is no entry.
func (p *places) firstRecord(none uint64) uint64 {
	if p.first.record == 0 {
		return none
	}
	return p.first.record
}

// keeping is the index of the last entry that may be dropped if keep bytes are to stay.
func (p *places) keeping(keep int64) uint64 {
	most := p.end - keep
	if i := sort.Search(len(p.placed), func(i int) bool { return p.placed[i].at > most }); i > 0 {
		return p.placed[i-1].index - 1
	}
	if i := sort.Search(len(p.marks), func(i int) bool { return p.marks[i].at > most }); i > 0 {
		return p.marks[i-1].index - 1
	}
	return p.first.index - 1
}

// termOf is the term of an entry that the log has.
func (p *places) termOf(index uint64) uint64 {
	i := sort.Search(len(p.terms), func(i int) bool { return p.terms[i].Index > index })
	return p.terms[i-1].Term
}
