package sockets

import (
	"net"
	"strings"
	"testing"
)

// localhost is the loopback address, whatever the machine's names are.
func TestListen(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"localhost:0", "LOCALHOST:0", "127.0.0.1:0"} {
		l, err := Listen(address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if a := l.Addr().(*net.TCPAddr); !a.IP.IsLoopback() {
			t.Errorf("%s: it listens on %v", address, a)
		}
		if _, err := Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "ss -ltnp") {
			t.Errorf("an address in use: %v", err)
		}
	}
}
