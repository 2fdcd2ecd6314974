//go:build unix

package nowait

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

func pair(t *testing.T) (here, there *net.TCPConn, raw syscall.RawConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	here, there = accepted.(*net.TCPConn), dialed.(*net.TCPConn)
	if raw, err = here.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	_ = here.SetDeadline(time.Now().Add(time.Minute))
	return here, there, raw
}

// What is there is read, nothing yet is no error, and the end of the stream is one.
func TestRead(t *testing.T) {
	t.Parallel()
	_, there, raw := pair(t)
	var got []byte
	waits := 0
	read := func() error {
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			var p [4]byte
			n, again, err := Read(fd, p[:])
			if again {
				waits++
				if n != 0 || err != nil {
					t.Errorf("nothing is there: %d bytes, %v", n, err)
				}
				if waits == 1 {
					go func() { _, _ = io.WriteString(there, "abcdef"); there.CloseWrite() }()
				}
				return false
			}
			got, failed = append(got, p[:n]...), err
			return true
		})
		return errors.Join(err, failed)
	}
	for len(got) < 6 {
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	if err := read(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if string(got) != "abcdef" || waits == 0 {
		t.Errorf("read %q, and waited %d times", got, waits)
	}
}

// A socket takes what it has room for, then nothing, which is no error; without a peer it fails.
func TestWrite(t *testing.T) {
	t.Parallel()
	_, there, raw := pair(t)
	junk := []byte(strings.Repeat("x", 1<<20))
	write := func() (n int, again bool, err error) {
		if e := raw.Control(func(fd uintptr) { n, again, err = Write(fd, junk) }); e != nil {
			t.Fatal(e)
		}
		return n, again, err
	}
	for full := false; !full; {
		n, again, err := write()
		if err != nil || again != (n == 0) {
			t.Fatalf("%d bytes, again %v, %v", n, again, err)
		}
		full = again
	}
	_ = there.SetLinger(0)
	there.Close() // a reset
	end := time.Now().Add(time.Minute)
	for {
		if _, _, err := write(); err != nil {
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("without a peer: %v", err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("writing to a connection that was reset does not fail")
		}
	}
}
