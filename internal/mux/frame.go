package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Window is how many bytes of a stream may be on their way in one direction.
const Window = 16 << 10

// MaxOpen bounds what OPEN says, in bytes.
const MaxOpen = 48 << 10

// maxReason bounds the reason of CLOSE, in bytes.
const maxReason = 256

type kind byte

const (
	kindOpen kind = 1 + iota
	kindData
	kindCredit
	kindClose
	kindPing
	kindTake
	kindLeave
)

const headerSize = 7

// frame is one whole frame; the payload is a view.
type frame struct {
	kind    kind
	stream  uint32
	payload []byte
}

var errFrame = errors.New("mux: the peer has sent a frame that breaks the rules")

func appendFrame(dst []byte, k kind, stream uint32, payload []byte) []byte {
	dst = append(dst, byte(k))
	dst = binary.BigEndian.AppendUint32(dst, stream)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(payload)))
	return append(dst, payload...)
}

// split takes the first frame from p. n is its length; 0: it is not whole yet.
func split(p []byte) (f frame, n int, err error) {
	if len(p) < headerSize {
		return f, 0, nil
	}
	f = frame{kind: kind(p[0]), stream: binary.BigEndian.Uint32(p[1:])}
	length := int(binary.BigEndian.Uint16(p[5:]))
	valid := false
	switch f.kind {
	case kindOpen:
		valid = f.stream != 0 && length <= MaxOpen
	case kindData:
		valid = f.stream != 0 && length > 0 && length <= Window
	case kindCredit:
		valid = f.stream != 0 && length == 4
	case kindClose:
		valid = f.stream != 0 && length <= maxReason
	case kindTake:
		valid = f.stream != 0 && length == 0
	case kindPing, kindLeave:
		valid = f.stream == 0 && length == 0
	}
	if !valid {
		return f, 0, fmt.Errorf("%w: type %d of stream %d with %d bytes", errFrame, f.kind, f.stream, length)
	}
	if len(p) < headerSize+length {
		return f, 0, nil
	}
	f.payload = p[headerSize : headerSize+length]
	return f, headerSize + length, nil
}
