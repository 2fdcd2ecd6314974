package snapshot

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

var onTheWire = goldenfile.Exchanged("give the new form another magic (snapshots.go of package node), take connections that begin with either, and begin them with the former one until the cluster has a format level, which you raise (internal/replica/members/level.go), that says that all nodes know the other")

// tapped is a connection that notes what is written to it.
type tapped struct {
	net.Conn
	mu      sync.Mutex
	written bytes.Buffer // guarded by mu
}

func (c *tapped) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.written.Write(p)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// played is a connection from which the bytes of a file come, and to which anything may be written.
type played struct {
	net.Conn
	io.Reader
}

func (p played) Read(b []byte) (int, error)  { return p.Reader.Read(b) }
func (p played) Write(b []byte) (int, error) { return len(b), nil }

// receivingInto is a receiver that has two files of an attempt before, one of which has changed since.
func receivingInto(t *testing.T, sent database, refuse error) (Receiving, *Offer, *Header) {
	t.Helper()
	to, offered, passed := vfs.NewMem(), &Offer{}, &Header{}
	database{"000010.sst": sent["000010.sst"], "000011.sst": "it had changed"}.write(t, to, "/node/snapshot")
	return Receiving{
		FS: to, Dir: "/node/snapshot", Accept: func(o Offer) error { *offered = o; return nil }, Room: func(int64) error { return refuse },
		Received: func(int64) {}, Pass: func(h Header) error { *passed = h; return nil },
	}, offered, passed
}

// What sender and receiver of a snapshot write is what the files have, also when the receiver has some of it
// already or refuses. Each of them understands the bytes of the other's file.
func TestFormsOnTheWire(t *testing.T) {
	t.Parallel()
	sent := database{"000010.sst": "it is there already", "000011.sst": "it has changed", "000012.sst": "", "MANIFEST-000001": "manifest", "marker.manifest.000001.MANIFEST-000001": ""}
	offer, header := Offer{Cluster: 0xc0ffee, From: 0xa1, To: 0xb2}, Header{Index: 70_003, Term: 7, Message: []byte("message")}
	sending := func(fsys vfs.FS) Sending {
		return Sending{FS: fsys, Offer: offer, Make: func() (string, Header, error) { return "/copy", header, nil }}
	}
	no := errors.New("there is no room")
	for _, test := range []struct {
		name   string
		refuse error
	}{{"snapshot", nil}, {"refused snapshot", no}} {
		// Each side's bytes are those of the file,
		from := vfs.NewMem()
		sent.write(t, from, "/copy")
		near, far := net.Pipe()
		s, r := &tapped{Conn: near}, &tapped{Conn: far}
		ended := make(chan error)
		go func() { ended <- Send(t.Context(), s, sending(from)) }()
		receive, _, _ := receivingInto(t, sent, test.refuse)
		received := Receive(r, receive)
		if err := <-ended; test.refuse == nil && err != nil || test.refuse != nil && !errors.Is(err, ErrRefused) {
			t.Fatalf("%s: sent: %v", test.name, err)
		}
		if !errors.Is(received, test.refuse) {
			t.Fatalf("%s: received: %v", test.name, received)
		}
		near.Close()
		far.Close()
		ofSender := onTheWire.Check(t, test.name+" by the sender", s.written.Bytes())
		ofReceiver := onTheWire.Check(t, test.name+" by the receiver", r.written.Bytes())

		// and each side understands the other's file.
		quiet, other := net.Pipe()
		defer quiet.Close()
		defer other.Close()
		receive, offered, passed := receivingInto(t, sent, test.refuse)
		if err := Receive(played{quiet, bytes.NewReader(ofSender)}, receive); !errors.Is(err, test.refuse) || *offered != offer {
			onTheWire.Differs(t, test.name+" by the sender", []any{err, *offered}, []any{test.refuse, offer})
		}
		if test.refuse == nil && (passed.Index != header.Index || passed.Term != header.Term || string(passed.Message) != "message" || !read(t, receive.FS, "/node/snapshot").equals(sent)) {
			onTheWire.Differs(t, test.name+" by the sender", []any{passed, read(t, receive.FS, "/node/snapshot")}, []any{header, sent})
		}
		if err := Send(t.Context(), played{quiet, bytes.NewReader(ofReceiver)}, sending(from)); test.refuse == nil && err != nil || test.refuse != nil && !errors.Is(err, ErrRefused) {
			onTheWire.Differs(t, test.name+" by the receiver", err, test.refuse)
		}
	}

	// A program that knows SHA-256 only is sent what it knows, and understood.
	const former = "snapshot with SHA-256"
	from := vfs.NewMem()
	sent.write(t, from, "/copy")
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	s := &tapped{Conn: played{here, bytes.NewReader(goldenfile.Read(t, former+" by the receiver"))}}
	if err := Send(t.Context(), s, sending(from)); err != nil {
		onTheWire.Differs(t, former+" by the receiver", err, nil)
	}
	ofSender := onTheWire.Check(t, former+" by the sender", s.written.Bytes())
	receive, _, _ := receivingInto(t, sent, nil)
	if err := Receive(played{here, bytes.NewReader(ofSender)}, receive); err != nil || !read(t, receive.FS, "/node/snapshot").equals(sent) {
		onTheWire.Differs(t, former+" by the sender", err, nil)
	}
}
