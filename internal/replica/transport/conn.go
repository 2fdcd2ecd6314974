package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
)

const (
	magic     = "holdfast nodes 2" // package port reads it
	helloSize = 30
	// MaxMessageBytes bounds a message on the wire: one entry, and what is around it.
	MaxMessageBytes = 1<<30 + 1<<20
	// firstBytes is how much of a message is given memory before it arrives.
	firstBytes  = 1 << 20
	bufferBytes = 64 << 10
)

// hello is what a connection begins with, behind magic.
type hello struct {
	cluster, from, to uint64
	level             uint32 // Options.Level
	address           string // of the node that connects, at most maxAddress bytes
}

const maxAddress = 1 << 10

func appendHello(dst []byte, h hello) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, h.cluster)
	dst = binary.LittleEndian.AppendUint64(dst, h.from)
	dst = binary.LittleEndian.AppendUint64(dst, h.to)
	dst = binary.LittleEndian.AppendUint32(dst, h.level)
	address := h.address[:min(len(h.address), maxAddress)]
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(address)))
	return append(dst, address...)
}

func readHello(r io.Reader) (h hello, err error) {
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, fmt.Errorf("it did not say which node it is: %w", err)
	}
	h = hello{
		cluster: binary.LittleEndian.Uint64(b), from: binary.LittleEndian.Uint64(b[8:]), to: binary.LittleEndian.Uint64(b[16:]),
		level: binary.LittleEndian.Uint32(b[24:]),
	}
	size := binary.LittleEndian.Uint16(b[28:])
	if size > maxAddress {
		return h, fmt.Errorf("its address has %d bytes, and %d are allowed", size, maxAddress)
	}
	address := make([]byte, size)
	if _, err := io.ReadFull(r, address); err != nil {
		return h, fmt.Errorf("it did not say where it is reached: %w", err)
	}
	h.address = string(address)
	return h, nil
}

// sendAll sends what is queued for a node until the connection breaks.
func (t *Transport) sendAll(p *peer, conn net.Conn) error {
	broken := make(chan struct{})
	t.running.Go(func() { // the other node sends nothing, so this ends with the connection
		defer failstop.End(t.o.Logger, "the watcher of a connection to a node")
		defer close(broken)
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	})
	stop := context.AfterFunc(p.gone, func() { _ = conn.Close() })
	defer stop()
	w := bufio.NewWriterSize(conn, bufferBytes)
	var b []byte
	unflushed := 0
	p.out.open(conn)
	defer func() {
		p.out.close()
		p.out.written(unflushed)
	}()
	for {
		select {
		case <-broken:
			return errors.New("the node has closed the connection")
		case q := <-p.queue:
			unflushed++
			p.bytes.Add(-dataOf(q.message))
			var err error
			if b, err = q.appendTo(b[:0], &p.out); err != nil {
				t.lose(p.id)
				return err
			}
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			_, err = w.Write(b)
			if err == nil && len(p.queue) == 0 {
				err = w.Flush()
				_ = conn.SetWriteDeadline(time.Time{})
				p.out.written(unflushed)
				unflushed = 0
			}
			if err != nil {
				t.lose(p.id)
				return err
			}
			if q.message != nil {
				t.sent.Add(1)
			}
			if cap(b) > firstBytes {
				b = nil
			}
		}
	}
}

// appendMessage appends a message with its length.
func appendMessage(dst []byte, m *raftpb.Message) ([]byte, error) {
	at := len(dst)
	dst, err := proto.MarshalOptions{}.MarshalAppend(append(dst, 0, 0, 0, 0), m)
	if err != nil {
		return nil, err
	}
	size := len(dst) - at - 4
	if size > MaxMessageBytes {
		return nil, fmt.Errorf("a message has %d bytes, and %d are allowed", size, MaxMessageBytes)
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(size))
	return dst, nil
}

