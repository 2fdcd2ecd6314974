package snapshot

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"
)

type kind byte

const (
	kindOffer kind = iota + 1
	kindAnswer
	kindHeader
	kindKeep
	kindChunk
	kindEnd
)

const (
	frameHeader    = 9
	chunkBytes     = 256 << 10
	maxHeaderBytes = 16 << 20
	maxOfferBytes  = 1 << 10
)

// ErrRefused: the other node does not take the snapshot now.
var ErrRefused = errors.New("the other node refuses the snapshot")

// link is a connection on which frames are exchanged.
type link struct {
	net.Conn
	r        *bufio.Reader
	b        []byte
	patience time.Duration
	stranger bool // the other side has not been accepted: what it announces has a bound of its own
}

func newLink(conn net.Conn, patience time.Duration) *link {
	return &link{Conn: conn, r: bufio.NewReader(conn), patience: patience}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (l *link) write(k kind, content []byte) error {
	var header [frameHeader]byte
	binary.LittleEndian.PutUint32(header[4:], uint32(len(content))) // at most maxHeaderBytes
	header[8] = byte(k)
	binary.LittleEndian.PutUint32(header[:], crc32.Update(crc32.Checksum(header[4:], castagnoli), castagnoli, content))
	_ = l.SetWriteDeadline(time.Now().Add(l.patience))
	_, err := (&net.Buffers{header[:], content}).WriteTo(l.Conn)
	return err
}

// read reads a frame, whose content is valid until the next call.
func (l *link) read() (k kind, content []byte, err error) {
	_ = l.SetReadDeadline(time.Now().Add(l.patience))
	var header [frameHeader]byte
	if _, err := io.ReadFull(l.r, header[:]); err != nil {
		return 0, nil, err
	}
	k, length := kind(header[8]), binary.LittleEndian.Uint32(header[4:])
	most := uint32(chunkBytes)
	switch {
	case l.stranger:
		most = maxOfferBytes
	case k == kindHeader || k == kindAnswer:
		most = maxHeaderBytes
	}
	if length > most {
		return 0, nil, fmt.Errorf("a frame of %d bytes is announced, and %d are allowed", length, most)
	}
	if cap(l.b) < int(length) {
		l.b = make([]byte, length)
	}
	content = l.b[:length]
	if _, err := io.ReadFull(l.r, content); err != nil {
		return 0, nil, err
	}
	if crc32.Update(crc32.Checksum(header[4:], castagnoli), castagnoli, content) != binary.LittleEndian.Uint32(header[:]) {
		return 0, nil, errors.New("a frame does not match its checksum")
	}
	return k, content, nil
}

func (l *link) writeJSON(k kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxHeaderBytes {
		return fmt.Errorf("%d bytes about the files, and %d are allowed", len(b), maxHeaderBytes)
	}
	return l.write(k, b)
}

func (l *link) readJSON(want kind, v any) error {
	k, b, err := l.read()
	if err != nil {
		return err
	}
	if k != want {
		return fmt.Errorf("a frame of kind %d, and one of kind %d comes here", k, want)
	}
	return json.Unmarshal(b, v)
}

// answer is what the receiver says.
type answer struct {
	Refused string    `json:"refused,omitempty"` // why; empty: it goes on
	Sums    []SumKind `json:"sums,omitempty"`    // of the first answer: the kinds besides SHA256 that it knows
	Have    []File    `json:"have,omitempty"`
}

func (l *link) await() (a answer, err error) {
	if err := l.readJSON(kindAnswer, &a); err != nil {
		return a, err
	}
	if a.Refused != "" {
		return a, fmt.Errorf("%w: %s", ErrRefused, a.Refused)
	}
	return a, nil
}

// Offer is who sends a snapshot to which node, of which cluster.
type Offer struct {
	Cluster uint64 `json:"cluster"`
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`
}

// File is a file of a database.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`          // bytes
	Sum  []byte `json:"sum,omitempty"` // of the kind that the header says
}

// Header is what is sent.
type Header struct {
	Index   uint64 `json:"index"` // the last entry that the database has
	Term    uint64 `json:"term"`  // of that entry
	Message []byte `json:"message"`
	Files   []File `json:"files"` // without sums
	// Sums is one of the kinds that the receiver knows; Send sets it.
	Sums SumKind `json:"sums,omitempty"`
}

// Bytes is how much the files are.
func (h *Header) Bytes() (n int64) {
	for _, f := range h.Files {
		n += f.Size
	}
	return n
}
