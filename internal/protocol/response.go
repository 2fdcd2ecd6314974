package protocol

import (
	"bytes"
	"errors"
	"strconv"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// ErrMalformed is returned for a payload that isn't what the protocol says.
var ErrMalformed = errors.New("malformed state store payload: it is truncated, has trailing bytes, or isn't the expected form")

// ResponseKind says which form a response has. The zero value is no response.
type ResponseKind uint8

const (
	Simple ResponseKind = iota + 1 // +OK
	Error                          // -ERR <text>
	Int                            // :n
	Blob                           // $n
	Nil                            // $-1
	Array                          // *n
)

// Response is a response as a client reads it. Its bytes are views of the payload.
type Response struct {
	Kind  ResponseKind
	Text  []byte     // of Simple: what follows the +; of Error: what follows "-ERR "
	Int   int64      // of Int
	Blob  []byte     // of Blob; never nil then
	Array []Response // of Array
}

// NotApplied reports whether a condition of SET, VDEL or STORE wasn't met. Both wire
// forms, :-1 and the documented -1, are read as the Int -1.
func (r *Response) NotApplied() bool { return r.Kind == Int && r.Int == -1 }

// Fault returns the fault that an Error's text stands for; ok is false if the text is
// unknown or r is not an Error.
func (r *Response) Fault() (f statestore.Fault, ok bool) {
	if r.Kind != Error {
		return statestore.None, false
	}
	return statestore.FaultOf(string(r.Text))
}

// maxDepth bounds how deep a response's arrays may nest; SCAN with VALUES needs 3.
const maxDepth = 4

// ParseReply reads the payload of a response, in either wire form. The error is
// ErrMalformed.
func ParseReply(payload []byte) (Response, error) {
	r, next := parseResponse(payload, 0, maxDepth)
	if next != len(payload) {
		return Response{}, ErrMalformed
	}
	return r, nil
}

// parseResponse reads the response of b at the index at. The index after it is
// negative if there is none.
func parseResponse(b []byte, at, depth int) (r Response, next int) {
	size := bytes.Index(b[at:], []byte("\r\n"))
	if size < 1 {
		return Response{}, -1
	}
	text := b[at+1 : at+size]
	next = at + size + 2
	switch b[at] {
	case '+':
		return Response{Kind: Simple, Text: text}, next
	case '-':
		return parseError(text), next
	case ':':
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return Response{}, -1
		}
		return Response{Kind: Int, Int: n}, next
	case '$':
		if string(text) == "-1" {
			return Response{Kind: Nil}, next
		}
		blob, next := nextBlob(b, at)
		return Response{Kind: Blob, Blob: blob}, next
	case '*':
		return parseElements(b, at, depth)
	}
	return Response{}, -1
}

// parseError reads what follows the minus. The documents write "-1" for a
// condition that isn't met, and here and there "-ERR: " with a colon.
func parseError(text []byte) Response {
	if string(text) == "1" {
		return Response{Kind: Int, Int: -1}
	}
	text, found := bytes.CutPrefix(text, []byte("ERR "))
	if !found {
		text = bytes.TrimPrefix(text, []byte("ERR: "))
	}
	return Response{Kind: Error, Text: text}
}

// roomAtFirst is for how many elements of an array there is room before they were read.
const roomAtFirst = 64

// parseElements reads an array. Memory beyond that grows with the elements that are really
// there, not with the number that it claims.
func parseElements(b []byte, at, depth int) (r Response, next int) {
	count, next := number(b, at, '*')
	if next < 0 || depth == 0 {
		return Response{}, -1
	}
	r = Response{Kind: Array, Array: make([]Response, 0, min(count, roomAtFirst))}
	for range count {
		var element Response
		element, next = parseResponse(b, next, depth-1)
		if next < 0 {
			return Response{}, -1
		}
		r.Array = append(r.Array, element)
	}
	return r, next
}
