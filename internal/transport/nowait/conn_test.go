//go:build unix

package nowait

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// All bytes arrive, also those that the socket does not take at once, and so does the end.
func TestConnCarriesEverything(t *testing.T) {
	t.Parallel()
	here, there, _ := pair(t)
	c := Conn(here)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 16<<20/16) // more than sockets hold
	wrote := make(chan error, 1)
	go func() {
		n, err := c.Write(sent)
		if n != len(sent) {
			err = errors.Join(err, io.ErrShortWrite)
		}
		wrote <- errors.Join(err, here.CloseWrite())
	}()
	got, err := io.ReadAll(there)
	if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d of %d bytes, %v", len(got), len(sent), err)
	}
	go func() { _, _ = there.Write(sent); _ = there.CloseWrite() }()
	if got, err = io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("the other way: %d of %d bytes, %v", len(got), len(sent), err)
	}
}

// A wait ends with the deadline, and when the connection is closed. Nothing to read or to write is
// no reason to wait, and not the end.
func TestConnWaits(t *testing.T) {
	t.Parallel()
	here, there, _ := pair(t)
	c := Conn(here)
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}
	if n, err := c.Write(nil); n != 0 || err != nil {
		t.Errorf("writing nothing: %d, %v", n, err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading until a deadline: %v", err)
	}
	if n, err := c.Write(make([]byte, 16<<20)); n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writing until a deadline: %d, %v", n, err)
	}
	_ = c.SetDeadline(time.Time{})
	read := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	_ = c.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading while it is closed: %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing to a closed one: %v", err)
	}
	there.Close()
}

// Code that looks for the socket of a connection (sockets.Raw) finds it.
func TestConnHasItsSocket(t *testing.T) {
	t.Parallel()
	here, there, _ := pair(t)
	c := Conn(here)
	if sockets.Gone(c) {
		t.Error("the peer is said to have gone")
	}
	there.Close()
	for end := time.Now().Add(time.Minute); !sockets.Gone(c); {
		if time.Now().After(end) {
			t.Fatal("the peer has gone, and that is not seen")
		}
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	if Conn(ours) != ours {
		t.Error("a connection without a descriptor is wrapped")
	}
}
