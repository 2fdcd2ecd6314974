package spans

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// place is a place in a trace (W3C Trace Context).
type place struct {
	trace   [16]byte
	span    [8]byte
	sampled bool
}

// lengthOfTraceparent is that of version 00: 00-TRACE-SPAN-FLAGS.
const lengthOfTraceparent = 55

// parse reads a traceparent. It is false for one that is malformed, which counts as none.
func parse(text []byte) (c place, ok bool) {
	if len(text) < lengthOfTraceparent || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return c, false
	}
	var version, flags [1]byte
	if !lowerHex(version[:], text[:2]) || !lowerHex(c.trace[:], text[3:35]) || !lowerHex(c.span[:], text[36:52]) || !lowerHex(flags[:], text[53:55]) {
		return c, false
	}
	switch {
	case version[0] == 0xff, c.trace == [16]byte{}, c.span == [8]byte{}:
		return c, false
	case version[0] == 0 && len(text) > lengthOfTraceparent:
		return c, false
	case len(text) > lengthOfTraceparent && text[lengthOfTraceparent] != '-':
		return c, false
	}
	c.sampled = flags[0]&1 != 0
	return c, true
}

func lowerHex(dst, src []byte) bool {
	for _, b := range src {
		if b >= 'A' && b <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

func newTrace() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()|1) // never all zero
	return id
}

func newSpan() (id [8]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}
