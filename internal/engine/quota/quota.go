// Package quota counts what the store holds and which client it belongs to, and says what
// each may still hold. The engine has one Ledger, under its own lock.
//
// A key belongs to the client whose SET or STORE has written it last, so that a client
// answers for what it has stored and for nothing that others make of it. A record has room
// for a small number that says which client that is (package table); it costs no memory.
// The numbers are given out since the start of the process: keys that were loaded belong
// to no client until one writes them again.
//
// A client is whatever Origin.ID says in package engine: the principal that it has proven
// to be. What a client holds may be bounded (Bounds, Limits.ClientKeys, ClientBytes).
// Where no such bound is set, the bounds of the store count. A client that holds less than a
// lightShare of these may go as much beyond them, so that it is not locked out by another
// client that has filled the store.
package quota

import (
	"math"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Limits of a Ledger.
type Limits struct {
	Keys, Bytes             int64        // of the store; bytes are those of keys and values
	ClientKeys, ClientBytes int64        // of one client that has no Bounds; 0: no bound but the store's
	Remembered              int64        // bytes of remembered messages (statestore.Memo.Size)
	Pool                    *memory.Pool // charged with owners; its room for keys is a bound, too. nil: none
}

// Bounds are those of one client. A field that is 0 is as Limits, or the engine's options,
// say for all.
type Bounds struct {
	Keys, Bytes int64         // that it may hold; bytes are those of keys and values
	MaxSkew     time.Duration // how far ahead of the clock its timestamps may be, if that is less than the engine allows
}

// Ledger is what the store holds, and the owners of it. It has no lock.
type Ledger struct {
	Keys, Bytes int64
	Remembered  statestore.Remembered

	limits   Limits
	byID     map[string]*Owner
	byNumber []*Owner // 0 is no client
	free     []uint32
	most     *Owner // of those that have written last, the one with most keys; nil: none
}

// Owner is a client that has a session or a key. It is forgotten with the last of them.
type Owner struct {
	ID     string
	Number uint32 // what a record says; at least 1
	Keys   int64
	Bytes  int64 // of keys and values

	sessions int
}

// New makes an empty Ledger.
func New(l Limits) Ledger { return Ledger{limits: l} }

// SetLimits puts other limits in force; the pool stays.
func (l *Ledger) SetLimits(to Limits) {
	to.Pool = l.limits.Pool
	l.limits = to
}

// Limits are the bounds of the store in force.
func (l *Ledger) Limits() (keys, bytes, remembered int64) {
	return l.limits.Keys, l.limits.Bytes, l.limits.Remembered
}

// SetMaxRemembered puts another bound in force for remembered messages, in bytes.
func (l *Ledger) SetMaxRemembered(bytes int64) { l.limits.Remembered = bytes }

const (
	unknownDisk     = 8 << 30   // bytes of remembered messages where the file system doesn't say what is free
	leastRemembered = 256 << 20 // on a disk that is all but full
)

// FitRemembered is the bound of remembered messages if the settings leave it open: a quarter
// of what the disk has free beyond its reserve, or remembered messages have already as they
// count. known is false if the disk does not say.
func (l *Ledger) FitRemembered(free, reserve int64, known bool) int64 {
	if !known {
		return unknownDisk
	}
	return max((free-reserve+l.Remembered.Bytes)/4, leastRemembered)
}

// MemoRoom is how many bytes more of messages may be remembered; less than 0 if there are too
// many.
func (l *Ledger) MemoRoom() int64 { return l.limits.Remembered - l.Remembered.Bytes }

const (
	ownerCost  = 200 // bytes of memory besides its ID, about
	lightShare = 16
)

// ByNumber returns the owner with this number, nil for 0.
func (l *Ledger) ByNumber(number uint32) *Owner {
	if int(number) >= len(l.byNumber) {
		return nil
	}
	return l.byNumber[number]
}

// ByID returns the owner that a client is, nil if it has no key and no session has joined.
func (l *Ledger) ByID(id string) *Owner { return l.byID[id] }

// Join returns the client as the owner of what one of its sessions will write, until
// Leave; nil if there are too many: what it writes then belongs to no client.
func (l *Ledger) Join(id string) *Owner {
	o := l.byID[id]
	if o == nil {
		var number uint32
		switch n := len(l.free); {
		case n > 0:
			number = l.free[n-1]
			l.free = l.free[:n-1]
		case len(l.byNumber) > table.MaxOwner:
			return nil
		default:
			if l.byNumber == nil {
				l.byNumber, l.byID = append(l.byNumber, nil), map[string]*Owner{}
			}
			number = uint32(len(l.byNumber))
			l.byNumber = append(l.byNumber, nil)
		}
		o = &Owner{ID: id, Number: number}
		l.byID[o.ID], l.byNumber[number] = o, o
		l.limits.Pool.Charge(memory.Keys, int64(len(o.ID))+ownerCost)
	}
	o.sessions++
	return o
}

// Leave says that a session is closed that has joined.
func (l *Ledger) Leave(o *Owner) {
	o.sessions--
	l.forget(o)
}

// Add counts a key of this many bytes with its value; o is nil if it belongs to no client.
func (l *Ledger) Add(o *Owner, bytes int64) { l.count(o, 1, bytes) }

// Remove takes away what Add has counted.
func (l *Ledger) Remove(o *Owner, bytes int64) { l.count(o, -1, -bytes) }

func (l *Ledger) count(o *Owner, keys, bytes int64) {
	l.Keys += keys
	l.Bytes += bytes
	if o != nil {
		o.Keys += keys
		o.Bytes += bytes
		if l.most == nil || o.Keys > l.most.Keys {
			l.most = o
		}
		l.forget(o)
	}
}

// forget forgets the owner if nothing is left of it.
func (l *Ledger) forget(o *Owner) {
	if o.Keys > 0 || o.sessions > 0 {
		return
	}
	if l.most == o {
		l.most = nil
	}
	delete(l.byID, o.ID)
	l.byNumber[o.Number] = nil
	l.free = append(l.free, o.Number)
	l.limits.Pool.Credit(memory.Keys, int64(len(o.ID))+ownerCost)
}

// noOwner stands for a client that holds nothing.
var noOwner Owner

// Room fills room, which is zero, with what the store and a client may still grow by
// changing a key's record r. client says that a client changes it, held what is counted
// for it, nil: nothing, and own what it may hold.
func (l *Ledger) Room(room *statestore.Room, r table.Record, client bool, held *Owner, own Bounds) {
	if held == nil {
		held = &noOwner
	}
	room.Keys = l.limits.Keys - l.Keys
	room.Bytes = l.limits.Bytes - l.Bytes
	room.Memos = l.MemoRoom()
	if held.Keys < l.limits.Keys/lightShare {
		room.Keys += l.limits.Keys / lightShare
	}
	if held.Bytes < l.limits.Bytes/lightShare {
		room.Bytes += l.limits.Bytes / lightShare
	}
	if left := l.limits.Pool.Room(memory.Keys); left != math.MaxInt64 {
		if !r.Exists() {
			left -= table.Cost
		}
		if left < room.Bytes {
			room.Bytes, room.BytesBy = left, statestore.MaxMemory
		}
	}
	keys, bytes := max(own.Keys, 0), max(own.Bytes, 0)
	if keys == 0 {
		keys = l.limits.ClientKeys
	}
	if bytes == 0 {
		bytes = l.limits.ClientBytes
	}
	if keys > 0 || bytes > 0 {
		room.Client = statestore.ClientRoom{
			Bounded: client,
			Own:     held.Number != 0 && r.Live() && r.Owner() == held.Number,
			Keys:    boundOr(keys, math.MaxInt64) - held.Keys,
			Bytes:   boundOr(bytes, math.MaxInt64) - held.Bytes,
		}
	}
}

func boundOr(bound, none int64) int64 {
	if bound > 0 {
		return bound
	}
	return none
}

// Largest returns a copy of the owner with the most keys, or bytes.
func (l *Ledger) Largest(byKeys bool) (most Owner) {
	for _, o := range l.byID {
		if byKeys && o.Keys > most.Keys || !byKeys && o.Bytes > most.Bytes {
			most = *o
		}
	}
	return most
}

// Most is the client with most keys, and how many it has. After it has deleted some it may
// still be named, until one that holds more writes a key.
func (l *Ledger) Most() (id string, keys int64) {
	if l.most == nil {
		return "", 0
	}
	return l.most.ID, l.most.Keys
}

// Owners is how many there are, and how many numbers have been given out.
func (l *Ledger) Owners() (owners, numbers int) { return len(l.byID), max(0, len(l.byNumber)-1) }
