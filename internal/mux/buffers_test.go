package mux

import (
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

// While the node reads no stream, Unread counts what the streams' buffers take, however small the
// pieces are that the front sends: they take up to Unread.Most bytes, and the next byte that needs a
// buffer ends its stream.
func TestMemoryOfStreamsThatAreNotRead(t *testing.T) { // alone, as it measures the heap
	const streams = 900 // of the 1,000 that a front of these tests opens
	p := connected(t, func(node *Options) { node.MaxStreams = streams + 1 })
	var fronts, nodes []*Stream
	for range streams {
		front, node := p.open(newCollector())
		fronts, nodes = append(fronts, front), append(nodes, node)
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what was in pools is gone
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	sizes := []int{1, tinyBuffer + 1, smallBuffer + 1, mediumBuffer + 1}
	want := int64(0)
	for i := range sizes {
		want += int64(streams / len(sizes) * bufferSize(sizes[i]))
	}
	p.unread.Most = want // at the bound

	// Given clients that send pieces of different sizes, of which nothing is read,
	for i, s := range fronts {
		if _, err := s.Write(make([]byte, sizes[i%len(sizes)])); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(patience); p.unread.Held() < want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are held, want %d", p.unread.Held(), want)
		}
	}
	// Then what is counted is what the heap has, beside what both links send with.
	if grown := heap() - before; grown < want*9/10 || grown > want+4*maxOutput {
		t.Errorf("%d bytes are counted, and the heap has grown by %d", want, grown)
	}
	// Small pieces that find room in a buffer are free.
	if _, err := fronts[1].Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(nodes[1], make([]byte, 100)); err != nil {
		t.Errorf("read %d: %v", n, err)
	}
	// One byte more, of another client, finds no room.
	beyond := newCollector()
	last, _ := p.open(beyond)
	if _, err := last.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	beyond.await(func() bool { return beyond.ended != nil })
	if !strings.Contains(beyond.ended.Error(), "no memory") {
		t.Errorf("%v", beyond.ended)
	}
	if held := p.unread.Held(); held != want {
		t.Errorf("%d bytes are held, want %d", held, want)
	}
	// What was read, or belongs to a stream that has ended, is held no more.
	for i, s := range nodes {
		if i%2 == 0 {
			_ = s.Close()
		} else if _, err := io.CopyN(io.Discard, s, int64(sizes[i%len(sizes)])); err != nil {
			t.Fatal(err)
		}
	}
	if held := p.unread.Held(); held != 0 {
		t.Errorf("%d bytes are held for nothing", held)
	}
}
