package mux

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// # Versions of the protocol
//
// A version stands for the frames, and for what the payload of OPEN says (package fronts). A
// program speaks the versions from Own.Lowest to Own.Highest. The side that has made the
// connection sends its highest one (1 byte), and the other side answers with the version of this
// link (1 byte), which is the lower one of the two highest, and whether it takes streams (1 byte).
// If that version is lower than its lowest one it refuses, and answers with its lowest.
//
// A change that a program of before does not understand needs a new version, in newest.go; on a
// link of a lower version the program does as that says. The lowest one rises at the earliest one
// release after the highest: so fronts and nodes of two successive releases work together.

// Versions are those that a program speaks.
type Versions struct{ Lowest, Highest int }

// Own are those of this program.
var Own = Versions{2, highest}

func (v Versions) String() string {
	if v.Lowest == v.Highest {
		return fmt.Sprintf("version %d", v.Lowest)
	}
	return fmt.Sprintf("versions %d to %d", v.Lowest, v.Highest)
}

// What the side that takes a link answers to its version.
const (
	taken   = '+'
	refused = '-'
)

var (
	// ErrRefused: the other side takes no streams at the moment.
	ErrRefused = errors.New("mux: the other side takes no streams at the moment")
	// ErrVersion: the two programs speak no version both.
	ErrVersion = errors.New("front and node speak different versions of the protocol between them")
)

// helloTimeout is how long the other side may take for its part of the greeting.
const helloTimeout = 5 * time.Second

// Greet begins a link on the side that has made the connection, the front. It gives the version of the
// link. It fails with ErrRefused if the other side takes no streams, and with ErrVersion.
func (v Versions) Greet(conn net.Conn) (version int, err error) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	var answer [2]byte
	if _, err := conn.Write([]byte{byte(v.Highest)}); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return 0, err
	}
	switch version = int(answer[0]); {
	case version < v.Lowest:
		return 0, fmt.Errorf("%w: the node up to version %d, and this front %v: upgrade the node first, or run the release of the nodes here", ErrVersion, version, v)
	case version > v.Highest:
		return 0, fmt.Errorf("%w: the node from version %d on, and this front %v: run the release of the nodes here", ErrVersion, version, v)
	case answer[1] != taken:
		return 0, ErrRefused
	}
	return version, conn.SetDeadline(time.Time{})
}

// Welcome answers a Greet. take says whether this side, the node, takes streams.
func (v Versions) Welcome(conn net.Conn, take bool) (version int, err error) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	var theirs [1]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return 0, err
	}
	version = min(int(theirs[0]), v.Highest)
	answer := [2]byte{byte(max(version, v.Lowest)), taken}
	if !take || version < v.Lowest {
		answer[1] = refused
	}
	if _, err := conn.Write(answer[:]); err != nil {
		return 0, err
	}
	switch {
	case version < v.Lowest:
		return 0, fmt.Errorf("%w: the front up to version %d, and this node %v: run the release of the nodes on the front's machine", ErrVersion, version, v)
	case !take:
		return 0, ErrRefused
	}
	return version, conn.SetDeadline(time.Time{})
}
