package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client/internal/pages"
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

	// With [Details]:
	Expiry       time.Duration // until the key expires, to the millisecond, at least 1 ms; 0: it never does
	FencingToken hlc.Timestamp // that protects the key; zero: none
}

// ScanOption configures one [Client.Scan] or [Client.ScanValues].
type ScanOption interface{ applyScan(*scanArgs) }

type scanArgs struct{ pages.Options }

type scanFunc func(*scanArgs)

func (f scanFunc) applyScan(a *scanArgs) { f(a) }

// Details has [Client.ScanValues] say of each key when it expires and which fencing token
// protects it. [Client.Scan] ignores it. A server that does not know of it refuses.
func Details() ScanOption { return scanFunc(func(a *scanArgs) { a.Details = true }) }

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

func (binaryKeys) applyScan(a *scanArgs)   { a.Binary = true }
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
	var a scanArgs
	for _, o := range opts {
		o.applyScan(&a)
	}
	a.Values, a.Details = values, a.Details && values
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
	r := newRequest("scan", pattern, a.Words(pattern, token)...)
	answer, err := c.do(ctx, r)
	if errors.Is(err, ErrSyntax) {
		return nil, nil, fmt.Errorf("%w: a pattern has from 1 to %d bytes, and in brackets at least one character or a range from a lower to a higher one", err, protocol.MaxPattern)
	}
	if err != nil {
		return nil, nil, err
	}
	found, next, ok := a.Read(&answer.Response)
	if !ok {
		return nil, nil, r.unexpected(&answer)
	}
	for i := range found {
		f := &found[i]
		entries = append(entries, Entry{f.Key, Value{Bytes: f.Value, Version: f.Version}, f.TooLarge, f.Expiry, f.Token})
	}
	return entries, next, nil
}
