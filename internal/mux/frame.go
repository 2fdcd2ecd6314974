package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Version is that of the protocol. Both sides must have the same.
const Version = 2

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

// What the side that takes a link answers to its version.
const (
	taken   = '+'
	refused = '-'
)

// ErrRefused: the other side takes no streams at the moment.
var ErrRefused = errors.New("mux: the other side takes no streams at the moment")

// helloTimeout is how long the other side may take for its part of the greeting.
const helloTimeout = 5 * time.Second

// Greet begins a link on the side that has made the connection. It fails with ErrRefused if the
// other side takes no streams.
func Greet(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	var answer [2]byte
	if _, err := conn.Write([]byte{Version}); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	switch {
	case answer[0] != Version:
		return fmt.Errorf("mux: the other side speaks version %d of the protocol between fronts and nodes, and this program version %d: run the same release on both", answer[0], Version)
	case answer[1] != taken:
		return ErrRefused
	}
	return conn.SetDeadline(time.Time{})
}

// Welcome answers a Greet. take says whether this side takes streams.
func Welcome(conn net.Conn, take bool) error {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	var version [1]byte
	if _, err := io.ReadFull(conn, version[:]); err != nil {
		return err
	}
	answer := [2]byte{Version, taken}
	if !take || version[0] != Version {
		answer[1] = refused
	}
	if _, err := conn.Write(answer[:]); err != nil {
		return err
	}
	switch {
	case version[0] != Version:
		return fmt.Errorf("mux: the other side speaks version %d of the protocol between fronts and nodes, and this program version %d: run the same release on both", version[0], Version)
	case !take:
		return ErrRefused
	}
	return conn.SetDeadline(time.Time{})
}
