package engine

import (
	"bytes"

	"holdfast/internal/journal"
	"holdfast/internal/statestore"
	"holdfast/internal/statestore/glob"
)

// maxVisited bounds what one page looks at, matching or not: a page may be empty
// and still have a successor (protocol, section 7).
const maxVisited = 20_000

// page is one page of SCAN being filled.
type page struct {
	s       *session
	glob    glob.Glob
	nowMs   int64
	visited int
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
	e.scans <- struct{}{}
	defer func() { <-e.scans }()
	e.journal.WaitDurable()
	p := page{s: s, glob: g, nowMs: nowMs}
	lower, upper := bounds(g.Prefix(), after, cmd.HasToken)
	if err := e.journal.Iterate(lower, upper, p.visit); err != nil {
		// With a token, even that of the last page, the client would come again at once.
		e.o.Logger.Error("SCAN failed: the keys cannot be read", "pattern", string(cmd.Key), "error", err)
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.Unreadable}, 0
	}
	reply := statestore.Reply{Kind: statestore.Page, Keys: p.keys}
	if p.more {
		reply.Next = statestore.EncodeToken(nil, cmd.Key, p.last)
	}
	return reply, e.journal.Last()
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

// visit looks at one row.
func (p *page) visit(row, _ []byte) bool {
	key, o := row[len(keyPrefix):], &p.s.e.o
	if p.visited >= maxVisited || len(p.keys) >= o.ScanPageKeys || p.bytes >= o.ScanPageBytes {
		p.more = true
		return false
	}
	p.visited++
	p.last = append(p.last[:0], key...)
	if p.wanted(key) {
		p.keys = append(p.keys, bytes.Clone(key))
		p.bytes += len(key)
	}
	return true
}

func (p *page) wanted(key []byte) bool {
	return p.glob.Match(key) && p.present(key) &&
		(p.s.e.o.CanRead == nil || p.s.e.o.CanRead(&p.s.origin, key))
}

// present asks memory, which knows of deletions and deadlines.
func (p *page) present(key []byte) bool {
	sh, hash := p.s.e.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.find(key, hash)
	return r.live() && (!r.has(recordDeadline) || p.nowMs < r.deadlineMs())
}
