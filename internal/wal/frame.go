package wal

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// FrameHeader is how many bytes of a frame come before its rows.
	FrameHeader = 24
	tightRoom   = 1 << 31 // of the field unsynced
)

// Mask is the number with which the batch numbers in a directory's frames are XORed.
type Mask uint64

// Frame is a frame that was read from a segment.
type Frame struct {
	Number uint64
	Rows   []byte // a view
	End    int    // where the next frame begins

	synced uint64 // the last batch that was known to be on the disk when the frame was made
	tight  bool   // its segment has less room ahead than usual, see Log.extend
	whole  []byte // a view; Rows is a part of it
}

// sums is the checksum of a frame: two of 32 bits, so that a frame that is wrong in one
// bit can be repaired (see flippedBit). The processor has instructions for both.
func sums(b []byte) uint64 {
	return uint64(crc32.Checksum(b, castagnoli))<<32 | uint64(crc32.ChecksumIEEE(b))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendFrame appends a batch's frame to dst. synced is the last batch that is known to be
// on the disk.
func (m Mask) AppendFrame(dst []byte, number, synced uint64, rows []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, 8)...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(rows)))
	dst = binary.LittleEndian.AppendUint64(dst, number^uint64(m))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(number-synced)) // a segment bounds it
	dst = append(dst, rows...)
	binary.LittleEndian.PutUint64(dst[at:], sums(dst[at+8:]))
	return dst
}

// appendEndFrame appends the end frame of a segment: batch next begins another one.
func (m Mask) appendEndFrame(dst []byte, next uint64) []byte {
	return m.AppendFrame(dst, next, next, nil)
}

// writeEndFrame writes an end frame behind the last frame of a segment, durably.
func writeEndFrame(f vfs.File, frame []byte, end int64) error {
	if _, err := f.WriteAt(frame, end); err != nil {
		return err
	}
	return f.SyncData()
}

// markTight makes a frame say that its segment has less room ahead than usual.
func markTight(frame []byte) []byte {
	unsynced := frame[20:24]
	binary.LittleEndian.PutUint32(unsynced, binary.LittleEndian.Uint32(unsynced)|tightRoom)
	binary.LittleEndian.PutUint64(frame, sums(frame[8:]))
	return frame
}

// ReadFrame reads the frame at b[p:]; false: no sound frame begins there.
func (m Mask) ReadFrame(b []byte, p int) (f Frame, ok bool) {
	if len(b)-p < FrameHeader {
		return f, false
	}
	h := b[p:]
	length := binary.LittleEndian.Uint32(h[8:])
	if uint64(length) > uint64(len(h)-FrameHeader) {
		return f, false
	}
	h = h[:FrameHeader+int(length)]
	if sums(h[8:]) != binary.LittleEndian.Uint64(h) {
		return f, false
	}
	f.Number, f.synced = m.numbers(h)
	f.tight = binary.LittleEndian.Uint32(h[20:])&tightRoom != 0
	f.whole, f.Rows, f.End = h, h[FrameHeader:], p+len(h)
	return f, true
}

// begun reads the header of a frame at b[p:] that need not be whole. ok is false if a write
// that was torn may have left a part of the header.
func (m Mask) begun(b []byte, p int) (f Frame, ok bool) {
	const sector = 512 // of a disk, which writes it as a whole or not at all
	if len(b)-p < FrameHeader || (p+8)/sector != (p+FrameHeader-1)/sector {
		return f, false
	}
	h := b[p:]
	f.Number, f.synced = m.numbers(h)
	f.tight = binary.LittleEndian.Uint32(h[20:])&tightRoom != 0
	return f, f.synced < f.Number
}

// isEndFrame says whether f is an end frame: batch Number begins another segment.
func (f *Frame) isEndFrame() bool { return f.synced == f.Number }

// numbers returns the batch number in a frame's header, and the last batch that the frame
// says was on the disk.
func (m Mask) numbers(h []byte) (number, synced uint64) {
	number = binary.LittleEndian.Uint64(h[12:]) ^ uint64(m)
	return number, number - uint64(binary.LittleEndian.Uint32(h[20:])&^tightRoom)
}
