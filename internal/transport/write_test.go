package transport

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// record is a message of the order test: who sent it, its number, and filler that
// can be checked.
func record(dst []byte, sender, number, size int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(sender))
	dst = binary.BigEndian.AppendUint32(dst, uint32(number))
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	return append(dst, bytes.Repeat([]byte{byte(sender + number)}, size)...)
}

// Many append, flush in every way there is, and the reader is slow: each sender's
// records arrive whole, once, and in its order.
func TestOrderUnderConcurrentAppenders(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		f := newFlushers(t)
		c := newConn(t, nc, f, Options{})
		const senders, records = 6, 400
		for s := range senders {
			go func() {
				for n := range records {
					size := n * 7 % 900
					if n%100 == 99 {
						size = 100_000
					}
					c.Lock()
					switch n % 3 {
					case 0:
						c.Append(record(nil, s, n, size))
					case 1:
						c.SetOut(record(c.Out(), s, n, size))
					case 2:
						c.Grow(12 + size)
						c.SetOut(record(c.Out(), s, n, size))
					}
					c.Unlock()
					if (n+s)%2 == 0 {
						c.Flush()
					} else {
						c.FlushSoon()
					}
				}
			}()
		}
		next := [senders]int{}
		r := &slowReader{r: client}
		for range senders * records {
			var head [12]byte
			if _, err := io.ReadFull(r, head[:]); err != nil {
				t.Fatal(err)
			}
			s, n := int(binary.BigEndian.Uint32(head[:])), int(binary.BigEndian.Uint32(head[4:]))
			if s >= senders || n != next[s] {
				t.Fatalf("sender %d: record %d, want %d", s, n, next[s])
			}
			next[s]++
			body := make([]byte, binary.BigEndian.Uint32(head[8:]))
			if _, err := io.ReadFull(r, body); err != nil {
				t.Fatal(err)
			}
			if bytes.Count(body, []byte{byte(s + n)}) != len(body) {
				t.Fatalf("sender %d, record %d: wrong filler", s, n)
			}
		}
		eventually(t, "size is back at 0", func() bool { return c.Size() == 0 })
	})
}

// slowReader reads little at a time, and lets the others run in between.
type slowReader struct {
	r     io.Reader
	reads int
}

func (s *slowReader) Read(p []byte) (int, error) {
	s.reads++
	if s.reads%500 == 0 {
		time.Sleep(time.Millisecond)
	}
	return s.r.Read(p[:min(len(p), 20_000)])
}

// A peer that does not read costs its own connection a backlog, and no goroutine waits for it.
func TestStalledPeerDelaysNoOther(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		f := newFlushers(t)
		nc, stalledClient := k.pair(t)
		stalled := newConn(t, nc, f, Options{})
		sent := stall(t, stalled)

		otherNC, client := k.pair(t)
		other := newConn(t, otherNC, f, Options{})
		for range 200 {
			for _, c := range []*Conn{stalled, other} {
				c.Lock()
				c.Append([]byte("x"))
				c.Unlock()
				c.FlushSoon()
				c.Flush()
			}
			sent = append(sent, 'x')
			if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if n := stalled.Size(); n < 64<<10 {
			t.Errorf("%d bytes are waiting for the stalled peer", n)
		}

		// When it reads again, everything is there.
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(stalledClient, got); err != nil {
			t.Fatal(err)
		}
		mustEqual(t, got, sent)
		eventually(t, "the drain goroutine resigns", func() bool {
			stalled.Lock()
			defer stalled.Unlock()
			return !stalled.writing && stalled.out == nil
		})
	})
}

func TestFullAndDrained(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		drained := make(chan int, 10)
		var c *Conn
		c = newConn(t, nc, nil, Options{OutputLimit: 1000, Drained: func() { drained <- c.Size() }})
		c.Lock()
		c.Append(make([]byte, 999))
		c.Unlock()
		if c.Full() {
			t.Error("full below the limit")
		}
		c.Lock()
		c.Append(make([]byte, 1))
		c.Unlock()
		if !c.Full() {
			t.Error("not full at the limit")
		}
		if !c.WantDrained() {
			t.Error("WantDrained = false with output")
		}
		c.Flush()
		if _, err := io.ReadFull(client, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		within(t, "Drained", func() {
			if n := <-drained; n != 0 {
				t.Errorf("drained with %d bytes left", n)
			}
		})
		if c.WantDrained() {
			t.Error("WantDrained = true without output")
		}
		send(c, []byte("y"))
		if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "empty", func() bool { return c.Size() == 0 })
		if len(drained) != 0 {
			t.Error("Drained was called without having been asked for")
		}
	})
}

// FlushOnly may be called with a lock held that Drained takes.
func TestFlushOnlyLeavesDrainedToOthers(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		var mu sync.Mutex
		drained := make(chan int, 1)
		var c *Conn
		c = newConn(t, nc, nil, Options{Drained: func() {
			mu.Lock()
			defer mu.Unlock()
			drained <- c.Size()
		}})
		c.Lock()
		c.Append([]byte("output"))
		c.Unlock()
		c.WantDrained()

		within(t, "FlushOnly", func() {
			mu.Lock()
			defer mu.Unlock()
			c.FlushOnly()
		})

		if _, err := io.ReadFull(client, make([]byte, len("output"))); err != nil {
			t.Fatal(err)
		}
		within(t, "Drained", func() {
			if n := <-drained; n != 0 {
				t.Errorf("drained with %d bytes left", n)
			}
		})
	})
}

