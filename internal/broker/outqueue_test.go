package broker

import (
	"testing"

	"pgregory.net/rapid"
)

// The queue beside a plain list: whatever is pushed, sent, acknowledged, dropped
// and sent again on a new connection, candidates come in the order pushed, and
// every identifier names the message that it was given to.
func TestOutqueueAgainstAList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		q := outqueue{base: 100, span: uint64(rapid.IntRange(1, 9).Draw(rt, "span"))}
		start := rapid.Uint64Range(0, 50).Draw(rt, "start")
		q.head, q.next, q.tail, q.again = start, start, start, start

		type item struct {
			order uint64
			id    uint16 // 0: not sent
			sent  bool   // on this connection
		}
		var list []item
		var orders uint64
		underWay := func() (n int) {
			for _, it := range list {
				if it.id != 0 {
					n++
				}
			}
			return n
		}
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				orders++
				q.push(slot{order: orders, qos: 1})
				list = append(list, item{order: orders})
			},
			"send": func(rt *rapid.T) {
				var want *item
				for i := range list {
					if !list[i].sent {
						want = &list[i]
						break
					}
				}
				got := q.candidate()
				if got == nil {
					if want != nil && (want.id != 0 || underWay() == 0) {
						rt.Fatalf("nothing to send, want message %d", want.order)
					}
					return
				}
				if want == nil || got.order != want.order {
					rt.Fatalf("message %d is to be sent, want %v", got.order, want)
				}
				id := q.packetID(q.again)
				if want.id != 0 && want.id != id {
					rt.Fatalf("message %d is sent again as %d, it was %d", got.order, id, want.id)
				}
				for _, it := range list {
					if it.id == id && it.order != got.order {
						rt.Fatalf("identifier %d is given to message %d while message %d has it", id, got.order, it.order)
					}
				}
				got.state = slotSent
				want.id, want.sent = id, true
				q.advance()
			},
			"acknowledge": func(rt *rapid.T) {
				id := rapid.Uint16Range(100, 100+uint16(q.span)-1).Draw(rt, "id")
				got, _ := q.find(id)
				for i, it := range list {
					if it.id != id || !it.sent {
						continue
					}
					if got == nil || got.order != it.order {
						rt.Fatalf("identifier %d names %v, want message %d", id, got, it.order)
					}
					*got = slot{state: slotDone}
					q.trim()
					list = append(list[:i], list[i+1:]...)
					return
				}
				if got != nil {
					rt.Fatalf("identifier %d names message %d, want none", id, got.order)
				}
			},
			"reconnect": func(*rapid.T) {
				q.rewind()
				for i := range list {
					list[i].sent = false
				}
			},
			"drop": func(rt *rapid.T) {
				i := rapid.IntRange(0, 20).Draw(rt, "index")
				if i >= len(list) || list[i].id != 0 {
					return
				}
				for seq := q.next; seq < q.tail; seq++ {
					if it := q.at(seq); it.state != slotDone && it.order == list[i].order {
						*it = slot{state: slotDone}
					}
				}
				q.trim()
				list = append(list[:i], list[i+1:]...)
			},
		})
	})
}

func TestMessageBuffersGoBackToTheirClass(t *testing.T) {
	t.Parallel()
	for size, class := range map[int]int{0: 0, 256: 0, 257: 1, 1024: 1, 1025: 2, 4096: 2, 16384: 3, 16385: 4} {
		if got := classOf(size); got != class {
			t.Errorf("a message of %d bytes is of class %d, want %d", size, got, class)
		}
	}
	m := newMessage(300)
	if cap(m.buf) != 1024 {
		t.Errorf("room for 300 bytes is %d, want 1024", cap(m.buf))
	}
	m.keep()
	m.release()
	m.release()
	defer func() {
		if recover() == nil {
			t.Error("one release too many goes unnoticed")
		}
	}()
	n := newKeptMessage(1)
	n.release()
	n.release()
}

func TestTimersRunInOrderAndNotAfterRemoval(t *testing.T) {
	t.Parallel()
	ts := timers{wake: make(chan struct{}, 1)}
	var ran []int
	ts.add(30, func() { ran = append(ran, 30) })
	ts.add(10, func() { ran = append(ran, 10) })
	removed := ts.add(20, func() { ran = append(ran, 20) })
	ts.add(40, func() { ran = append(ran, 40) })
	if !ts.remove(removed) || ts.remove(removed) || ts.remove(nil) {
		t.Error("a timer is removed once")
	}
	if wait := ts.runDue(30); wait.Milliseconds() != 10 {
		t.Errorf("the next is in %v, want 10ms", wait)
	}
	if len(ran) != 2 || ran[0] != 10 || ran[1] != 30 {
		t.Errorf("ran %v, want 10 and 30", ran)
	}
}

func TestSecondsLeftAreRoundedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expires, now int64
		want         uint32
	}{{1000, 0, 1}, {1001, 0, 2}, {1000, 999, 1}, {1000, 1000, 0}, {1000, 5000, 0}} {
		if got := secondsLeft(c.expires, c.now); got != c.want {
			t.Errorf("from %d to %d there are %d s, want %d", c.now, c.expires, got, c.want)
		}
	}
}
