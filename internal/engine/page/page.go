// Package page fills one page of SCAN (protocol, section 7): it is given the rows of the
// keys in their order, and keeps those that match, as far as its bounds go. The engine
// reads the rows and knows what memory has of a key; the rules make tokens.
//
// A Page belongs to one goroutine.
package page

import (
	"bytes"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
)

// Bounds of what one page looks at, matching or not: a page may be empty and still
// have a successor (protocol, section 7). Together they end a page after some tens of
// milliseconds, so that the next SCAN that waits for a place gets it, whatever the
// pattern and the keys are.
const (
	MaxVisited      = 20_000   // rows
	MaxVisitedKeys  = 1 << 20  // bytes of keys, each of which is held against the pattern
	MaxVisitedBytes = 16 << 20 // bytes of keys and values, which are read from the disk together
)

// What a page takes in a packet besides keys, values and versions, in bytes, at most:
// the heads of the two arrays, the head and end of a blob string, and of an entry with
// a value the head of its array; and the digits of a version.
const (
	pageAround  = 32
	blobAround  = 16
	entryAround = 4 + 2*blobAround

	detailsAround = 2 * blobAround // an integer, and what is around a token
	versionDigits = 2*20 + len("::")
)

// Source is what a page asks the engine while it is filled.
type Source interface {
	// Gone says that the page can't reach the client any more.
	Gone() bool
	// MayRead says whether the client may read the key.
	MayRead(key []byte) bool
	// Find says whether there is such a key, and gives its version and, if asked, its
	// value, which never changes.
	Find(key []byte, value bool) (statestore.PageValue, bool)
	// Work is told of work in units of about a microsecond, between two rows.
	Work(units int)
	// GiveWay lets another SCAN that waits have its place.
	GiveWay()
}

// Options of New.
type Options struct {
	Source Source
	Keys   int // at most
	Bytes  int // of keys and values, unless the first key has more
}

// Page is one page of SCAN being filled.
//
// It ends before it would pass Options.Bytes; only its first key, with its value, may
// be larger. In all it fits in a packet that the client takes, with the token that may
// follow. So a value that can't be sent at all is left out, which the client sees, and
// a key that can't be ends the scan with an error.
type Page struct {
	o       Options
	cmd     *statestore.Command
	glob    glob.Glob
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

// New begins the page that cmd, a SCAN, asks for. The fault says why there is none.
func New(cmd *statestore.Command, o Options) (*Page, statestore.Fault) {
	p := &Page{o: o, cmd: cmd, packet: pageAround}
	compile := glob.Compile
	if cmd.Binary {
		compile = glob.CompileBytes
	}
	var err error
	if p.glob, err = compile(cmd.Key); err != nil {
		return nil, statestore.Syntax
	}
	if cmd.HasToken {
		var ok bool
		if p.last, ok = statestore.DecodeToken(cmd.Key, cmd.Value); !ok {
			return nil, statestore.MalformedToken
		}
	}
	return p, statestore.None
}

// Bounds are those of the rows that the page is to be given, in their order.
func (p *Page) Bounds() (lower, upper []byte) {
	return bounds(p.glob.Prefix(), p.last, p.cmd.HasToken)
}

// Empty makes the page one without keys, after which there may be more.
func (p *Page) Empty() { p.more = true }

// Reply is the page as far as it was filled.
func (p *Page) Reply() statestore.Reply {
	if p.tooLong && len(p.keys) == 0 || p.more && !p.moved && !p.o.Source.Gone() {
		return statestore.Reply{Kind: statestore.Error, Fault: statestore.PageTooLarge}
	}
	reply := statestore.Reply{Kind: statestore.Page, Keys: p.keys, Values: p.values, Details: p.cmd.Details}
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

// Visit looks at one row. A page whose connection is gone ends as if it were full.
//
// A key that the client may not read doesn't exist for it: it ends no page, stands in no
// token, and a page after which only such keys come is the last. So neither pages nor
// their number tell that there are any.
func (p *Page) Visit(row, value []byte) bool {
	key := row[len(rows.KeyPrefix):]
	if p.o.Source.Gone() {
		p.more = true
		return false
	}
	if !p.o.Source.MayRead(key) {
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
	p.o.Source.Work(1 + len(key)/MatchedPerUnit + len(value)/readPerUnit)
	return true
}

// passOver counts a row that the client may not see. As such rows don't end the page, it
// lets another SCAN that waits have its place after as many of them as a page looks at.
func (p *Page) passOver(key []byte) {
	p.o.Source.Work(1 + len(key)/MatchedPerUnit)
	if p.hidden++; p.hidden%MaxVisited == 0 {
		p.o.Source.GiveWay()
	}
}

// fits says whether a page of that size in a packet can be sent, with a token that
// follows key.
func (p *Page) fits(packet int, key []byte) bool {
	return p.cmd.MaxPage == 0 || packet+blobAround+statestore.TokenSize(len(key)) <= p.cmd.MaxPage
}

// add puts a key in the page, with the value that wanted has found, or says that
// there is no room.
func (p *Page) add(key []byte) bool {
	v := p.found
	size := len(key) + len(v.Bytes)
	if len(p.keys) > 0 && p.bytes+size > p.o.Bytes {
		return false
	}
	packet := p.packet + blobAround + len(key)
	if p.cmd.Values {
		packet += entryAround + len(v.Bytes) + len(v.Version.Node) + versionDigits
	}
	if p.cmd.Details {
		packet += detailsAround + len(v.Token.Node) + versionDigits
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
	MatchedPerUnit = 64 // of a key, with a long pattern
	readPerUnit    = 4 << 10
)

func (p *Page) full() bool {
	return p.visited.rows >= MaxVisited || p.visited.keys >= MaxVisitedKeys || p.visited.bytes >= MaxVisitedBytes ||
		len(p.keys) >= p.o.Keys || p.bytes >= p.o.Bytes
}

// wanted says whether a key belongs in the page, and if so with values, finds its own.
func (p *Page) wanted(key []byte) (wanted bool) {
	if !p.glob.Match(key) {
		return false
	}
	p.found, wanted = p.o.Source.Find(key, p.cmd.Values)
	return wanted
}
