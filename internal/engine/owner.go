package engine

import (
	"math"
	"time"

	budget "holdfast/internal/memory"
	"holdfast/internal/statestore"
)

// Owners
//
// A key belongs to the client whose SET or STORE has written it last, so that a
// client answers for what it has stored and for nothing that others make of it. A
// record has room for a small number that says which client that is (record.go); it
// costs no memory. The numbers are given out since the start of the process: keys
// that were loaded belong to no client until one writes them again.
//
// What a client holds may be bounded (MaxClientKeys, MaxClientBytes). Without that,
// the bounds of the store still bear on the client that fills it: one that holds less
// than a lightShare of them may go as much beyond them, and so is not locked out by
// another that has come first.
type owner struct {
	id       string
	number   uint32
	sessions int
	keys     int64
	bytes    int64 // of keys and values
}

// owners are guarded by Local.mu. An owner is forgotten with its last key and session.
type owners struct {
	byID     map[string]*owner
	byNumber []*owner // 0 is no client
	free     []uint32
}

const (
	maxOwners  = 1<<ownerBits - 1
	ownerCost  = 200 // bytes of memory besides its ID, about
	lightShare = 16
)

// of returns the owner with this number, nil for 0.
func (o *owners) of(number uint32) *owner {
	if int(number) >= len(o.byNumber) {
		return nil
	}
	return o.byNumber[number]
}

// ownerOf returns the session's client as an owner, nil if there are too many or the
// session is closed: what it writes then belongs to no client. mu is held.
func (e *Local) ownerOf(s *session) *owner {
	if s.owner != nil || s.closed.Load() {
		return s.owner
	}
	all := &e.owners
	o := all.byID[s.origin.ID]
	if o == nil {
		var number uint32
		switch n := len(all.free); {
		case n > 0:
			number = all.free[n-1]
			all.free = all.free[:n-1]
		case len(all.byNumber) > maxOwners:
			return nil
		default:
			if all.byNumber == nil {
				all.byNumber, all.byID = append(all.byNumber, nil), map[string]*owner{}
			}
			number = uint32(len(all.byNumber))
			all.byNumber = append(all.byNumber, nil)
		}
		o = &owner{id: s.origin.ID, number: number}
		all.byID[o.id], all.byNumber[number] = o, o
		e.o.Memory.Charge(budget.Keys, int64(len(o.id))+ownerCost)
	}
	o.sessions++
	s.owner = o
	return o
}

// left says that a session is closed. mu is held.
func (e *Local) left(s *session) {
	if o := s.owner; o != nil {
		s.owner = nil
		o.sessions--
		e.forgetOwner(o)
	}
}

// owns adds a key to what a client holds, or with the negatives takes it away; o may
// be nil. mu is held.
func (e *Local) owns(o *owner, keys, bytes int64) {
	if o != nil {
		o.keys += keys
		o.bytes += bytes
		e.forgetOwner(o)
	}
}

func (e *Local) forgetOwner(o *owner) {
	if o.keys > 0 || o.sessions > 0 {
		return
	}
	delete(e.owners.byID, o.id)
	e.owners.byNumber[o.number] = nil
	e.owners.free = append(e.owners.free, o.number)
	e.o.Memory.Credit(budget.Keys, int64(len(o.id))+ownerCost)
}

// room is what the store and the client of the session, nil for none, may still grow.
// r is the record of the key that is to be written. mu is held.
func (e *Local) room(r record, by *session) statestore.Room {
	room := statestore.Room{
		Keys:  e.o.MaxKeys - e.keys,
		Bytes: e.o.MaxBytes - e.bytes,
		Memos: e.o.MaxRemembered - e.remembered,
	}
	var held owner
	if by != nil && by.owner != nil {
		held = *by.owner
	}
	if held.keys < e.o.MaxKeys/lightShare {
		room.Keys += e.o.MaxKeys / lightShare
	}
	if held.bytes < e.o.MaxBytes/lightShare {
		room.Bytes += e.o.MaxBytes / lightShare
	}
	if memory := e.o.Memory.Room(budget.Keys); memory != math.MaxInt64 {
		if r.ref == 0 {
			memory -= recordCost
		}
		if memory < room.Bytes {
			room.Bytes, room.BytesBy = memory, statestore.MaxMemory
		}
	}
	switch {
	case e.journal.Scarce():
		room.Disk = statestore.DiskScarce
	case e.journal.Low():
		room.Disk = statestore.DiskLow
	}
	if e.o.MaxClientKeys > 0 || e.o.MaxClientBytes > 0 {
		room.Client = statestore.ClientRoom{
			Bounded: by != nil,
			Own:     held.number != 0 && r.live() && r.owner() == held.number,
			Keys:    boundOr(e.o.MaxClientKeys, math.MaxInt64) - held.keys,
			Bytes:   boundOr(e.o.MaxClientBytes, math.MaxInt64) - held.bytes,
		}
	}
	return room
}

// sayFull logs that a bound of the whole store refuses writes, and which client holds
// most of what it bounds; once in a while, as long as that is so.
func (e *Local) sayFull(b statestore.Bound) {
	switch b {
	case statestore.MaxKeys, statestore.MaxBytes, statestore.MaxMemory, statestore.MaxRemembered:
	default:
		return
	}
	now := max(1, e.clock.SinceStart())
	e.mu.Lock()
	if e.fullSaid != 0 && now-e.fullSaid < fullAgain {
		e.mu.Unlock()
		return
	}
	e.fullSaid = now
	var most owner
	for _, o := range e.owners.byID {
		if b == statestore.MaxKeys && o.keys > most.keys || b != statestore.MaxKeys && o.bytes > most.bytes {
			most = *o
		}
	}
	args := []any{"setting", b, "keys", e.keys, "bytes", e.bytes, "remembered", e.remembered}
	e.mu.Unlock()
	if b != statestore.MaxRemembered && most.id != "" {
		args = append(args, "client", most.id, "client_keys", most.keys, "client_bytes", most.bytes)
	}
	e.o.Logger.Warn("the store is full: writes that make it grow are refused", args...)
}

// fullAgain is how long after that line the next comes.
const fullAgain = time.Minute

func boundOr(bound, none int64) int64 {
	if bound > 0 {
		return bound
	}
	return none
}

// recordCost is about what a key takes in memory besides its bytes and its value's:
// the head of its record, the rest of its slot, its place in the index.
const recordCost = recordHead + 24
