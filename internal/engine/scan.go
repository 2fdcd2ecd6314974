package engine

import (
	"bytes"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
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

// What a page takes in a packet besides keys, values and versions, in bytes, at most:
// the heads of the two arrays, the head and end of a blob string, and of an entry with
// a value the head of its array.
const (
	pageAround  = 32
	blobAround  = 16
	entryAround = 4 + 2*blobAround
)

// page is one page of SCAN being filled.
//
// It ends before it would pass ScanPageBytes; only its first key, with its value, may
// be larger. In all it fits in a packet that the client takes, with the token that may
// follow. So a value that can't be sent at all is left out, which the client sees, and
// a key that can't be ends the scan with an error.
type page struct {
	s       *session
	cmd     *statestore.Command
	glob    glob.Glob
	nowMs   int64
	visited struct{ rows, keys, bytes int }
	hidden  int // rows that the client may not read
	bytes   int // of keys and values
	packet  int // what the page takes in a packet, at most, without a token
	keys    [][]byte
	values  []statestore.PageValue
	found   statestore.PageValue // of the key being looked at, if values are asked for

	last    []byte // the key that the next page follows: the last one looked at whose token fits
	moved   bool   // last is one of this page's
	more    bool   // there is a key after it
	tooLong bool   // the next key can't be sent
}

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
	d.res.Reply, wait.Batch = s.readPage(&c.Command, d.env.NowMs)
	if wait.Batch != 0 && s.watchesAny() {
		return s.ask() // after the notifications of what the page shows
	}
	return wait
}

func (s *session) readPage(cmd *statestore.Command, nowMs int64) (statestore.Reply, journal.Seq) {
	p := page{s: s, cmd: cmd, nowMs: nowMs, packet: pageAround}
	compile := glob.Compile
	if cmd.Binary {
		compile = glob.CompileBytes
	}
	var err error
	if p.glob, err = compile(cmd.Key); err != nil {
		return refusedPage(statestore.Syntax), 0
	}
	if cmd.HasToken {
		var ok bool
		if p.last, ok = statestore.DecodeToken(cmd.Key, cmd.Value); !ok {
			return refusedPage(statestore.MalformedToken), 0
		}
	}
	e := s.e
	if !s.takeScan() {
		p.more = true
		return p.reply(), 0
	}
	defer func() { <-e.scans }()
	e.journal.WaitDurable()
	lower, upper := bounds(p.glob.Prefix(), p.last, cmd.HasToken)
	if err := e.journal.Iterate(lower, upper, p.visit); err != nil {
		// With a token, even that of the last page, the client would come again at once.
		e.o.Logger.Error("SCAN failed: the keys cannot be read", "pattern", string(cmd.Key), "error", err)
		return refusedPage(statestore.Unreadable), 0
	}
	if p.tooLong && len(p.keys) == 0 || p.more && !p.moved && !s.gone() {
		return refusedPage(statestore.PageTooLarge), 0
	}
	return p.reply(), e.journal.Last()
}

func refusedPage(f statestore.Fault) statestore.Reply {
	return statestore.Reply{Kind: statestore.Error, Fault: f}
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

func (p *page) reply() statestore.Reply {
	reply := statestore.Reply{Kind: statestore.Page, Keys: p.keys, Values: p.values}
	if p.more {
		reply.Next = statestore.EncodeToken(nil, p.cmd.Key, p.last)
	}
	return reply
}

// bounds are those of the rows whose keys begin with prefix and, if resumed,
// come after the key after.
func bounds(prefix, after []byte, resumed bool) (lower, upper []byte) {
	lower = append([]byte(rows.KeyPrefix), prefix...)
	upper = bytes.Clone(lower)
	if resumed {
		next := append(append([]byte(rows.KeyPrefix), after...), 0)
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
//
// A key that the client may not read doesn't exist for it: it ends no page, stands in no
// token, and a page after which only such keys come is the last. So neither pages nor
// their number tell that there are any.
func (p *page) visit(row, value []byte) bool {
	key := row[len(rows.KeyPrefix):]
	if p.s.gone() {
		p.more = true
		return false
	}
	if !p.readable(key) {
		p.passOver(key)
		return true
	}
	if p.full() {
		p.more = true
		return false
	}
	p.visited.rows++
	p.visited.keys += len(key)
	p.visited.bytes += len(row) + len(value)
	if p.wanted(key) && !p.add(key) {
		p.more = true
		return false
	}
	if p.fits(p.packet, key) {
		p.last, p.moved = append(p.last[:0], key...), true
	}
	if work := p.s.origin.Work; work != nil {
		work(1 + len(key)/matchedPerUnit + len(value)/readPerUnit)
	}
	return true
}

// readable says whether the client may read a key.
func (p *page) readable(key []byte) bool {
	canRead := p.s.e.o.CanRead
	return canRead == nil || canRead(&p.s.origin, key)
}

// passOver counts a row that the client may not see. As such rows don't end the page, it
// lets another SCAN that waits have its place after as many of them as a page looks at.
func (p *page) passOver(key []byte) {
	if work := p.s.origin.Work; work != nil {
		work(1 + len(key)/matchedPerUnit)
	}
	if p.hidden++; p.hidden%maxVisited == 0 {
		if rest := p.s.origin.Rest; rest != nil {
			rest()
		}
		<-p.s.e.scans
		p.s.e.scans <- struct{}{}
	}
}

// fits says whether a page of that size in a packet can be sent, with a token that
// follows key.
func (p *page) fits(packet int, key []byte) bool {
	return p.cmd.MaxPage == 0 || packet+blobAround+statestore.TokenSize(len(key)) <= p.cmd.MaxPage
}

// add puts a key in the page, with the value that present has found, or says that
// there is no room.
func (p *page) add(key []byte) bool {
	v := p.found
	size := len(key) + len(v.Bytes)
	if len(p.keys) > 0 && p.bytes+size > p.s.e.o.ScanPageBytes {
		return false
	}
	packet := p.packet + blobAround + len(key)
	if p.cmd.Values {
		packet += entryAround + len(v.Bytes) + len(v.Version.Node) + 2*20 + len("::")
	}
	if !p.fits(packet, key) {
		if len(p.keys) > 0 {
			return false
		}
		packet -= len(v.Bytes) // alone in a page, and too large all the same
		size, v.Bytes = len(key), nil
		if !p.fits(packet, key) {
			p.tooLong = true
			return false
		}
	}
	p.keys = append(p.keys, bytes.Clone(key))
	if p.cmd.Values {
		p.values = append(p.values, v)
	}
	p.bytes += size
	p.packet = packet
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

// wanted says whether a key belongs in the page, and if so with values, finds its own.
func (p *page) wanted(key []byte) bool {
	return p.glob.Match(key) && p.present(key)
}

// present asks memory, which knows of deletions and deadlines, and has the newest
// value. What it has there was appended to the journal before the page ends, so the
// reply waits for it.
func (p *page) present(key []byte) bool {
	sh, hash := p.s.e.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.table.Get(key, hash)
	if !r.Live() || r.DeadlineMs() != 0 && p.nowMs >= r.DeadlineMs() {
		return false
	}
	if p.cmd.Values {
		var e statestore.Entry
		sh.table.Entry(r, &e)
		if !r.Lasting() { // else its bytes never change
			e.Value = append([]byte{}, e.Value...)
		}
		p.found = statestore.PageValue{Bytes: e.Value, Version: e.Version}
	}
	return true
}
