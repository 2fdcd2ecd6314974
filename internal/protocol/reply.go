package protocol

import (
	"strconv"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// AppendReply appends the payload of a response.
func AppendReply(dst []byte, w Wire, r *statestore.Reply) []byte {
	switch r.Kind {
	case statestore.OK:
		return append(dst, "+OK\r\n"...)
	case statestore.NotApplied:
		if w == Documented {
			return append(dst, "-1\r\n"...)
		}
		return append(dst, ":-1\r\n"...)
	case statestore.Conflict: // the same in both wire forms, so a kind of its own
		return append(dst, ":-1\r\n"...)
	case statestore.Loaded:
		return appendLoaded(dst, r)
	case statestore.Value:
		return appendBlob(dst, r.Value)
	case statestore.Nil:
		return appendNil(dst)
	case statestore.Count:
		return appendHead(dst, ':', r.Count)
	case statestore.Transacted:
		return appendTransacted(dst, r)
	case statestore.Page:
		return appendPage(dst, r)
	case statestore.TimerPage:
		return appendTimers(dst, r)
	default:
		dst = append(dst, "-ERR "...)
		if r.Op != 0 {
			dst = append(dst, operationPrefix...)
			dst = strconv.AppendInt(dst, int64(r.Op), 10)
			dst = append(dst, ": "...)
		}
		dst = append(dst, r.Fault.Text(w == Documented)...)
		return append(dst, "\r\n"...)
	}
}

// AppendValueHead appends what stands before the bytes of a Value, and ValueTail
// what follows them, for a response that refers to them.
func AppendValueHead(dst []byte, r *statestore.Reply) []byte {
	return appendHead(dst, '$', len(r.Value))
}

// AppendEventHead is AppendValueHead for the notification of a KeySet.
func AppendEventHead(dst []byte, e *statestore.Event) []byte {
	return appendHead(append(dst, setEvent...), '$', len(e.Value))
}

// ValueTail is what follows the bytes of a Value, or of a notification's.
const ValueTail = "\r\n"

// appendPage appends SCAN's page: its keys and, if there is more, the token
// (protocol, section 7). With values, an array of key, value and version stands in
// the place of each key; with details, it has expiry and fencing token as well.
func appendPage(dst []byte, r *statestore.Reply) []byte {
	size := 1
	if len(r.Next) > 0 {
		size = 2
	}
	dst = appendHead(dst, '*', size)
	dst = appendHead(dst, '*', len(r.Keys))
	elements := 3
	if r.Details {
		elements = 5
	}
	for i, key := range r.Keys {
		if r.Values != nil {
			dst = appendHead(dst, '*', elements)
		}
		dst = appendBlob(dst, key)
		if r.Values != nil {
			dst = appendPageValue(dst, &r.Values[i])
		}
		if r.Details {
			dst = appendDetails(dst, &r.Values[i])
		}
	}
	if len(r.Next) > 0 {
		dst = appendBlob(dst, r.Next)
	}
	return dst
}

// appendTimers appends the page of TIMERS: an array of ID, time and topic for each timer and,
// if there may be more, the last ID (protocol, section 14).
func appendTimers(dst []byte, r *statestore.Reply) []byte {
	size := 1
	if len(r.Next) > 0 {
		size = 2
	}
	dst = appendHead(dst, '*', size)
	dst = appendHead(dst, '*', len(r.Timers))
	var text [20]byte
	for i := range r.Timers {
		dst = appendHead(dst, '*', 3)
		dst = appendBlob(dst, r.Timers[i].ID)
		dst = appendBlob(dst, strconv.AppendInt(text[:0], r.Timers[i].DueMs, 10))
		dst = appendBlob(dst, []byte(r.Timers[i].Topic))
	}
	if len(r.Next) > 0 {
		dst = appendBlob(dst, r.Next)
	}
	return dst
}

func appendPageValue(dst []byte, v *statestore.PageValue) []byte {
	if v.Bytes == nil {
		dst = appendNil(dst)
	} else {
		dst = appendBlob(dst, v.Bytes)
	}
	return appendVersion(dst, v.Version)
}

func appendDetails(dst []byte, v *statestore.PageValue) []byte {
	expiry := v.ExpiryMs
	if expiry == 0 {
		expiry = -1
	}
	dst = strconv.AppendInt(append(dst, ':'), expiry, 10)
	dst = append(dst, "\r\n"...)
	if v.Token.IsZero() {
		return appendNil(dst)
	}
	return appendVersion(dst, v.Token)
}

func appendVersion(dst []byte, v hlc.Timestamp) []byte {
	var text [96]byte
	return appendBlob(dst, v.Append(text[:0]))
}

// appendLoaded appends LOAD's array of a number and two blobs, state and context
// (protocol, section 8).
func appendLoaded(dst []byte, r *statestore.Reply) []byte {
	dst = appendHead(dst, '*', 3)
	dst = appendHead(dst, ':', r.Count)
	for _, blob := range [...][]byte{r.Value, r.Context} {
		if blob == nil {
			dst = appendNil(dst)
			continue
		}
		dst = appendBlob(dst, blob)
	}
	return dst
}

func appendNil(dst []byte) []byte { return append(dst, "$-1\r\n"...) }

func appendBlob(dst, blob []byte) []byte {
	dst = appendHead(dst, '$', len(blob))
	dst = append(dst, blob...)
	return append(dst, "\r\n"...)
}

// appendHead appends a type byte, a number and the end of the line.
func appendHead(dst []byte, kind byte, n int) []byte {
	dst = append(dst, kind)
	dst = strconv.AppendInt(dst, int64(n), 10)
	return append(dst, "\r\n"...)
}

// AppendCommand appends a request's payload: the verb and its arguments, in upper
// case where they are words of the protocol.
func AppendCommand(dst []byte, args ...[]byte) []byte {
	dst = AppendWords(dst, len(args))
	for _, arg := range args {
		dst = AppendWord(dst, arg)
	}
	return dst
}

// CommandAround gives a request without the bytes of one of its words: what comes before them, and
// what comes behind them.
func CommandAround(word int, args ...[]byte) (before, behind []byte) {
	b := AppendWords(nil, len(args))
	cut := 0
	for i, arg := range args {
		if i != word {
			b = AppendWord(b, arg)
			continue
		}
		b = appendHead(b, '$', len(arg))
		cut = len(b)
		b = append(b, "\r\n"...)
	}
	return b[:cut:cut], b[cut:]
}

// AppendWords appends the head of a request of so many words, each of which AppendWord appends.
func AppendWords(dst []byte, words int) []byte { return appendHead(dst, '*', words) }

// AppendWord appends a word of a request.
func AppendWord[T string | []byte](dst []byte, word T) []byte {
	dst = appendHead(dst, '$', len(word))
	dst = append(dst, word...)
	return append(dst, "\r\n"...)
}
