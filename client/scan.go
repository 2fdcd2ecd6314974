package client

import (
	"context"
	"iter"

	"holdfast/internal/protocol"
)

// Scan lists the keys that match a pattern, an extension of Holdfast: `*`, `?`,
// `[abc]`, `[a-z]`, `[!abc]`, and `[*]` for the character itself, matched
// against the whole key. Keys that are not UTF-8 are never listed. A key that
// exists during the whole scan comes exactly once; one that comes or goes
// meanwhile may or may not.
//
//	for key, err := range c.Scan(ctx, "sensor/*") {
//		if err != nil { return err }
//		…
//	}
//
// Keys are fetched a page at a time, while the loop runs. An error comes last.
// The client's timeout applies to each page if ctx has no deadline.
func (c *Client) Scan(ctx context.Context, pattern string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var token []byte
		for {
			keys, next, err := c.scanPage(ctx, pattern, token)
			if err != nil {
				yield("", err)
				return
			}
			for _, key := range keys {
				if !yield(string(key.Blob), nil) {
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
func (c *Client) scanPage(ctx context.Context, pattern string, token []byte) (keys []protocol.Response, next []byte, err error) {
	args := [][]byte{[]byte("SCAN"), []byte(pattern)}
	if token != nil {
		args = append(args, token)
	}
	r := newRequest("scan", pattern, args...)
	answer, err := c.do(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	if keys, next, ok := page(&answer); ok {
		return keys, next, nil
	}
	return nil, nil, r.unexpected(&answer)
}

// page takes *1 *n keys and *2 *n keys $token apart (protocol, section 7).
func page(a *reply) (keys []protocol.Response, next []byte, ok bool) {
	if a.Kind != protocol.Array || len(a.Array) < 1 || len(a.Array) > 2 || a.Array[0].Kind != protocol.Array {
		return nil, nil, false
	}
	keys = a.Array[0].Array
	for i := range keys {
		if keys[i].Kind != protocol.Blob {
			return nil, nil, false
		}
	}
	if len(a.Array) == 1 {
		return keys, nil, true
	}
	if a.Array[1].Kind != protocol.Blob {
		return nil, nil, false
	}
	return keys, a.Array[1].Blob, true
}
