package transport

import (
	"io"
	"net"
	"slices"
	"testing"
)

// chunkConn is a connection whose Reads return chunks of given sizes, over and
// over.
type chunkConn struct {
	net.Conn
	stream []byte
	chunks []byte
	reads  int
}

func (c *chunkConn) Read(p []byte) (int, error) {
	if len(c.stream) == 0 {
		return 0, io.EOF
	}
	chunk := int(c.chunks[c.reads%len(c.chunks)])
	c.reads++
	n := copy(p[:min(len(p), chunk*chunk)], c.stream) // 0 is a read of nothing
	c.stream = c.stream[n:]
	return n, nil
}

// FuzzFill: whatever the chunks, the claims and the discards, the bytes come in
// order, once, and memory follows what came, not what was claimed.
func FuzzFill(f *testing.F) {
	f.Add([]byte{255}, []byte{1, 200, 0, 7}, uint32(1<<31))
	f.Add([]byte{1, 0, 3}, []byte{255}, uint32(0))
	f.Add([]byte{100, 2}, []byte{0, 0, 0, 0, 0, 9}, uint32(5000))
	stream := noise(6000)
	// Fewer than a hundred chunks, one of them with bytes in it: a run of empty
	// reads as long as that is rightly an error (io.ErrNoProgress).
	f.Fuzz(func(t *testing.T, chunks, discards []byte, need uint32) {
		if len(chunks) == 0 || len(chunks) > 99 || slices.Max(chunks) == 0 || len(discards) == 0 {
			return
		}
		nc := &chunkConn{stream: stream, chunks: chunks}
		c := NewConn(nc, nil, Options{ReadBuffer: 1 << 10})
		want, most := stream, 0
		for i := 0; ; i++ {
			err := c.Fill(int(need >> (i % 8)))
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			view := c.Buffered()
			mustEqual(t, view, want[:len(view)])
			most = max(most, len(view))
			if len(c.in) > max(int(c.readSize), 2*most) {
				t.Fatalf("%d bytes are reserved; at most %d were buffered", len(c.in), most)
			}
			n := min(len(view), 16*int(discards[i%len(discards)]))
			c.Discard(n)
			want = want[n:]
		}
		if c.in != nil || len(nc.stream) != 0 {
			t.Fatalf("ended with a buffer of %d and %d bytes unread", len(c.in), len(nc.stream))
		}
	})
}
