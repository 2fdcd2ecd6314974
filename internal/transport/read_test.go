package transport

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// A reader that treats the stream as packets of given lengths, as the broker
// does, gets every packet whole, whatever chunks it comes in.
func TestFillAssemblesPackets(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		for _, chunk := range []int{1, 7, 1000, 1 << 20} {
			t.Run(fmt.Sprintf("chunks of %d", chunk), func(t *testing.T) {
				nc, client := k.pair(t)
				c := newConn(t, nc, nil, Options{ReadBuffer: 2 << 10})
				lengths := []int{1, 2, 2047, 2048, 2049, 1, 5000, 3, 20_000, 1}
				if chunk > 100 {
					lengths = append(lengths, 2<<20, 10, 100_000)
				}
				total := 0
				for _, n := range lengths {
					total += n
				}
				stream := noise(total)
				go func() {
					for rest := stream; len(rest) > 0; {
						n := min(chunk, len(rest))
						client.Write(rest[:n])
						rest = rest[n:]
					}
				}()
				for _, n := range lengths {
					for len(c.Buffered()) < n {
						if err := c.Fill(n); err != nil {
							t.Fatal(err)
						}
					}
					mustEqual(t, c.Buffered()[:n], stream[:n])
					c.Discard(n)
					stream = stream[n:]
				}
			})
		}
	})
}

// A claimed length reserves nothing: only what has come counts.
func TestFillGrowsByWhatComesNotByWhatIsClaimed(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{ReadBuffer: 4 << 10})
		go client.Write(noise(20_000))
		for len(c.Buffered()) < 20_000 {
			if err := c.Fill(math.MaxInt); err != nil {
				t.Fatal(err)
			}
			if n := len(c.in); n > max(4<<10, 2*20_000) {
				t.Fatalf("%d bytes are reserved for %d", n, len(c.Buffered()))
			}
		}
	})
}

func TestIdleReaderHoldsNoBuffer(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		for range 3 {
			go client.Write([]byte("hello"))
			for len(c.Buffered()) < 5 { // as a packet is read
				if err := c.Fill(5); err != nil {
					t.Fatal(err)
				}
			}
			c.Discard(5)
		}
		// A Fill that ends by a deadline has waited, and given its buffer back
		// before it did; on the raw path it is looked at below as it waits.
		nc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if err := c.Fill(0); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Fill = %v, want a deadline", err)
		}
		if c.in != nil {
			t.Errorf("a buffer of %d bytes is held", len(c.in))
		}
	})
}