// Drained feeds from a long queue: every byte arrives, and neither the stack grows
// nor is a flusher held.
func TestDrainedFeedsAQueue(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		f := newFlushers(t)
		queue := noise(20 << 20)
		if k.name != "tcp" {
			queue = queue[:2<<20]
		}
		rest := queue
		var c *Conn
		var inside atomic.Int32
		feed := func() {
			if inside.Add(1) != 1 {
				t.Error("Drained was called within itself")
			}
			defer inside.Add(-1)
			for len(rest) > 0 && !c.Full() {
				n := min(len(rest), 3000)
				send(c, rest[:n]) // a Flush within Drained
				rest = rest[n:]
			}
		}
		c = NewConn(nc, f, Options{Drained: feed})
		defer c.Close()
		c.Lock()
		c.Append([]byte("start"))
		c.Unlock()
		if !c.WantDrained() {
			t.Fatal("nothing to drain")
		}
		c.FlushSoon()
		got := make([]byte, 5+len(queue))
		if _, err := io.ReadFull(client, got); err != nil {
			t.Fatal(err)
		}
		mustEqual(t, got[5:], queue)
	})
}

func TestWaitOutput(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		if err := c.WaitOutput(1); err != nil {
			t.Fatalf("with no output: %v", err)
		}
		sent := stall(t, c)
		waited := make(chan error)
		go func() { waited <- c.WaitOutput(1000) }()
		select {
		case err := <-waited:
			t.Fatalf("WaitOutput returned (%v) with %d bytes waiting", err, c.Size())
		case <-time.After(10 * time.Millisecond):
		}
		go io.CopyN(io.Discard, client, int64(len(sent)))
		within(t, "WaitOutput", func() {
			if err := <-waited; err != nil || c.Size() >= 1000 {
				t.Errorf("WaitOutput = %v with %d bytes waiting", err, c.Size())
			}
		})
	})
}

func TestFailedIsCalledOnce(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		failed := make(chan error, 10)
		c := newConn(t, nc, newFlushers(t), Options{Failed: func(err error) { failed <- err }, Drained: func() { t.Error("drained") }})
		stall(t, c)
		c.WantDrained()
		kill(client)
		within(t, "Failed", func() {
			if err := <-failed; err == nil {
				t.Error("Failed(nil)")
			}
		})
		for range 10 {
			send(c, noise(100_000))
			c.FlushSoon()
		}
		if c.Size() != 0 || c.Full() {
			t.Errorf("%d bytes are kept for a dead socket", c.Size())
		}
		if err := c.WaitOutput(1); err != nil { // the reader goes on
			t.Errorf("WaitOutput = %v", err)
		}
		if len(failed) != 0 {
			t.Error("Failed was called again")
		}
	})
}

// The peer's last words are read even though a write has failed before: in MQTT
// they may be the DISCONNECT that cancels a will.
func TestReaderOutlivesAFailedWrite(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]func(error){"Failed": func(error) {}, "no Failed": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lastWords(t, failed)
		})
	}
}

func lastWords(t *testing.T, failed func(error)) {
	nc, client := tcpPair(t)
	c := newConn(t, nc, nil, Options{Failed: failed})
	client.Write([]byte("goodbye"))
	client.(*net.TCPConn).SetLinger(0)
	send(c, []byte("x"))
	client.Close() // with unread input: a reset
	eventually(t, "a write fails", func() bool {
		send(c, []byte("y"))
		c.Lock()
		defer c.Unlock()
		return c.broken
	})
	if got := receive(t, c, 7); string(got) != "goodbye" {
		t.Errorf("got %q", got)
	}
	if err := c.Fill(0); err == nil {
		t.Error("no end of the stream")
	}
}

func TestWithoutFailedTheConnectionClosesItself(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		c := newConn(t, nc, nil, Options{})
		stall(t, c)
		kill(client)
		eventually(t, "closed", func() bool { return c.closing.Load() })
	})
}

// What was handed out and not used leaves no buffer behind.
func TestEmptySetOutHoldsNothing(t *testing.T) {
	t.Parallel()
	nc, _ := tcpPair(t)
	c := newConn(t, nc, nil, Options{})
	c.Lock()
	c.SetOut(c.Out())
	if c.out != nil {
		t.Error("an empty output holds a buffer")
	}
	c.Unlock()
}

func TestFlushersCloseFlushesWhatIsQueued(t *testing.T) {
	t.Parallel()
	f := NewFlushers(1, NewGate())
	var clients []net.Conn
	for range 50 {
		nc, client := tcpPair(t)
		c := newConn(t, nc, f, Options{})
		c.Lock()
		c.Append([]byte("z"))
		c.Unlock()
		c.FlushSoon()
		clients = append(clients, client)
	}
	f.Close()
	nc, client := tcpPair(t)
	c := newConn(t, nc, f, Options{})
	c.Lock()
	c.Append([]byte("z"))
	c.Unlock()
	c.FlushSoon() // after Close: by the caller
	for _, client := range append(clients, client) {
		if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// Output buffers come from pools that all connections share: a buffer that a connection
// is still writing is not given to another.
func TestOutputBuffersAreNotShared(t *testing.T) {
	t.Parallel()
	f := newFlushers(t)
	var wg sync.WaitGroup
	for i := range 20 {
		nc, client := kinds[i%2].pair(t)
		c := newConn(t, nc, f, Options{})
		mark := byte(i + 1)
		const total = 400 * 1500
		wg.Go(func() {
			for range 400 {
				c.Lock()
				c.SetOut(append(c.Out(), bytes.Repeat([]byte{mark}, 1500)...)) // grown by append
				c.Unlock()
				c.FlushSoon()
			}
		})
		wg.Go(func() {
			got := make([]byte, total)
			if _, err := io.ReadFull(client, got); err != nil {
				t.Error(err)
			}
			if bytes.Count(got, []byte{mark}) != total {
				t.Errorf("connection %d sent bytes of another connection", i)
			}
		})
	}
	wg.Wait()
}
