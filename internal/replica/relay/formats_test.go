package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
)

// What a node says of a client that it passes on, and the leader's answer, are what the files have, and
// a node of another release is understood.
func TestFormsOfAClientThatIsPassedOn(t *testing.T) {
	t.Parallel()
	onTheWire := goldenfile.Exchanged("give the new form another magic (package replica/clients), take connections that begin with either, and begin them with the former one until the cluster has a format level, which you raise (internal/replica/members/level.go), that says that all nodes know the other")
	want := proxy.Header{Client: netip.MustParseAddrPort("192.0.2.7:50000"), Listener: 2}
	for name, serves := range map[string]bool{"client that is taken": true, "client that is not taken": false} {
		// The leader,
		here, there := net.Pipe()
		defer here.Close()
		r := New(Options{Dial: func(context.Context, string) (net.Conn, error) { return here, nil }})
		defer r.Close()
		type connected struct {
			conn net.Conn
			err  error
		}
		dialed := make(chan connected, 1)
		go func() {
			conn, err := r.connect(t.Context(), Leader{1, "leader"}, want, time.Now().Add(patience))
			dialed <- connected{conn, err}
		}()
		var written, answer bytes.Buffer
		find := func(h proxy.Header) func() {
			if h != want {
				onTheWire.Differs(t, name+" by the follower", h, want)
			}
			if !serves {
				return nil
			}
			return func() {}
		}
		_ = Receive(struct {
			io.Reader
			io.Writer
		}{io.TeeReader(there, &written), io.MultiWriter(there, &answer)}, find)
		if d := <-dialed; (d.err == nil) != serves {
			t.Fatalf("%s: %v", name, d.err)
		}
		// and both sides by the files.
		ofFollower := onTheWire.Check(t, name+" by the follower", written.Bytes())
		ofLeader := onTheWire.Check(t, name+" by the leader", answer.Bytes())
		if err := Receive(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(ofFollower), io.Discard}, find); (err == nil) != serves {
			onTheWire.Differs(t, name+" by the follower", err, nil)
		}
		r.o.Dial = func(context.Context, string) (net.Conn, error) { return answers{here, bytes.NewReader(ofLeader)}, nil }
		if _, err := r.connect(t.Context(), Leader{1, "leader"}, want, time.Now().Add(patience)); (err == nil) != serves || err != nil && !errors.Is(err, ErrNotTaken) {
			onTheWire.Differs(t, name+" by the leader", err, nil)
		}
	}
}

// answers is a connection from which an answer comes, and to which anything may be written.
type answers struct {
	net.Conn
	io.Reader
}

func (a answers) Read(b []byte) (int, error)  { return a.Reader.Read(b) }
func (a answers) Write(b []byte) (int, error) { return len(b), nil }
