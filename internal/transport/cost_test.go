package transport

import (
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestConnIsSmall(t *testing.T) {
	t.Parallel()
	if n := unsafe.Sizeof(Conn{}); n > 400 {
		t.Errorf("a Conn takes %d bytes", n)
	}
}

// The buffer of a packet of the default maximum size comes from a pool, as all smaller ones.
func TestALargeBufferIsUsedAgain(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector has pools drop what they are given")
		return
	}
	for n := minBuffer; n <= 4<<20; n *= 2 {
		if allocs := testing.AllocsPerRun(100, func() { putBuffer(getBuffer(n)) }); allocs != 0 {
			t.Errorf("a buffer of %d bytes: %v allocations", n, allocs)
		}
	}
}

// A round trip (fill, append, one write) on a socket that keeps up allocates
// nothing, on the reader's goroutine and on a flusher's.
func TestRoundTripAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Log("not counted under the race detector")
		return
	}
	for _, flush := range []string{"Flush", "FlushSoon"} {
		for _, size := range []int{100, 3000, 50_000} {
			nc, client := tcpPair(t)
			c := newConn(t, nc, newFlushers(t), Options{})
			p := noise(size)
			in := make([]byte, size)
			trip := func() {
				client.Write(p)
				for len(c.Buffered()) < size {
					if err := c.Fill(size); err != nil {
						t.Fatal(err)
					}
				}
				c.Lock()
				c.Grow(size)
				c.SetOut(append(c.Out(), c.Buffered()...))
				c.Unlock()
				c.Discard(size)
				if flush == "Flush" {
					c.Flush()
				} else {
					c.FlushSoon()
				}
				if _, err := io.ReadFull(client, in); err != nil {
					t.Fatal(err)
				}
			}
			for range 10 { // fill the pools
				trip()
			}
			if n := testing.AllocsPerRun(200, trip); n != 0 {
				t.Errorf("%s of %d bytes: %v allocations", flush, size, n)
			}
		}
	}
}

// A stalled peer costs who writes to it neither a wait nor an allocation.
func TestFlushToAStalledPeerAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Log("not counted under the race detector")
		return
	}
	nc, _ := tcpPair(t)
	c := newConn(t, nc, newFlushers(t), Options{})
	stall(t, c)
	c.Lock()
	c.Grow(64 << 10)
	c.Unlock()
	if n := testing.AllocsPerRun(200, func() { send(c, []byte("x")); c.FlushSoon() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// goroutinesIn counts the goroutines that are in a function.
func goroutinesIn(function string) int {
	buf := make([]byte, 16<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), function+"(")
}

// 1,000 idle connections are 1,000 readers: no other goroutine, no buffer.
func TestIdleConnectionsCostTheirReaders(t *testing.T) {
	const n = 1000
	f := newFlushers(t)
	before := runtime.NumGoroutine()
	conns := make([]*Conn, n)
	ended := make(chan error, n)
	for i := range conns {
		nc, client := tcpPair(t)
		conns[i] = newConn(t, nc, f, Options{})
		client.Write([]byte("hello"))
		go func() {
			c := conns[i]
			for {
				if err := c.Fill(0); err != nil {
					ended <- err
					return
				}
				send(c, c.Buffered())
				c.Discard(len(c.Buffered()))
			}
		}()
		if _, err := io.ReadFull(client, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all wait in Fill", func() bool { return goroutinesIn("internal/poll.(*FD).RawRead") >= n })
	// Fewer is one of an earlier test's that has ended meanwhile, and the runtime's own come and go.
	eventually(t, "there is one goroutine for each idle connection", func() bool { return runtime.NumGoroutine()-before <= n })
	for _, c := range conns {
		c.Shut(patience)
	}
	for range n {
		<-ended
	}
	eventually(t, "all goroutines end", func() bool { return runtime.NumGoroutine() <= before })
	for _, c := range conns {
		if c.in != nil || c.out != nil || c.sending.p != nil {
			t.Fatal("a buffer is held")
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	b.Run("transport", func(b *testing.B) {
		nc, client := tcpPair(b)
		c := newConn(b, nc, nil, Options{})
		go func() {
			for c.Fill(0) == nil {
				c.Lock()
				c.SetOut(append(c.Out(), c.Buffered()...))
				c.Unlock()
				c.Discard(len(c.Buffered()))
				c.Flush()
			}
		}()
		benchTrips(b, client)
	})
	b.Run("bare loop", func(b *testing.B) {
		nc, client := tcpPair(b)
		go func() {
			buf := make([]byte, 16<<10)
			for {
				n, err := nc.Read(buf)
				if err != nil {
					return
				}
				nc.Write(buf[:n])
			}
		}()
		benchTrips(b, client)
	})
}

func benchTrips(b *testing.B, client net.Conn) {
	client.SetDeadline(time.Time{})
	b.ReportAllocs()
	p := make([]byte, 200)
	for b.Loop() {
		if _, err := client.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(client, p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	nc, client := tcpPair(b)
	client.SetDeadline(time.Time{})
	go io.Copy(io.Discard, client)
	c := newConn(b, nc, nil, Options{})
	p := make([]byte, 100)
	b.Run("Out+SetOut", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Lock()
			c.SetOut(append(c.Out(), p...))
			c.Unlock()
			if i%100 == 99 {
				c.Flush()
			}
		}
	})
	b.Run("FlushSoon while queued", func(b *testing.B) {
		c.flushers = newFlushQueues()
		c.flushers.soon.place(c).taken.Store(true)
		for b.Loop() {
			c.FlushSoon()
		}
	})
}

// BenchmarkFlushStalled measures what a stalled peer costs each goroutine that appends output
// for it.
func BenchmarkFlushStalled(b *testing.B) {
	nc, _ := tcpPair(b)
	c := newConn(b, nc, nil, Options{})
	stall(b, c)
	b.ReportAllocs()
	for b.Loop() {
		c.Flush()
	}
}

// BenchmarkFanOut is one goroutine that appends to 100 connections, whose peers
// all read, and leaves the writing to the flushers.
func BenchmarkFanOut(b *testing.B) {
	f := newFlushers(b)
	conns := make([]*Conn, 100)
	for i := range conns {
		nc, client := tcpPair(b)
		client.SetDeadline(time.Time{})
		conns[i] = newConn(b, nc, f, Options{})
		go io.Copy(io.Discard, client)
	}
	p := make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range conns {
			c.Lock()
			c.Append(p)
			c.Unlock()
			c.FlushSoon()
		}
		for _, c := range conns {
			for c.Size() > 0 {
				runtime.Gosched()
			}
		}
	}
}
