package transport

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
)

// There is one processor, and another goroutine's pipe is readable: yield returns after
// that goroutine has had a turn. (With runtime.Gosched alone it would return at once, and
// the goroutine would have had next to no turn at the end.) Now and then Go's scheduler runs
// a goroutine that has waited longer first, and on a machine with other work to do the
// kernel suspends the thread; hence "nine times out of ten".
func TestYieldLetsReadersRunFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	y := newYielder()
	defer y.close()
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
	const calls = 100
	behind := 0
	for i := range calls {
		if _, err := in.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		y.yield()
		if turns.Load() < int64(i) { // not even that of the call before
			behind++
		}
	}
	if behind > calls/10 {
		t.Errorf("after %d of %d calls of yield the reader was behind", behind, calls)
	}
	in.Close()
	<-read
}
