package transport

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
)

// There is one processor, and somebody else's socket can be read: a flusher that
// gives way goes on after that one. (With runtime.Gosched alone it would go on at
// once.) Now and then Go's scheduler prefers who has waited for longer, hence "at
// most one behind".
func TestWayLetsReadersPass(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := newWay()
	defer w.close()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var turns atomic.Int64
	read := make(chan int)
	go func() {
		for octet := make([]byte, 1); ; {
			if _, err := out.Read(octet); err != nil {
				close(read)
				return
			}
			turns.Add(1)
		}
	}()
	for i := range 100 {
		if _, err := in.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		w.give()
		if n := turns.Load(); n < int64(i) {
			t.Errorf("the flusher has given way %d times, and the reader had %d turns", i+1, n)
			break
		}
	}
	in.Close()
	<-read
}