// take takes a connection that another node has made.
func (t *Transport) take(conn net.Conn) {
	stop := context.AfterFunc(t.ending, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	if err := t.receive(conn); err != nil && t.ending.Err() == nil {
		t.o.Logger.Warn("a connection of another node was closed", "address", conn.RemoteAddr().String(), "error", err)
	}
}

// receive passes on what a node sends. nil: the node has closed the connection.
func (t *Transport) receive(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	stranger := t.strangers.Begin(conn)
	h, err := readHello(conn)
	stranger.End()
	if err != nil {
		return err
	}
	left, err := t.knows(h)
	if err != nil {
		return err
	}
	defer left()
	select {
	case t.open <- struct{}{}:
		defer func() { <-t.open }()
	default:
		return fmt.Errorf("there are %d connections of nodes, as many as there may be", maxConnections)
	}
	if p := t.peer(h.from); p != nil {
		stop := context.AfterFunc(p.gone, func() { _ = conn.Close() })
		defer stop()
	}
	_ = conn.SetDeadline(time.Time{})
	r := reader{Reader: bufio.NewReaderSize(conn, bufferBytes)}
	for {
		m, err := r.message()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.GetFrom() != h.from || m.GetTo() != t.o.ID {
			return fmt.Errorf("node %x sends a message from node %x to node %x", h.from, m.GetFrom(), m.GetTo())
		}
		t.received.Add(1)
		t.o.Receive(m)
	}
}

// knows says why a node is none of this cluster; nil: it is one, and left is called when its connection has ended.
func (t *Transport) knows(h hello) (left func(), err error) {
	switch {
	case h.cluster != t.o.Cluster:
		return nil, fmt.Errorf("node %x is of the cluster %x, and this node of %x: is its data directory, or its list of peers, another cluster's?", h.from, h.cluster, t.o.Cluster)
	case h.to != t.o.ID:
		return nil, fmt.Errorf("node %x wants node %x, and this is node %x: are two addresses in its list of peers the same?", h.from, h.to, t.o.ID)
	case h.from == t.o.ID:
		return nil, fmt.Errorf("the other node has this node's ID, %x: was the data directory copied?", h.from)
	case t.o.Admit != nil:
		return t.o.Admit(h.from, h.address, h.level)
	case t.peer(h.from) == nil:
		return nil, fmt.Errorf("node %x is not a member of the cluster", h.from)
	}
	return func() {}, nil
}

// reader reads messages.
type reader struct {
	*bufio.Reader
	length [4]byte
	buffer []byte // of the last message, if it has at most firstBytes
}

// message reads a message; io.EOF: there are no more.
func (r *reader) message() (*raftpb.Message, error) {
	b, err := r.read()
	if err != nil {
		return nil, err
	}
	m := &raftpb.Message{}
	if err := proto.Unmarshal(b, m); err != nil { // it copies what it keeps
		return nil, fmt.Errorf("a message is not one: %w", err)
	}
	return m, nil
}

// read reads the bytes of a message, which are valid until the next call.
func (r *reader) read() ([]byte, error) {
	if _, err := io.ReadFull(r, r.length[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(r.length[:])
	if size > MaxMessageBytes {
		return nil, fmt.Errorf("a message of %d bytes is announced, and %d are allowed", size, MaxMessageBytes)
	}
	if size <= firstBytes {
		r.buffer = slices.Grow(r.buffer[:0], int(size))[:size]
		_, err := io.ReadFull(r, r.buffer)
		return r.buffer, cutOff(err)
	}
	b := make([]byte, 0, firstBytes)
	for len(b) < int(size) {
		n := min(int(size)-len(b), max(len(b), firstBytes))
		b = append(b, make([]byte, n)...)
		if _, err := io.ReadFull(r, b[len(b)-n:]); err != nil {
			return nil, cutOff(err)
		}
	}
	return b, nil
}

// cutOff says that a message has ended too early; nil: it has not.
func cutOff(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("a message was cut off: %w", err)
}
