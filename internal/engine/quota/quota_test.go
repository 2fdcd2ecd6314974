package quota

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/engine/table"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

func room(l *Ledger, o *Owner) (r statestore.Room) {
	l.Room(&r, table.Record{}, true, o, Bounds{})
	return r
}

// A client that holds little may pass the store's bounds by a sixteenth of them when
// another client has filled the store; the client that filled it may not.
func TestLightClientsAreNotLockedOut(t *testing.T) {
	t.Parallel()
	l := New(Limits{Keys: 160, Bytes: 1600, Remembered: 5})
	heavy, light := l.Join("heavy"), l.Join("light")
	for range 160 {
		l.Add(heavy, 10)
	}
	if r := room(&l, heavy); r.Keys != 0 || r.Bytes != 0 || r.Memos != 5 {
		t.Errorf("the client that filled the store has room %+v", r)
	}
	for range 10 {
		if r := room(&l, light); r.Keys <= 0 || r.Bytes < 10 {
			t.Fatalf("a client with %d keys has room %+v", light.Keys, r)
		}
		l.Add(light, 10)
	}
	if r := room(&l, light); r.Keys > 0 || r.Bytes > 0 {
		t.Errorf("a client with a sixteenth of the store has room %+v", r)
	}
}

// At its own bound a client has no room for a key, one below it has room for one.
func TestBoundsOfAClient(t *testing.T) {
	t.Parallel()
	l := New(Limits{Keys: 1000, Bytes: 1000, ClientKeys: 2, ClientBytes: 100})
	o := l.Join("client")
	l.Add(o, 60)
	if r := room(&l, o).Client; !r.Bounded || r.Keys != 1 || r.Bytes != 40 {
		t.Errorf("room %+v", r)
	}
	l.Add(o, 40)
	if r := room(&l, o).Client; r.Keys != 0 || r.Bytes != 0 {
		t.Errorf("room %+v at the bound", r)
	}
	if r := room(&l, nil).Client; r.Keys != 2 || r.Bytes != 100 {
		t.Errorf("room %+v of a client that holds nothing", r)
	}
}

// The pool of memory bounds the bytes of the store, and is charged with owners.
func TestThePoolBoundsTheStore(t *testing.T) {
	t.Parallel()
	pool := memory.NewPool(1 << 20)
	l := New(Limits{Keys: 10, Bytes: 1 << 30, Pool: pool})
	o := l.Join("client")
	if r := room(&l, o); r.BytesBy != statestore.MaxMemory || r.Bytes != pool.Room(memory.Keys)-table.Cost {
		t.Errorf("room %+v", r)
	}
	l.Leave(o)
	if used := pool.UsedBy(memory.Keys); used != 0 {
		t.Errorf("%d bytes are charged without an owner", used)
	}
}

// An owner is forgotten with its last key and session; then its number goes to another.
func TestOwnersAreForgotten(t *testing.T) {
	t.Parallel()
	l := New(Limits{Keys: 10, Bytes: 100})
	a := l.Join("a")
	if l.Join("a") != a || l.ByNumber(a.Number) != a || l.ByNumber(0) != nil || l.ByNumber(99) != nil {
		t.Fatal("two sessions of a client have one owner, found by its number")
	}
	l.Add(a, 5)
	l.Leave(a)
	l.Leave(a)
	if l.ByNumber(a.Number) != a {
		t.Error("the owner of a key was forgotten with its sessions")
	}
	if most := l.Largest(true); most.ID != "a" || most.Keys != 1 || most.Bytes != 5 {
		t.Errorf("the largest owner is %+v", most)
	}
	l.Remove(a, 5)
	if owners, _ := l.Owners(); owners != 0 || l.Keys != 0 || l.Bytes != 0 {
		t.Errorf("%d owners, %d keys of %d bytes are left", owners, l.Keys, l.Bytes)
	}
	if b := l.Join("b"); b.Number != a.Number {
		t.Errorf("number %d was given out, %d is free", b.Number, a.Number)
	}
}
