package engine

import (
	"github.com/holdfast-mqtt/holdfast/internal/engine/page"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// scan runs SCAN: it reads the keys in their order from the journal, which has
// them in order, and asks memory whether they are still there. Pebble shows what
// is not durable yet, so the reply waits for everything that was appended when
// it read.
func (s *session) scan(c *Call) (wait Wait) {
	d := &c.decision
	d.look()
	statestore.Apply(&c.Command, statestore.Cell{}, &d.env, &d.res)
	if d.res.Reply.Kind != statestore.OK {
		return wait
	}
	d.res.Reply, wait.Batch = s.readPage(&c.Command, &d.env)
	if wait.Batch != 0 && s.watchesAny() {
		return s.ask() // after the notifications of what the page shows
	}
	return wait
}

func (s *session) readPage(cmd *statestore.Command, env *statestore.Env) (statestore.Reply, journal.Seq) {
	e := s.e
	p, fault := page.New(cmd, page.Options{Source: scanned{s, env.NowMs, env.CutMs}, Keys: e.o.ScanPageKeys, Bytes: e.o.ScanPageBytes})
	if fault != statestore.None {
		return statestore.Reply{Kind: statestore.Error, Fault: fault}, 0
	}
	if !e.scans.Take(s.gone) {
		p.Empty()
		return p.Reply(), 0
	}
	defer e.scans.Give()
	e.journal.WaitDurable()
	lower, upper := p.Bounds()
	if err := e.journal.Iterate(lower, upper, p.Visit); err != nil {
		// With a token, even that of the last page, the client would come again at once.
		e.o.Logger.Error("SCAN failed: the keys cannot be read", "pattern", string(cmd.Key), "error", err)
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}, 0
	}
	return p.Reply(), e.journal.Last()
}

// scanned is what a page of a session's SCAN asks.
type scanned struct {
	s            *session
	nowMs, cutMs int64 // see statestore.Env
}

func (sc scanned) Gone() bool { return sc.s.gone() }

func (sc scanned) MayRead(key []byte) bool {
	canRead := sc.s.e.o.CanRead
	return canRead == nil || canRead(&sc.s.origin, key)
}

func (sc scanned) Work(units int) {
	if work := sc.s.origin.Work; work != nil {
		work(units)
	}
}

func (sc scanned) GiveWay() {
	if rest := sc.s.origin.Rest; rest != nil {
		rest()
	}
	sc.s.e.scans.Pass()
}

// Find asks memory, which knows of deletions and deadlines, and has the newest value.
// What it has there was appended to the journal before the page ends, so the reply waits
// for it.
func (sc scanned) Find(key []byte, value bool) (found statestore.PageValue, live bool) {
	sh, hash := sc.s.e.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.Get(key, hash)
	if !r.Live() || r.DeadlineMs() != 0 && sc.nowMs >= r.DeadlineMs() {
		return found, false
	}
	if value {
		var e statestore.Entry
		sh.table.FencedEntry(r, &e)
		if !r.Lasting() { // else its bytes never change
			e.Value = append([]byte{}, e.Value...)
		}
		found = statestore.PageValue{Bytes: e.Value, Version: e.Version, Token: e.Token}
		if e.DeadlineMs != 0 {
			found.ExpiryMs = max(1, e.DeadlineMs-sc.nowMs-sc.cutMs) // cut, as the deadline was: never more than PX
		}
	}
	return found, true
}
