package principals_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/principals"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
)

// conn is a connection of a principal.
type conn struct {
	name  string
	place *principals.ConnectionPlace
}

// hall is a Table, and the connections that have a place in it.
type hall struct {
	*principals.Table
	t *testing.T
}

func newHall(t *testing.T, connections, reserve int) *hall {
	return &hall{principals.New(principals.Options{Connections: connections, Reserve: reserve}), t}
}

// come is a connection of a principal that is admitted; it displaces another one, or nil.
func (h *hall) come(name string, q access.Quota) (c, displaced *conn) {
	h.t.Helper()
	c = &conn{name: name}
	c.place = h.Arrive(c, false)
	other, refused := h.Admit(c.place, name, &q, false)
	if refused != "" {
		h.t.Fatalf("%s is refused: %s", name, refused)
	}
	displaced, _ = other.(*conn)
	return c, displaced
}

// refused is a connection of a principal that is refused.
func (h *hall) refused(name string, q access.Quota, want string) {
	h.t.Helper()
	s := h.Arrive(name, false)
	if other, refused := h.Admit(s, name, &q, false); refused != want || other != nil {
		h.t.Fatalf("%s is told %q and displaces %v; want %q", name, refused, other, want)
	}
	h.Depart(s)
}

var noQuota access.Quota

// Given a server that one principal has filled, others take places from it until they have
// as many, and then newcomers are refused: also those that were displaced.
func TestNewcomersTakePlacesUntilAllHaveAsMany(t *testing.T) {
	t.Parallel()
	h := newHall(t, 6, 0)
	var heavy []*conn
	for range 6 {
		c, _ := h.come("heavy", noQuota)
		heavy = append(heavy, c)
	}
	h.refused("heavy", noQuota, principals.RefusedAll)
	for i, want := range []*conn{heavy[5], heavy[4], heavy[3]} { // the newest first
		_, displaced := h.come("light", noQuota)
		if displaced != want {
			t.Fatalf("connection %d of light displaces %v, want the newest of heavy", i+1, displaced)
		}
		h.Depart(displaced.place)
	}
	h.refused("light", noQuota, principals.RefusedAll)
	h.refused("heavy", noQuota, principals.RefusedAll)
	if _, displaced := h.come("third", noQuota); displaced == nil {
		t.Error("a principal without connections displaces none of 3 and 3")
	}
}

// At its own bound a principal is refused, and a client of it that has a connection which
// ends for the new one is not.
func TestConnectionsOfAPrincipalAreBounded(t *testing.T) {
	t.Parallel()
	h := newHall(t, 100, 0)
	two := access.Quota{Connections: 2}
	first, _ := h.come("p", two)
	h.come("p", two)
	h.refused("p", two, principals.RefusedOwn)
	again := &conn{name: "p"}
	again.place = h.Arrive(again, false)
	if _, refused := h.Admit(again.place, "p", &two, true); refused != "" {
		t.Fatalf("a client that has a connection is told %q", refused)
	}
	h.Depart(first.place)
	h.refused("p", two, principals.RefusedOwn)
	h.Depart(again.place)
	h.come("p", two)
	h.come("other", two)
}

// The reserve is for principals that have it, as long as it lasts.
func TestReserve(t *testing.T) {
	t.Parallel()
	h := newHall(t, 2, 1)
	admin := access.Quota{Reserve: true}
	for _, name := range []string{"a", "b"} {
		h.come(name, noQuota)
	}
	h.refused("c", noQuota, principals.RefusedAll)
	one, displaced := h.come("admin", admin)
	if displaced != nil || h.Figures().Reserved != 1 {
		t.Fatalf("the administrator displaces %v; %d places of the reserve are taken", displaced, h.Figures().Reserved)
	}
	h.refused("admin", admin, principals.RefusedAll)
	h.Depart(one.place)
	h.come("admin", admin)
}

// The connection that has waited for its CONNECT longest makes room, and can't be admitted
// any more. Those with a place apart don't.
func TestStrangersMakeRoom(t *testing.T) {
	t.Parallel()
	h := newHall(t, 10, 0)
	here := h.Arrive("here", true)
	first, second := h.Arrive("first", false), h.Arrive("second", false)
	h.come("p", noQuota)
	for _, want := range []any{"first", "second", nil} {
		if got := h.OldestStranger(); got != want {
			t.Fatalf("%v makes room, want %v", got, want)
		}
	}
	if _, refused := h.Admit(first, "p", &noQuota, false); refused == "" {
		t.Error("a connection that makes room is admitted")
	}
	if _, refused := h.Admit(here, "here", &noQuota, false); refused != "" {
		t.Errorf("a connection with a place apart is told %q", refused)
	}
	for _, s := range []*principals.ConnectionPlace{first, second, here} {
		h.Depart(s)
	}
}

// Whatever connections do, no principal falls below what an equal division gives it, there
// are never more than there may be, and nothing is left when all have gone.
func TestDisplacingIsFair(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most = 7
		pool := memory.NewPool(1 << 30)
		ps := principals.New(principals.Options{Connections: most, Memory: pool})
		var here []*conn
		count := map[string]int{}
		leave := func(i int, displaced bool) {
			c := here[i]
			ps.Depart(c.place)
			here = append(here[:i:i], here[i+1:]...)
			if count[c.name]--; count[c.name] == 0 {
				delete(count, c.name)
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if len(here) > 0 && rapid.IntRange(0, 3).Draw(t, "step") == 0 {
				leave(rapid.IntRange(0, len(here)-1).Draw(t, "who"), false)
				continue
			}
			c := &conn{name: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")}
			c.place = ps.Arrive(c, false)
			displaced, refused := ps.Admit(c.place, c.name, &noQuota, false)
			if refused != "" {
				if len(here) < most {
					t.Fatalf("%s is refused although %d of %d places are taken", c.name, len(here), most)
				}
				for name, n := range count {
					if n >= count[c.name]+2 {
						t.Fatalf("%s, which has %d, is refused although %s has %d", c.name, count[c.name], name, n)
					}
				}
				ps.Depart(c.place)
				continue
			}
			here = append(here, c)
			count[c.name]++
			if victim, ok := displaced.(*conn); ok {
				for i := range here {
					if here[i] == victim {
						leave(i, true)
						break
					}
				}
				if share := most / len(count); count[victim.name] < share || count[victim.name] < count[c.name] {
					t.Fatalf("%s is left with %d, less than its share of %d, or than the %d of %s", victim.name, count[victim.name], share, count[c.name], c.name)
				}
			}
			if len(here) > most {
				t.Fatalf("there are %d connections, more than %d", len(here), most)
			}
		}
		for len(here) > 0 {
			leave(0, false)
		}
		if pool.Used() != 0 || ps.Figures() != (principals.Figures{}) {
			t.Fatalf("without connections %d bytes are charged, and the figures are %+v", pool.Used(), ps.Figures())
		}
	})
}

// What it takes to admit a connection when all places are taken does not depend on how many
// there are.
func BenchmarkDisplace(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("connections=%d", n), func(b *testing.B) {
			ps := principals.New(principals.Options{Connections: n})
			come := func(name string) *conn {
				c := &conn{}
				c.place = ps.Arrive(c, false)
				if displaced, _ := ps.Admit(c.place, name, &noQuota, false); displaced != nil {
					ps.Depart(displaced.(*conn).place)
				}
				return c
			}
			for i := range n {
				come(fmt.Sprint("heavy", i%(n/10)))
			}
			b.ReportAllocs()
			for b.Loop() {
				ps.Depart(come("light").place)
				come("heavy0")
			}
		})
	}
}
