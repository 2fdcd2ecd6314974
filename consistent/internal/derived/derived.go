// Package derived makes values that look random of what identifies a processing, so that a replay
// gets the same ones.
package derived

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// Processing is what identifies one.
type Processing struct{ Handler, Key, MessageID string }

// UUID returns a UUID (version 8, RFC 9562) for each ordinal.
func (p Processing) UUID(ordinal uint64) string {
	h := p.seed("id", ordinal)
	h[6] = h[6]&0x0F | 0x80
	h[8] = h[8]&0x3F | 0x80
	var text [36]byte
	b, start := text[:0], 0
	for _, end := range [...]int{4, 6, 8, 10, 16} {
		if start > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, h[start:end])
		start = end
	}
	return string(b)
}

// Rand returns a source of random numbers (ChaCha8).
func (p Processing) Rand() *rand.Rand { return rand.New(rand.NewChaCha8(p.seed("rand", 0))) }

// seed hashes what identifies the processing. Lengths come first, so that no two
// processings look the same.
func (p Processing) seed(purpose string, ordinal uint64) [sha256.Size]byte {
	b := make([]byte, 0, 256) // on the stack, if that is enough
	for _, s := range [...]string{purpose, p.Handler, p.Key, p.MessageID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return sha256.Sum256(binary.AppendUvarint(b, ordinal))
}
