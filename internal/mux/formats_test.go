package mux

import (
	"bytes"
	"encoding/binary"
	"net"
	"reflect"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// The lowest version of the protocol between fronts and nodes has the frames of the file, as a program of
// another release sends them, and the greeting.
func TestFormsOfTheLowestVersion(t *testing.T) {
	t.Parallel()
	onTheWire := goldenfile.Exchanged("give the protocol another version (newest.go; greet.go says how), and do as the file says on a link of the former one")
	all := []frame{
		{kindOpen, 7, []byte("about the client")}, {kindTake, 7, nil}, {kindData, 7, []byte("bytes of a client")},
		{kindCredit, 7, binary.BigEndian.AppendUint32(nil, Window)}, {kindClose, 7, []byte("why")}, {kindClose, 8, nil}, {kindPing, 0, nil}, {kindLeave, 0, nil},
	}
	var written []byte
	for _, f := range all {
		written = appendFrame(written, f.kind, f.stream, f.payload)
	}
	b := onTheWire.Check(t, "frames", written)
	for _, want := range all {
		got, n, err := split(b)
		if len(got.payload) == 0 {
			got.payload = nil
		}
		if err != nil || n == 0 || !reflect.DeepEqual(got, want) {
			onTheWire.Differs(t, "frames", []any{got, err}, want)
			break
		}
		b = b[n:]
	}

	version := Versions{Own.Lowest, Own.Lowest}
	for name, takes := range map[string]bool{"greeting": true, "greeting of a node that takes nothing": false} {
		near, far := net.Pipe()
		front := &tapped{Conn: near}
		node := &tapped{Conn: far}
		greeted := make(chan struct{})
		go func() { _, _ = version.Greet(front); close(greeted) }()
		_, _ = version.Welcome(node, takes)
		<-greeted
		onTheWire.Check(t, name, append(front.written.Bytes(), node.written.Bytes()...))
		near.Close()
		far.Close()
	}
}

// tapped is a connection that notes what is written to it. One goroutine writes.
type tapped struct {
	net.Conn
	written bytes.Buffer
}

func (c *tapped) Write(p []byte) (int, error) {
	c.written.Write(p)
	return c.Conn.Write(p)
}
