package transport

import (
	"encoding/binary"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/transport/nowait"
)

// loan is an owner that counts how often it was released.
type loan struct{ released atomic.Int32 }

func (l *loan) Release() { l.released.Add(1) }

// Copied and shared pieces of many appenders arrive whole, once, and in order,
// however the socket parts them, and every owner is released once.
func TestSharedOutputKeepsItsOrder(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		limitSendBuffer(nc)
		c := newConn(t, nc, newFlushers(t), Options{})
		payload := noise(70_000)
		const senders, records = 4, 60
		var loans [senders][records]loan
		for s := range senders {
			go func() {
				for n := range records {
					c.Lock()
					head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(s)), uint32(n))
					c.SetOut(append(c.Out(), head...))
					size := 1 + n*997%len(payload)
					c.SetOut(binary.BigEndian.AppendUint32(c.Out(), uint32(size)))
					c.AppendShared(payload[:size], &loans[s][n])
					c.Append([]byte("end"))
					c.Unlock()
					c.FlushSoon()
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
			body := make([]byte, int(binary.BigEndian.Uint32(head[8:]))+3)
			if _, err := io.ReadFull(r, body); err != nil {
				t.Fatal(err)
			}
			mustEqual(t, body[:len(body)-3], payload[:len(body)-3])
			if string(body[len(body)-3:]) != "end" {
				t.Fatalf("after the payload came %q", body[len(body)-3:])
			}
		}
		eventually(t, "size is back at 0", func() bool { return c.Size() == 0 })
		for s := range loans {
			for n := range loans[s] {
				eventually(t, "every owner is released", func() bool { return loans[s][n].released.Load() > 0 })
				if times := loans[s][n].released.Load(); times != 1 {
					t.Fatalf("sender %d, record %d: released %d times", s, n, times)
				}
			}
		}
	})
}

// However a connection ends, what it referred to is released once, and nothing
// stays charged.
func TestSharedOutputIsReleasedOnceAtTheEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(c *Conn, kill func()){
		"Close":              func(c *Conn, _ func()) { c.Close() },
		"Shut without grace": func(c *Conn, _ func()) { c.Shut(0) },
		"Shut":               func(c *Conn, _ func()) { c.Shut(20 * time.Millisecond) },
		"the peer resets":    func(_ *Conn, kill func()) { kill() },
		"Shut, then Close":   func(c *Conn, _ func()) { c.Shut(time.Hour); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overKinds(t, func(t *testing.T, k kind) {
				nc, client := k.pair(t)
				pool := memory.NewPool(1 << 30)
				c := newConn(t, nc, newFlushers(t), Options{Memory: pool})
				stall(t, c)
				var loans [20]loan
				payload := noise(100_000)
				for i := range loans {
					c.Lock()
					c.Append([]byte("head"))
					c.AppendShared(payload, &loans[i])
					c.Append([]byte("tail"))
					c.Unlock()
					c.Flush()
				}
				eventually(t, "what a peer does not read is charged", func() bool { return pool.UsedBy(memory.Output) > 10_000 })
				end(c, func() { kill(client) })
				for i := range loans {
					eventually(t, "every owner is released", func() bool { return loans[i].released.Load() > 0 })
					if times := loans[i].released.Load(); times != 1 {
						t.Fatalf("owner %d was released %d times", i, times)
					}
				}
				eventually(t, "nothing is charged", func() bool { return pool.Used() == 0 })
				var late loan
				c.Lock()
				c.AppendShared(payload, &late)
				c.Unlock()
				if late.released.Load() != 1 {
					t.Error("what was appended to a connection that has ended was not released")
				}
				if c.Size() != 0 || pool.Used() != 0 {
					t.Errorf("%d bytes wait and %d are charged after the end", c.Size(), pool.Used())
				}
			})
		})
	}
}

// Only what a socket does not take is charged, and it is credited as it goes.
func TestOutputIsChargedWhileItWaits(t *testing.T) {
	t.Parallel()
	overKinds(t, func(t *testing.T, k kind) {
		nc, client := k.pair(t)
		pool := memory.NewPool(1 << 30)
		c := newConn(t, nc, nil, Options{Memory: pool})
		encrypted := int64(0)
		if c.tls != nil {
			encrypted = 2 * sealAtOnce // which is held as well while the socket doesn't take it
		}
		send(c, []byte("small"))
		if _, err := io.ReadFull(client, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		if n := pool.UsedBy(memory.Output); n != 0 {
			t.Fatalf("%d bytes are charged although the peer reads", n)
		}
		waiting := stall(t, c)
		eventually(t, "what waits is charged", func() bool {
			n, size := pool.UsedBy(memory.Output), int64(c.Size())
			return n <= size+encrypted && n >= size-freeOutput
		})
		c.Lock()
		c.AppendShared(noise(1<<20), new(loan))
		c.Unlock()
		if n := pool.UsedBy(memory.Output); n > int64(len(waiting))+encrypted {
			t.Fatalf("%d bytes are charged: what is shared is its owner's to charge", n)
		}
		if _, err := io.ReadFull(client, make([]byte, len(waiting)+1<<20)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all is credited", func() bool { return pool.Used() == 0 })
	})
}

// What Drained appends is charged although the first write of it waits already: the
// socket took all that was before it, and is full.
func TestOutputOfDrainedIsChargedWhileItWaits(t *testing.T) {
	t.Parallel()
	nc, _ := tcpPair(t)
	limitSendBuffer(nc)
	pool := memory.NewPool(1 << 30)
	const size = 50_000
	var appended atomic.Bool
	var c *Conn
	c = newConn(t, nc, nil, Options{Memory: pool, Drained: func() {
		if c.raw == nil {
			return // this system has the plain path only
		}
		fillSocket(t, c)
		send(c, noise(size))
		appended.Store(true)
	}})
	drain := func() {
		c.Lock()
		c.Append([]byte("small"))
		c.Unlock()
		c.WantDrained()
		c.FlushOnly()
	}
	drain()
	if c.raw != nil {
		eventually(t, "what waits is charged", func() bool {
			if !appended.Load() {
				return false
			}
			n, waiting := pool.UsedBy(memory.Output), int64(c.Size())
			if waiting == 0 { // on a busy machine the kernel passes on late what was written, and then there is room
				appended.Store(false)
				drain()
				return false
			}
			return n == waiting
		})
	}
}

// fillSocket writes past c until the socket takes nothing any more.
func fillSocket(t *testing.T, c *Conn) {
	junk := make([]byte, 16<<10)
	for idle := 0; idle < 3; time.Sleep(time.Millisecond) { // the peer's side may still take some
		idle++
		err := c.raw.Control(func(fd uintptr) {
			for {
				if n, again, err := nowait.Write(fd, junk); again || err != nil || n == 0 {
					return
				}
				idle = 0
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
