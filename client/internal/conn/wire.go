package conn

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

const (
	// wireRoomBytes of output may wait for the socket before requests wait.
	wireRoomBytes = 256 << 10
	// wireKeepBytes is the largest output buffer that is kept for reuse.
	wireKeepBytes = 1 << 20
	// wireCloseGrace is how long Close tries to write what is left.
	wireCloseGrace = time.Second
)

// wire is the network connection as paho sees it. paho writes a packet in
// several pieces, under the lock that it finds on its connection, and waits
// for the socket with it. Here a Write only appends to a buffer, which one
// goroutine empties: a packet leaves in one piece, the packets of many
// goroutines leave in one system call, and no request waits for a stalled
// socket longer than its context allows (see waitRoom).
type wire struct {
	net.Conn
	in *bufio.Reader // one goroutine reads at a time

	mu      sync.Mutex    // paho holds it, by Lock and Unlock, while it writes one packet
	filled  sync.Cond     // on mu: out has something, or closing
	out     []byte        // under mu
	room    chan struct{} // under mu: closed when the writer has taken out; nil: no request waits
	closing bool          // under mu
	err     error         // under mu: the first failure of the socket

	drained   chan struct{} // closed when the writer has ended
	closeOnce sync.Once
	closeErr  error
}

func newWire(nc net.Conn) *wire {
	w := &wire{Conn: nc, in: bufio.NewReaderSize(nc, 16<<10), drained: make(chan struct{})}
	w.filled.L = &w.mu
	go w.drain()
	return w
}

// Lock and Unlock make wire the sync.Locker that paho's packets look for.
func (w *wire) Lock() { w.mu.Lock() }

func (w *wire) Unlock() {
	w.mu.Unlock()
	w.filled.Signal()
}

// Write appends p to the output. The caller holds the lock.
func (w *wire) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if w.closing {
		return 0, net.ErrClosed
	}
	w.out = append(w.out, p...)
	return len(p), nil
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	if err != nil {
		w.mu.Lock()
		if w.err == nil && !w.closing {
			w.err = err
		}
		w.mu.Unlock()
	}
	return n, err
}

// drain writes what comes, until there is nothing left and the wire is closing.
func (w *wire) drain() {
	defer close(w.drained)
	var batch []byte
	for {
		w.mu.Lock()
		for len(w.out) == 0 && !w.closing {
			w.filled.Wait()
		}
		if len(w.out) == 0 {
			w.mu.Unlock()
			return
		}
		batch, w.out = w.out, batch[:0]
		if w.room != nil {
			close(w.room)
			w.room = nil
		}
		w.mu.Unlock()
		if _, err := w.Conn.Write(batch); err != nil {
			w.fail(err)
			return
		}
		if cap(batch) > wireKeepBytes {
			batch = nil
		}
	}
}

func (w *wire) fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.out = nil
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	w.mu.Unlock()
	_ = w.Conn.Close() // the reader notices
}

// waitRoom blocks while too much output waits for the socket.
func (w *wire) waitRoom(ctx context.Context) error {
	for {
		w.mu.Lock()
		if len(w.out) < wireRoomBytes || w.closing || w.err != nil {
			w.mu.Unlock()
			return nil
		}
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cause is the first failure of the socket that Close did not cause.
func (w *wire) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close writes what is left, for at most wireCloseGrace, and closes the socket.
func (w *wire) Close() error {
	w.closeOnce.Do(func() {
		w.mu.Lock()
		w.closing = true
		if w.room != nil {
			close(w.room)
			w.room = nil
		}
		broken := w.err != nil
		w.mu.Unlock()
		w.filled.Signal()
		if broken {
			w.closeErr = w.Conn.Close()
			<-w.drained
			return
		}
		_ = w.Conn.SetWriteDeadline(time.Now().Add(wireCloseGrace))
		<-w.drained
		w.closeErr = w.Conn.Close()
	})
	return w.closeErr
}
