//go:build !race

package server

import (
	"bytes"
	"fmt"
	"testing"
)

// A GET of a key that is on disk costs no allocation, from the socket and back,
// whether or not responses must be kept until the client has them.
func TestGetAllocatesNothing(t *testing.T) {
	s := startBench(t)
	for _, persistent := range []bool{false, true} {
		w := dialWire(t, s, fmt.Sprint("client-", persistent), persistent)
		id := fmt.Sprint("client-", persistent)
		value := string(bytes.Repeat([]byte("v"), 64))
		w.window(request(nil, id, 1, stamp(), "SET", "key", value), 1)
		get := request(nil, id, 1, "", "GET", "key")
		var got []byte
		if n := testing.AllocsPerRun(2000, func() { got = w.window(get, 1) }); n != 0 {
			t.Errorf("persistent session %v: %v allocations for a GET, want 0", persistent, n)
		}
		if want := "$64\r\n" + value + "\r\n"; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
