package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// Position is an entry's index and term. Together they identify an entry in a cluster.
type Position struct{ Index, Term uint64 }

// State is what a node must not forget: its term and its vote in it. Commit may be
// forgotten, and then is learned again.
type State struct{ Term, Vote, Commit uint64 }

type kind byte

const (
	kindEntries kind = iota + 1
	kindBase
	kindSnapshot
	kindInstalled
)

const (
	recordHeader = 25
	entryHeader  = 13
	// maxEntryType is the highest type of an entry that raftpb knows.
	maxEntryType = int32(raftpb.EntryConfChangeV2)
)

// record is a record that was read.
type record struct {
	State
	kind    kind
	at      Position        // of all kinds but kindEntries
	begins  uint64          // of kindBase: number of the record with the entry after at; 0: there is none before this record
	first   uint64          // of kindEntries
	entries []*raftpb.Entry // of kindEntries; their data are copies
}

func appendHeader(dst []byte, s State, k kind) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.Term)
	dst = binary.LittleEndian.AppendUint64(dst, s.Vote)
	dst = binary.LittleEndian.AppendUint64(dst, s.Commit)
	return append(dst, byte(k))
}

func appendPosition(dst []byte, s State, k kind, at Position, begins uint64) []byte {
	dst = appendHeader(dst, s, k)
	dst = binary.LittleEndian.AppendUint64(dst, at.Index)
	dst = binary.LittleEndian.AppendUint64(dst, at.Term)
	return binary.LittleEndian.AppendUint64(dst, begins)
}

// kindOf is the kind of a record; 0: it is none.
func kindOf(b []byte) kind {
	if len(b) < recordHeader {
		return 0
	}
	return kind(b[recordHeader-1])
}

// appendEntries appends a record of entries; without any it is a record of the state.
func appendEntries(dst []byte, s State, entries []*raftpb.Entry) []byte {
	dst = appendHeader(dst, s, kindEntries)
	var first uint64
	if len(entries) > 0 {
		first = entries[0].GetIndex()
	}
	dst = binary.LittleEndian.AppendUint64(dst, first)
	for _, e := range entries {
		dst = binary.LittleEndian.AppendUint64(dst, e.GetTerm())
		dst = append(dst, byte(e.GetType()))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.GetData()))) // wal's frames have the same bound
		dst = append(dst, e.GetData()...)
	}
	return dst
}

var errShort = errors.New("it is too short")

// readRecord reads a record. Its checksum was right, so an error means that another
// program, or a newer one, has written it.
func readRecord(b []byte) (r record, err error) {
	if len(b) < recordHeader+8 {
		return r, errShort
	}
	r.Term = binary.LittleEndian.Uint64(b)
	r.Vote = binary.LittleEndian.Uint64(b[8:])
	r.Commit = binary.LittleEndian.Uint64(b[16:])
	r.kind = kind(b[24])
	b = b[recordHeader:]
	switch r.kind {
	case kindBase, kindSnapshot, kindInstalled:
		if len(b) != 24 {
			return r, fmt.Errorf("it has %d bytes about an entry, which take 24", len(b))
		}
		r.at = Position{Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:])}
		r.begins = binary.LittleEndian.Uint64(b[16:])
	case kindEntries:
		r.first = binary.LittleEndian.Uint64(b)
		r.entries, err = readEntries(b[8:], r.first)
	default:
		err = fmt.Errorf("it is of kind %d, which this program does not know", r.kind)
	}
	return r, err
}

func readEntries(b []byte, index uint64) (entries []*raftpb.Entry, err error) {
	for ; len(b) > 0; index++ {
		if len(b) < entryHeader {
			return nil, errShort
		}
		term, typ, length := binary.LittleEndian.Uint64(b), int32(b[8]), binary.LittleEndian.Uint32(b[9:])
		if b = b[entryHeader:]; uint64(length) > uint64(len(b)) {
			return nil, errShort
		}
		if index == 0 || typ > maxEntryType {
			return nil, fmt.Errorf("entry %d of type %d is one that this program does not know", index, typ)
		}
		entries = append(entries, newEntry(index, term, raftpb.EntryType(typ), append([]byte(nil), b[:length]...)))
		b = b[length:]
	}
	return entries, nil
}

func newEntry(index, term uint64, typ raftpb.EntryType, data []byte) *raftpb.Entry {
	return &raftpb.Entry{Index: &index, Term: &term, Type: typ.Enum(), Data: data}
}