// The raw path asks with the buffer it has, and gives it back before it waits: all
// of it if nothing is buffered, all but 1 KiB if little is.
func TestReadReadyGivesBackBeforeWaiting(t *testing.T) {
	t.Parallel()
	for _, b := range []struct{ buffered, held int }{{0, 0}, {1, minBuffer}, {parkedInput, minBuffer}, {parkedInput + 1, 16 << 10}} {
		nc, client := tcpPair(t)
		c := newConn(t, nc, nil, Options{})
		want := noise(b.buffered + 3)
		client.Write(want[:b.buffered])
		for len(c.Buffered()) < b.buffered {
			if err := c.Fill(0); err != nil {
				t.Fatal(err)
			}
		}
		c.makeRoom(0)
		err := c.raw.Control(func(fd uintptr) {
			if c.readReady(fd) {
				t.Errorf("%d buffered: read %d, %v; want to wait", b.buffered, c.readN, c.readErr)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.in) != b.held {
			t.Errorf("%d bytes buffered: %d are held while waiting, want %d", b.buffered, len(c.in), b.held)
		}
		client.Write(want[b.buffered:])
		for len(c.Buffered()) < len(want) {
			if err := c.Fill(len(want)); err != nil {
				t.Fatal(err)
			}
		}
		mustEqual(t, c.Buffered(), want)
	}
}

// Many connections read at once from the same pools: each sees its own bytes, and
// the views of one Fill stay until the next.
func TestReadBuffersAreNotShared(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for i := range 20 {
		nc, client := kinds[i%2].pair(t)
		c := newConn(t, nc, nil, Options{ReadBuffer: 1 << 10})
		mark := byte(i + 1)
		const total = 50_000
		wg.Go(func() {
			for n := 0; n < total; {
				chunk := min(1+rand.IntN(3000), total-n)
				client.Write(bytes.Repeat([]byte{mark}, chunk))
				n += chunk
			}
		})
		wg.Go(func() {
			for n := 0; n < total; {
				if err := c.Fill(rand.IntN(5000)); err != nil {
					t.Error(err)
					return
				}
				view := c.Buffered()
				if bytes.Count(view, []byte{mark}) != len(view) {
					t.Errorf("connection %d reads bytes of another connection", i)
					return
				}
				discard := 1 + rand.IntN(len(view))
				c.Discard(discard)
				n += discard
				n += drainBuffered(c, total-n)
			}
		})
	}
	wg.Wait()
}

// drainBuffered discards the rest if the stream has ended.
func drainBuffered(c *Conn, left int) int {
	if len(c.Buffered()) != left {
		return 0
	}
	c.Discard(left)
	return left
}

func TestDiscardOfTooMuchPanics(t *testing.T) {
	t.Parallel()
	nc, _ := tcpPair(t)
	c := newConn(t, nc, nil, Options{})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	c.Discard(1)
}

// embeddedConn is a TCP connection with a Read of its own.
type embeddedConn struct{ *net.TCPConn }

func (embeddedConn) Read(p []byte) (int, error) { return copy(p, "from Read"), nil }

func TestConnThatEmbedsATCPConnIsNotBypassed(t *testing.T) {
	t.Parallel()
	nc, _ := tcpPair(t)
	c := newConn(t, embeddedConn{nc.(*net.TCPConn)}, nil, Options{})
	if got := receive(t, c, 9)[0]; got != 'f' {
		t.Errorf("got %q", got)
	}
}

// Interrupt ends the reader's waiting, on every kind of connection.
func TestInterruptEndsWaiting(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		go client.Write([]byte("hello"))
		mustEqual(t, receive(t, c, 5), []byte("hello"))
		waited := make(chan error, 1)
		go func() { waited <- c.Fill(0) }()
		c.Interrupt()
		within(t, "the reader", func() {
			if err := <-waited; !errors.Is(err, ErrInterrupted) {
				t.Errorf("Fill = %v, want ErrInterrupted", err)
			}
		})
		c.Close()
		if err := c.Fill(0); !errors.Is(err, ErrClosed) {
			t.Errorf("Fill after Close = %v", err)
		}
	})
}

// After Interrupt the reader still gets all that the peer had sent before.
func TestInterruptLeavesNothingUnread(t *testing.T) {
	t.Parallel()
	nc, client := tcpPair(t)
	c := newConn(t, nc, nil, Options{ReadBuffer: 2 << 10})
	sent := noise(50_000)
	if _, err := client.Write(sent); err != nil {
		t.Fatal(err)
	}
	c.Interrupt()
	var got []byte
	for {
		if err := c.Fill(0); errors.Is(err, ErrInterrupted) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Buffered()...)
		c.Discard(len(c.Buffered()))
	}
	mustEqual(t, got, sent)
}

// One system call reads a bounded part of what has come, so that the reader can let others
// work between two.
func TestOneReadIsBounded(t *testing.T) {
	t.Parallel()
	nc, client := tcpPair(t)
	c := newConn(t, nc, nil, Options{})
	packet := noise(3 << 20)
	go client.Write(packet)
	for before := 0; before < len(packet); {
		if err := c.Fill(len(packet)); err != nil {
			t.Fatal(err)
		}
		now := len(c.Buffered())
		if now-before > maxRead {
			t.Fatalf("one Fill read %d bytes, more than %d", now-before, maxRead)
		}
		before = now
	}
	mustEqual(t, c.Buffered(), packet)
}

// What the peer had sent before it closed a plain connection counts as long as it is unread.
// Of the others only the socket below is looked at: what is unread there may be the farewell
// of the protocol.
func TestPeerGone(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		if k.name == "pipe" {
			t.Skip("no socket below it")
		}
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		if c.PeerGone() {
			t.Error("the peer is gone from the beginning")
		}
		if _, err := client.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		kill(client)
		eventually(t, "the end of the peer has arrived", func() bool { return sockets.Gone(nc) })
		plain := k.name == "tcp" || k.name == "unix"
		if gone := c.PeerGone(); gone == plain {
			t.Errorf("with bytes unread the peer is gone: %v", gone)
		}
		mustEqual(t, receive(t, c, 5), []byte("hello"))
		if !c.PeerGone() {
			t.Error("the peer is not gone")
		}
	})
}
