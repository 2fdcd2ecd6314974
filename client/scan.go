package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Entry is a key with its value, as [Client.ScanValues] lists them.
type Entry struct {
	Key string // the bytes of the key, which need not be UTF-8
	Value
	// TooLarge: the key has a value that doesn't fit in a packet of the size that
	// [WithMaxPacketSize] allows. Bytes is nil; the Version is the value's.
	TooLarge bool
}

// ScanOption configures one [Client.Scan] or [Client.ScanValues].
type ScanOption interface{ applyScan(*scanArgs) }

type scanArgs struct{ values, binary bool }

type scanFunc func(*scanArgs)

func (f scanFunc) applyScan(a *scanArgs) { f(a) }

// BinaryKeys lists keys that are not UTF-8 as well. The pattern, which need not be UTF-8
// either, is then matched byte by byte: `?` stands for one byte, and what stands in
// brackets is bytes.
//
// It is an option of [Client.Scan], [Client.ScanValues] and [Client.WatchPattern].
func BinaryKeys() PatternOption { return binaryKeys{} }

// PatternOption is an option of everything that takes a pattern.
type PatternOption interface {
	ScanOption
	WatchOption
}

type binaryKeys struct{}

func (binaryKeys) applyScan(a *scanArgs)   { a.binary = true }
func (binaryKeys) applyWatch(a *watchArgs) { a.binary = true }

// LiteralPattern returns a pattern that matches the text s and nothing else, as a whole
// pattern or as a part of one: LiteralPattern("a*")+"/*" matches the keys that begin with
// "a*/".
func LiteralPattern(s string) string { return literal.Replace(s) }

var literal = strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]")

// Scan lists the keys that match a pattern, an extension of Holdfast: `*`, `?`,
// `[abc]`, `[a-z]`, `[!abc]`, and `[*]` for the character itself, matched
// against the whole key. Keys that are not UTF-8 are listed only with [BinaryKeys].
// A key that exists during the whole scan comes exactly once; one that comes or goes
// meanwhile may or may not.
//
//	for key, err := range c.Scan(ctx, "sensor/*") {
//		if err != nil { return err }
//		…
//	}
//
// Keys are fetched a page at a time, while the loop runs. An error comes last.
// The client's timeout applies to each page if ctx has no deadline.
func (c *Client) Scan(ctx context.Context, pattern string, opts ...ScanOption) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for e, err := range c.scan(ctx, pattern, false, opts) {
			if !yield(e.Key, err) {
				return
			}
		}
	}
}

// ScanValues is [Client.Scan] with each key's value and version, as they were when
// the page with the key was made. A page has at most 256 KiB of keys and values, or
// one key with a larger value.
func (c *Client) ScanValues(ctx context.Context, pattern string, opts ...ScanOption) iter.Seq2[Entry, error] {
	return c.scan(ctx, pattern, true, opts)
}

func (c *Client) scan(ctx context.Context, pattern string, values bool, opts []ScanOption) iter.Seq2[Entry, error] {
	a := scanArgs{values: values}
	for _, o := range opts {
		o.applyScan(&a)
	}
	return func(yield func(Entry, error) bool) {
		var token []byte
		for {
			entries, next, err := c.scanPage(ctx, pattern, token, &a)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if next == nil {
				return
			}
			token = next
		}
	}
}

// scanPage fetches one page; next is nil after the last.
func (c *Client) scanPage(ctx context.Context, pattern string, token []byte, a *scanArgs) (entries []Entry, next []byte, err error) {
	args := [][]byte{[]byte("SCAN"), []byte(pattern)}
	if token != nil {
		args = append(args, token)
	}
	if a.values {
		args = append(args, []byte("VALUES"))
	}
	if a.binary {
		args = append(args, []byte("BINARY"))
	}
	r := newRequest("scan", pattern, args...)
	answer, err := c.do(ctx, r)
	if errors.Is(err, ErrSyntax) {
		return nil, nil, fmt.Errorf("%w: a pattern has from 1 to %d bytes, and in brackets at least one character or a range from a lower to a higher one", err, protocol.MaxPattern)
	}
	if err != nil {
		return nil, nil, err
	}
	if entries, next, ok := page(&answer, a.values); ok {
		return entries, next, nil
	}
	return nil, nil, r.unexpected(&answer)
}

// page takes *1 *n keys and *2 *n keys $token apart (protocol, section 7). With
// values there is an array of key, value and version instead of each key.
func page(a *reply, values bool) (entries []Entry, next []byte, ok bool) {
	if a.Kind != protocol.Array || len(a.Array) < 1 || len(a.Array) > 2 || a.Array[0].Kind != protocol.Array {
		return nil, nil, false
	}
	entries = make([]Entry, len(a.Array[0].Array))
	for i := range entries {
		read := entries[i].readKey
		if values {
			read = entries[i].readAll
		}
		if !read(&a.Array[0].Array[i]) {
			return nil, nil, false
		}
	}
	if len(a.Array) == 1 {
		return entries, nil, true
	}
	if a.Array[1].Kind != protocol.Blob {
		return nil, nil, false
	}
	return entries, a.Array[1].Blob, true
}

func (e *Entry) readKey(r *protocol.Response) (ok bool) {
	e.Key = string(r.Blob)
	return r.Kind == protocol.Blob
}

func (e *Entry) readAll(r *protocol.Response) (ok bool) {
	if r.Kind != protocol.Array || len(r.Array) != 3 || !e.readKey(&r.Array[0]) {
		return false
	}
	value, version := &r.Array[1], &r.Array[2]
	switch value.Kind {
	case protocol.Blob:
		e.Bytes = append([]byte{}, value.Blob...) // not a view of the whole page
	case protocol.Nil:
		e.TooLarge = true
	default:
		return false
	}
	var err error
	e.Version, err = hlc.ParseBytes(version.Blob)
	return err == nil
}
