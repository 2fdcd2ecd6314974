package memory

import (
	"math"
	"testing"
)

func TestStateIsRefusedAtItsShare(t *testing.T) {
	t.Parallel()
	p := NewPool(8000)
	if !p.Take(Keys, 6000) {
		t.Fatal("state was refused below six eighths of the limit")
	}
	if p.Take(Retained, 1) {
		t.Fatal("state passed six eighths of the limit")
	}
	if !p.Take(Output, 2000) {
		t.Fatal("traffic was refused although state left it two eighths")
	}
	if p.Take(Output, 1) {
		t.Fatal("state and traffic together passed the limit")
	}
	if room := p.Room(Keys); room != 0 {
		t.Fatalf("there is room for %d bytes of state, want none", room)
	}
	if used, refused := p.Used(), p.Refused(); used != 8000 || refused != 2 {
		t.Fatalf("used %d, refused %d times; want 8000 and 2", used, refused)
	}
	p.Credit(Keys, 6000)
	if room := p.Room(Keys); room != 6000 {
		t.Fatalf("there is room for %d bytes of state, want 6000", room)
	}
	if p.UsedBy(Keys) != 0 || !p.Take(Keys, 6000) {
		t.Fatal("credited bytes could not be taken again")
	}
}

func TestTrafficPastItsBoundAsksForRelief(t *testing.T) {
	t.Parallel()
	p := NewPool(8000)
	p.Charge(Input, 3000)
	if p.Tight() || p.Over() {
		t.Fatal("traffic counts as tight at three eighths")
	}
	p.Charge(Queues, 1)
	if !p.Tight() || p.Over() {
		t.Fatal("traffic does not count as tight above three eighths, or as over its bound already")
	}
	select {
	case <-p.Relief():
		t.Fatal("relief was asked for below the bound")
	default:
	}
	p.Charge(Output, 1000)
	select {
	case <-p.Relief():
	default:
		t.Fatal("no relief was asked for above the bound")
	}
	if !p.Over() {
		t.Fatal("traffic above its bound does not count as over")
	}
	p.Credit(Output, 1000)
	if p.Over() {
		t.Fatal("still over after the credit")
	}
}

func TestNilPoolRefusesNothing(t *testing.T) {
	t.Parallel()
	var p *Pool
	if !p.Take(Keys, 1<<62) || p.Tight() || p.Over() || p.Used() != 0 || p.Relief() != nil || p.Room(Keys) != math.MaxInt64 {
		t.Fatal("a nil pool bounds something")
	}
	p.Charge(Keys, 1)
	p.Credit(Keys, 1)
}

// Watched keys and subscriptions, of which a principal may have any number, leave room for other
// state.
func TestWatchesAndSubscriptionsLeaveRoom(t *testing.T) {
	t.Parallel()
	p := NewPool(16_000)
	for kind, most := range map[Kind]int64{Watches: 4000, Subscriptions: 6000} {
		if !p.Take(kind, most) {
			t.Errorf("%v: %d bytes were refused", kind, most)
		}
		if p.Take(kind, 1) {
			t.Errorf("%v: more than %d bytes were taken", kind, most)
		}
		if used := p.UsedBy(kind); used != most {
			t.Errorf("%v: %d bytes are charged, want %d", kind, used, most)
		}
	}
	if !p.Take(Sessions, 2000) || p.Take(Sessions, 1) {
		t.Errorf("%d bytes of state are charged, want all but traffic's share", p.Used())
	}
	p.Credit(Watches, 1)
	if !p.Take(Watches, 1) {
		t.Error("credited bytes could not be taken again")
	}
}
