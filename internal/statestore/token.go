package statestore

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc64"
	"slices"
)

// A scan token says after which key the next page begins (protocol, section 7).
// Its text is the URL-safe base64, without padding, of
//
//	format (1 byte) | checksum (8 bytes, big-endian) | the last key of the page
//
// where the checksum covers the format, the pattern and the key. So a token is
// bound to its pattern, means the same after a restart, and costs the store
// nothing while the client thinks. It proves nothing: a client that makes one up only
// starts a scan elsewhere, and a page holds only keys that the client may read.
const (
	tokenFormat = 1
	tokenHead   = 1 + 8
)

var (
	tokenTable  = crc64.MakeTable(crc64.ECMA)
	tokenBase64 = base64.RawURLEncoding.Strict()
)

// EncodeToken appends the token of the page that follows after, the last key that
// the scan of pattern has come to.
func EncodeToken(dst, pattern, after []byte) []byte {
	raw := make([]byte, tokenHead, tokenHead+len(after))
	raw[0] = tokenFormat
	binary.BigEndian.PutUint64(raw[1:], tokenSum(pattern, after))
	return tokenBase64.AppendEncode(dst, append(raw, after...))
}

// TokenSize is the length of the token that follows a key of the given length.
func TokenSize(after int) int { return tokenBase64.EncodedLen(tokenHead + after) }

// DecodeToken returns the key after which the page of token begins. ok is false
// if EncodeToken didn't make token for this pattern: a malformed token.
func DecodeToken(pattern, token []byte) (after []byte, ok bool) {
	// The decoder skips line breaks; a token has none.
	if slices.ContainsFunc(token, func(c byte) bool { return c == '\r' || c == '\n' }) {
		return nil, false
	}
	raw, err := tokenBase64.AppendDecode(nil, token)
	if err != nil || len(raw) < tokenHead || raw[0] != tokenFormat {
		return nil, false
	}
	after = raw[tokenHead:]
	return after, binary.BigEndian.Uint64(raw[1:]) == tokenSum(pattern, after)
}

func validToken(pattern, token []byte) bool {
	_, ok := DecodeToken(pattern, token)
	return ok
}

// tokenSum covers the pattern's length too, or a byte could change sides between
// pattern and key unnoticed.
func tokenSum(pattern, after []byte) uint64 {
	var head [1 + 8]byte
	head[0] = tokenFormat
	binary.BigEndian.PutUint64(head[1:], uint64(len(pattern)))
	sum := crc64.Update(0, tokenTable, head[:])
	sum = crc64.Update(sum, tokenTable, pattern)
	return crc64.Update(sum, tokenTable, after)
}
