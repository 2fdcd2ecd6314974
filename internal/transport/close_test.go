package transport

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// endings are the ways to end a connection from this side.
var endings = []struct {
	name string
	end  func(c *Conn)
}{
	{"Shut", func(c *Conn) { c.Shut(patience) }},
	{"Shut without grace", func(c *Conn) { c.Shut(0) }},
	{"Close", func(c *Conn) { c.Close() }},
}

func TestEndingUnblocksFill(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		for _, e := range endings {
			t.Run(e.name, func(t *testing.T) {
				nc, client := k.pair(t)
				c := newConn(t, nc, nil, Options{Failed: func(error) { t.Error("failed") }})
				go client.Write([]byte("x"))
				go io.Copy(io.Discard, client)
				receive(t, c, 1)
				blocked := make(chan error, 1)
				go func() { blocked <- c.Fill(0) }()
				e.end(c)
				within(t, "Fill", func() {
					if err := <-blocked; !errors.Is(err, ErrClosed) {
						t.Errorf("Fill = %v, want ErrClosed", err)
					}
				})
				if err := c.Fill(0); !errors.Is(err, ErrClosed) {
					t.Errorf("a later Fill = %v", err)
				}
				c.Shut(time.Second)
				if err := c.Close(); err != nil {
					t.Errorf("a later Close = %v", err)
				}
			})
		}
	})
}

func TestEndingUnblocksWaitOutput(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		for _, e := range endings {
			t.Run(e.name, func(t *testing.T) {
				nc, _ := k.pair(t)
				c := newConn(t, nc, nil, Options{})
				stall(t, c)
				blocked := make(chan error, 1)
				go func() { blocked <- c.WaitOutput(1) }()
				eventually(t, "waiting", c.waiting.Load)
				e.end(c)
				within(t, "WaitOutput", func() {
					if err := <-blocked; !errors.Is(err, ErrClosed) {
						t.Errorf("WaitOutput = %v, want ErrClosed", err)
					}
				})
			})
		}
	})
}

// Shut delivers what was appended before it, to a peer that is slow and still
// sends, and nothing that was appended after it.
func TestShutWritesWhatIsThere(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		want := stall(t, c)
		c.Lock()
		c.Append([]byte("the reason"))
		c.Unlock()
		want = append(want, "the reason"...)
		c.Shut(patience)
		send(c, []byte("too late"))
		c.Lock()
		c.SetOut(append(c.Out(), "too late as well"...))
		c.SetOut(append(c.Out(), noise(5000)...))
		c.Grow(9000)
		c.Unlock()
		c.Flush()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(client, got); err != nil {
			t.Fatal(err)
		}
		mustEqual(t, got, want)
		if n, err := client.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d more bytes, %v", n, err)
		}
		eventually(t, "nothing is held", func() bool {
			c.Lock()
			defer c.Unlock()
			return c.Size() == 0 && c.out == nil && !c.writing
		})
	})
}

// A close with unread input answers with a reset, which can take away what was
// just sent. The reason of a disconnect must arrive.
func TestShutWithUnreadInputIsNoReset(t *testing.T) {
	t.Parallel()
	nc, client := tcpPair(t)
	c := newConn(t, nc, nil, Options{})
	client.Write(noise(100_000))
	if err := c.Fill(0); err != nil { // some of it has come
		t.Fatal(err)
	}
	eventually(t, "all of it has come", func() bool { return c.Fill(1<<20) == nil && len(c.Buffered()) == 100_000 })
	client.Write(noise(50_000))
	c.Discard(len(c.Buffered()))
	if err := c.Fill(0); err != nil { // the rest is unread
		t.Fatal(err)
	}
	c.Lock()
	c.Append([]byte("the reason"))
	c.Unlock()
	c.Shut(patience)
	got, err := io.ReadAll(client)
	if err != nil || string(got) != "the reason" {
		t.Errorf("read %q, %v", got, err)
	}
}

// Nor does a peer lose it that goes on sending until it sees the end.
func TestShutOfASendingPeerIsNoReset(t *testing.T) {
	t.Parallel()
	for range 20 {
		nc, client := tcpPair(t)
		c := newConn(t, nc, nil, Options{})
		go func() { // until the close
			for p := noise(10_000); ; {
				if _, err := client.Write(p); err != nil {
					return
				}
			}
		}()
		receive(t, c, 100_000)
		c.Lock()
		c.Append([]byte("the reason"))
		c.Unlock()
		c.Shut(patience)
		got, err := io.ReadAll(client)
		if err != nil || string(got) != "the reason" {
			t.Fatalf("read %q, %v", got, err)
		}
	}
}

// What lingers ends with the grace, or with Close.
func TestLingerIsBounded(t *testing.T) {
	t.Parallel()
	for _, e := range []struct {
		name  string
		grace time.Duration
		end   func(c *Conn)
	}{
		{"by its own time", patience, func(*Conn) {}},
		{"by the grace", time.Millisecond, func(*Conn) {}},
		{"by Close", patience, func(c *Conn) { c.Close() }},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			nc, client := tcpPair(t)
			c := newConn(t, nc, nil, Options{})
			client.Write([]byte("ab"))
			if err := c.Fill(0); err != nil {
				t.Fatal(err)
			}
			client.Write([]byte("unread"))
			c.Shut(e.grace)
			e.end(c)
			eventually(t, "the socket is closed", func() bool {
				return errors.Is(nc.SetDeadline(time.Time{}), net.ErrClosed)
			})
		})
	}
}

// A peer that never reads is given up when the grace is over.
func TestShutGivesUp(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, _ := k.pair(t)
		c := newConn(t, nc, nil, Options{Failed: func(error) { t.Error("failed") }})
		stall(t, c)
		c.Shut(10 * time.Millisecond)
		eventually(t, "given up", func() bool {
			c.Lock()
			defer c.Unlock()
			return c.closed && !c.writing && c.Size() == 0
		})
	})
}

// Everything at once, for the race detector.
func TestEndingAmidTraffic(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		for round := range 15 {
			nc, client := k.pair(t)
			f := NewFlushers(1, NewGate())
			c := NewConn(nc, f, Options{OutputLimit: 5000, Drained: func() {}, Failed: func(error) {}})
			go io.Copy(io.Discard, client)
			go io.Copy(client, endless{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for c.Fill(0) == nil {
					c.Discard(len(c.Buffered()))
					if c.WaitOutput(20_000) != nil {
						return
					}
				}
			})
			started := make(chan struct{})
			for g := range 2 {
				wg.Go(func() {
					for i := 0; !c.closing.Load(); i++ {
						c.Lock()
						c.SetOut(append(c.Out(), noise(300)...))
						c.Unlock()
						if c.Full() || g == 0 {
							c.Flush()
						} else {
							c.FlushSoon()
						}
						if i == 20 && g == 0 {
							close(started)
						}
					}
				})
			}
			<-started
			endings[round%len(endings)].end(c)
			within(t, "the end", wg.Wait)
			c.Close()
			client.Close()
			f.Close()
			eventually(t, "nothing is held", func() bool {
				c.Lock()
				defer c.Unlock()
				return !c.writing && c.out == nil && c.Size() == 0
			})
		}
	})
}

// endless is a stream of zeroes.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return min(len(p), 1000), nil }
