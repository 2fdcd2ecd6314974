package netns

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// patience bounds what must happen, and glance what must not.
const (
	patience = time.Minute
	glance   = 300 * time.Millisecond
)

// network makes a network, or skips the test.
func network(t *testing.T, hosts int) *Network {
	t.Helper()
	if err := Unavailable(); err != nil {
		t.Skipf("this test needs network namespaces: %v", err)
	}
	n, err := New(hosts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, n.Close()) })
	return n
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// echo is a connection from a host to one that sends everything back.
func echo(t *testing.T, from, to *Host) net.Conn {
	t.Helper()
	var l net.Listener
	check(t, in(to.namespace, func() (err error) {
		l, err = net.Listen("tcp", to.Address+":0")
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := from.Dial(ctx, l.Addr().String())
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// comesBack says whether a byte comes back in time.
func comesBack(t *testing.T, c net.Conn, b byte, in time.Duration) bool {
	t.Helper()
	_, err := c.Write([]byte{b})
	check(t, err)
	check(t, c.SetReadDeadline(time.Now().Add(in)))
	return read(t, c, b)
}

func read(t *testing.T, c net.Conn, b byte) bool {
	t.Helper()
	var got [1]byte
	_, err := io.ReadFull(c, got[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	check(t, err)
	if got[0] != b {
		t.Fatalf("%q came, want %q", got[0], b)
	}
	return true
}

// Each way to cut a link loses what is sent meanwhile, which comes when the link is mended.
func TestLinksAreCutAndMended(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		cut  func(n *Network, a, b *Host) error
	}{
		{"there", func(n *Network, a, b *Host) error { return n.Cut(a, b) }},
		{"back", func(n *Network, a, b *Host) error { return n.Cut(b, a) }},
		{"both ways", func(n *Network, a, b *Host) error { return n.Part([]*Host{a}, []*Host{b}) }},
		{"without a carrier", func(_ *Network, a, _ *Host) error { return a.Unplug() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := network(t, 2)
			a, b := n.Hosts()[0], n.Hosts()[1]
			c := echo(t, a, b)
			if !comesBack(t, c, '1', patience) {
				t.Fatal("hosts of a new network do not reach each other")
			}
			check(t, test.cut(n, a, b))
			if comesBack(t, c, '2', glance) {
				t.Fatal("the link is not cut")
			}
			check(t, n.Heal())
			check(t, c.SetReadDeadline(time.Now().Add(patience)))
			if !read(t, c, '2') || !comesBack(t, c, '3', patience) {
				t.Error("the link is not mended")
			}
		})
	}
}

// A cut between two hosts leaves a third one alone, and a host always reaches itself.
func TestACutConcernsTwoHosts(t *testing.T) {
	t.Parallel()
	n := network(t, 3)
	a, b, c := n.Hosts()[0], n.Hosts()[1], n.Hosts()[2]
	ac, bc, aa := echo(t, a, c), echo(t, b, c), echo(t, a, a)
	check(t, n.Part([]*Host{a}, []*Host{b}))
	if !comesBack(t, ac, 'x', patience) || !comesBack(t, bc, 'x', patience) {
		t.Error("a host that was not cut off is not reached")
	}
	check(t, a.Unplug())
	if !comesBack(t, aa, 'x', patience) {
		t.Error("a host without a carrier does not reach itself")
	}
	if comesBack(t, ac, 'y', glance) {
		t.Error("a host without a carrier reaches another one")
	}
}

// What is sent over a slow link comes, and over one that is fast again.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	n := network(t, 2)
	c := echo(t, n.Hosts()[0], n.Hosts()[1])
	for _, bits := range []int{1_000_000, 0} {
		check(t, n.Hosts()[0].Slow(bits, 200*time.Millisecond))
		const size = 100_000
		go func() { _, _ = c.Write(make([]byte, size)) }()
		check(t, c.SetReadDeadline(time.Now().Add(patience)))
		if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
			t.Errorf("%d bit/s: %v", bits, err)
		}
	}
}

// Two networks with the same addresses are apart.
func TestNetworksAreApart(t *testing.T) {
	t.Parallel()
	one, other := network(t, 1), network(t, 1)
	c := echo(t, other.Hosts()[0], other.Hosts()[0])
	check(t, one.Close())
	if !comesBack(t, c, 'x', patience) {
		t.Error("the end of a network ends another one")
	}
}

func TestSizeOfANetwork(t *testing.T) {
	t.Parallel()
	for _, hosts := range []int{0, MaxHosts + 1} {
		if n, err := New(hosts); err == nil {
			_ = n.Close()
			t.Errorf("a network of %d hosts is made", hosts)
		}
	}
}
