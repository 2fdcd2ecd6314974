package engine

import (
	"bytes"
	"time"

	"holdfast/internal/journal"
	"holdfast/internal/statestore"
	"holdfast/internal/statestore/glob"
)

// Bounds of what one page looks at, matching or not: a page may be empty and still
// have a successor (protocol, section 7). Together they end a page after some tens of
// milliseconds, so that the next SCAN that waits for a place gets it, whatever the
// pattern and the keys are.
const (
	maxVisited      = 20_000   // rows
	maxVisitedKeys  = 1 << 20  // bytes of keys, each of which is held against the pattern
	maxVisitedBytes = 16 << 20 // bytes of keys and values, which are read from the disk together
)

// placeInterval is how often a SCAN that waits for its place looks whether its
// connection is gone.
const placeInterval = 20 * time.Millisecond

// page is one page of SCAN being filled.
type page struct {
	s       *session
	glob    glob.Glob
	nowMs   int64
	visited struct{ rows, keys, bytes int }
	bytes   int
	keys    [][]byte
	last    []byte // the last key looked at
	more    bool   // there is one after it
}

// scan runs SCAN: it reads the keys in their order from the journal, which has
// them in order, and asks memory whether they are still there. Pebble shows what
// is not durable yet, so the reply waits for everything that was appended when
// it read.
func (s *session) scan(cmd *statestore.Command, t *turn) {
	t.look()
	statestore.Apply(cmd, statestore.Cell{}, &t.env, &t.res)
	if t.res.Reply.Kind != statestore.OK {
		t.answer(0)
		return
	}
	reply, batch := s.readPage(cmd, t.env.NowMs)
	t.res.Reply = reply
	t.answer(batch)
}

func (s *session) readPage(cmd *statestore.Command, nowMs int64) (statestore.Reply, journal.Seq) {
	g, err := glob.Compile(cmd.Key)
	if err != nil {
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.Syntax}, 0
	}
	var after []byte
	if cmd.HasToken {
		var ok bool
		if after, ok = statestore.DecodeToken(cmd.Key, cmd.Value); !ok {
			return statestore.Reply{Kind: statestore.Error, Fault: statestore.MalformedToken}, 0
		}
	}
	e := s.e
	p := page{s: s, glob: g, nowMs: nowMs, last: after}
	if !s.takeScan() {
		return p.reply(cmd.Key, true), 0
	}
	defer func() { <-e.scans }()
	e.journal.WaitDurable()
	lower, upper := bounds(g.Prefix(), after, cmd.HasToken)
	if err := e.journal.Iterate(lower, upper, p.visit); err != nil {
		// With a token, even that of the last page, the client would come again at once.
		e.o.Logger.Error("SCAN failed: the keys cannot be read", "pattern", string(cmd.Key), "error", err)
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}, 0
	}
	return p.reply(cmd.Key, p.more), e.journal.Last()
}

// takeScan waits for a place among the scans that read, which come in the order of
// asking. It returns false if the connection is gone meanwhile.
func (s *session) takeScan() bool {
	if s.gone() {
		return false
	}
	select {
	case s.e.scans <- struct{}{}:
		return true
	default:
	}
	tick := time.NewTicker(placeInterval)
	defer tick.Stop()
	for !s.gone() {
		select {
		case s.e.scans <- struct{}{}:
			return true
		case <-tick.C:
		}
	}
	return false
}

func (p *page) reply(pattern []byte, more bool) statestore.Reply {
	reply := statestore.Reply{Kind: statestore.Page, Keys: p.keys}
	if more {
		reply.Next = statestore.EncodeToken(nil, pattern, p.last)
	}
	return reply
}

// bounds are those of the rows whose keys begin with prefix and, if resumed,
// come after the key after.
func bounds(prefix, after []byte, resumed bool) (lower, upper []byte) {
	lower = append([]byte(keyPrefix), prefix...)
	upper = bytes.Clone(lower)
	if resumed {
		next := append(append([]byte(keyPrefix), after...), 0)
		if bytes.Compare(next, lower) > 0 {
			lower = next
		}
	}
	for i := len(upper) - 1; ; i-- { // ends at the latest at the |
		if upper[i] < 0xFF {
			upper[i]++
			return lower, upper[:i+1]
		}
	}
}

// visit looks at one row. A page whose connection is gone ends as if it were full.
func (p *page) visit(row, value []byte) bool {
	key := row[len(keyPrefix):]
	if p.full() || p.s.gone() {
		p.more = true
		return false
	}
	p.visited.rows++
	p.visited.keys += len(key)
	p.visited.bytes += len(row) + len(value)
	p.last = append(p.last[:0], key...)
	if p.wanted(key) {
		p.keys = append(p.keys, bytes.Clone(key))
		p.bytes += len(key)
	}
	if work := p.s.origin.Work; work != nil {
		work(1 + len(key)/matchedPerUnit + len(value)/readPerUnit)
	}
	return true
}

// Work that a row takes besides a microsecond, in bytes per microsecond.
const (
	matchedPerUnit = 64 // of a key, with a long pattern
	readPerUnit    = 4 << 10
)

func (p *page) full() bool {
	o := &p.s.e.o
	return p.visited.rows >= maxVisited || p.visited.keys >= maxVisitedKeys || p.visited.bytes >= maxVisitedBytes ||
		len(p.keys) >= o.ScanPageKeys || p.bytes >= o.ScanPageBytes
}

func (p *page) wanted(key []byte) bool {
	return p.glob.Match(key) && p.s.e.present(key, p.nowMs) &&
		(p.s.e.o.CanRead == nil || p.s.e.o.CanRead(&p.s.origin, key))
}

// present asks memory, which knows of deletions and deadlines.
func (e *Local) present(key []byte, nowMs int64) bool {
	sh, hash := e.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.find(key, hash)
	return r.live() && (!r.has(recordDeadline) || nowMs < r.deadlineMs())
}
