package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// mend repairs the frame at b[p:], in memory, if it is that of batch next with one wrong
// bit, and no later frame says that it was on the disk.
func (r *recovered) mend(s segment, b []byte, p int, next uint64) bool {
	if r.wasSynced(b[min(p+1, len(b)):], next) {
		return false
	}
	bit, found := r.flippedBit(b, p, next)
	if !found {
		return false
	}
	b[bit/8] ^= 1 << (bit % 8)
	r.mended = append(r.mended, datadir.Damage{File: s.name(), Offset: int64(p), What: fmt.Sprintf("bit %d of byte %d is wrong in batch %d, one of the last, as a write that was cut off may leave it; the batch is whole with that bit flipped", bit%8, bit/8, next)})
	return true
}

// flippedBit looks for the one bit of the frame at b[p:] which, when flipped, makes it the
// sound frame of batch next. It returns the bit's place in b.
func (m Mask) flippedBit(b []byte, p int, next uint64) (bit int, found bool) {
	if len(b)-p < FrameHeader {
		return 0, false
	}
	for i := (p + 8) * 8; i < (p+12)*8; i++ { // in the length: its end is elsewhere
		if m.mends(b, p, i, next) {
			return i, true
		}
	}
	length := binary.LittleEndian.Uint32(b[p+8:])
	if uint64(length) > uint64(len(b)-p-FrameHeader) { // compared before it is an int, which may have 32 bits
		return 0, false
	}
	end := p + FrameHeader + int(length)
	wrong := sums(b[p+8:end]) ^ binary.LittleEndian.Uint64(b[p:])
	switch {
	case wrong == 0: // it is sound, and has another number: the end
		return 0, false
	case bits.OnesCount64(wrong) == 1: // in the sums
		bit = p*8 + bits.TrailingZeros64(wrong)
		return bit, m.mends(b, p, bit, next)
	}
	bit, found = wrongBit(end-p-8, wrong)
	bit += (p + 8) * 8
	return bit, found && m.mends(b, p, bit, next)
}

// mends says whether flipping a bit makes the frame at b[p:] that of batch next.
func (m Mask) mends(b []byte, p, bit int, next uint64) bool {
	b[bit/8] ^= 1 << (bit % 8)
	f, ok := m.ReadFrame(b, p)
	b[bit/8] ^= 1 << (bit % 8)
	return ok && f.Number == next
}

// wrongBit looks for the one bit of n bytes which, when flipped, changes their two checksums
// by the two halves of wrong. A CRC is linear: how a flipped bit changes it depends only on
// how many bytes follow. So wrongBit goes through the bytes from their end and computes the
// change that each bit would make.
func wrongBit(n int, wrong uint64) (bit int, found bool) {
	high, low := castagnoli, crc32.IEEETable // as in sums
	var effect [8]uint64
	for i := range effect {
		effect[i] = uint64(high[1<<i])<<32 | uint64(low[1<<i])
	}
	for at := n - 1; at >= 0; at-- {
		for i, e := range effect {
			if e == wrong {
				return at*8 + i, true
			}
			h, l := uint32(e>>32), uint32(e)
			effect[i] = uint64(high[byte(h)]^h>>8)<<32 | uint64(low[byte(l)]^l>>8)
		}
	}
	return 0, false
}
