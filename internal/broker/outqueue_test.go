package broker

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The queue beside a plain list: whatever is pushed, evicted, loaded, sent,
// acknowledged in any order, dropped and sent again on a new connection, candidates
// come in the order pushed, every identifier names the message that it was given
// to, and sending waits for nothing but free identifiers.
func TestOutqueueAgainstAList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		q := outqueue{base: 100, span: uint64(rapid.IntRange(1, 9).Draw(rt, "span"))}
		q.start(rapid.Uint64Range(0, 50).Draw(rt, "start"))

		type item struct {
			seq    uint64
			id     uint16 // 0: not sent
			sent   bool   // on this connection
			onDisk bool
		}
		var list []item
		find := func(seq uint64) *item {
			for i := range list {
				if list[i].seq == seq {
					return &list[i]
				}
			}
			return nil
		}
		remove := func(seq uint64) {
			list = slices.DeleteFunc(list, func(it item) bool { return it.seq == seq })
		}
		underWay := func() (n int) {
			for _, it := range list {
				if it.id != 0 {
					n++
				}
			}
			return n
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				onDisk := 0
				for _, it := range list {
					if it.onDisk {
						onDisk++
					}
				}
				if q.middle.count != onDisk {
					rt.Fatalf("%d messages count as on disk only, want %d", q.middle.count, onDisk)
				}
				if held := int(q.next - q.front.head); held > 2*q.live+maxGap+1 {
					rt.Fatalf("the ring has %d places for %d deliveries under way", held, q.live)
				}
			},
			"push": func(rt *rapid.T) {
				it := q.push(slot{qos: 1, msg: &Message{}}, rapid.Bool().Draw(rt, "in front"))
				list = append(list, item{seq: it.seq})
			},
			"pass numbers over": func(rt *rapid.T) { // as dropped messages do
				for range rapid.IntRange(1, 2*maxGap).Draw(rt, "numbers") {
					it := q.push(slot{msg: &Message{}}, true)
					q.settle(it)
					q.trim()
				}
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
					if want != nil && !want.onDisk && (want.id != 0 || underWay() < int(q.span)) {
						rt.Fatalf("nothing to send, want message %d", want.seq)
					}
					if lacks := want != nil && want.onDisk; q.lacksMessage() != lacks && underWay() < int(q.span) {
						rt.Fatalf("the next is on disk only: %v, want %v", !lacks, lacks)
					}
					return
				}
				if want == nil || got.seq != want.seq {
					rt.Fatalf("message %d is to be sent, want %v", got.seq, want)
				}
				q.identify(got)
				id := got.id
				if want.id != 0 && want.id != id {
					rt.Fatalf("message %d is sent again as %d, it was %d", got.seq, id, want.id)
				}
				for _, it := range list {
					if it.id == id && it.seq != got.seq {
						rt.Fatalf("identifier %d is given to message %d while message %d has it", id, got.seq, it.seq)
					}
				}
				got.state = slotSent
				want.id, want.sent = id, true
				q.sent(got)
			},
			"acknowledge": func(rt *rapid.T) {
				id := rapid.Uint16Range(100, 100+uint16(q.span)-1).Draw(rt, "id")
				got := q.find(id)
				for _, it := range list {
					if it.id != id || !it.sent {
						continue
					}
					if got == nil || got.seq != it.seq {
						rt.Fatalf("identifier %d names %v, want message %d", id, got, it.seq)
					}
					q.settle(got)
					q.trim()
					remove(it.seq)
					return
				}
				if got != nil {
					rt.Fatalf("identifier %d names message %d, want none", id, got.seq)
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
				if i >= len(list) || list[i].id != 0 || list[i].onDisk {
					return
				}
				q.settle(q.slotAt(list[i].seq))
				q.trim()
				remove(list[i].seq)
			},
			"evict": func(rt *rapid.T) {
				if it := q.evictable(); it != nil && it.id == 0 {
					find(it.seq).onDisk = true
					q.evict(it)
				}
			},
			"load": func(rt *rapid.T) {
				for i := range list {
					if list[i].onDisk {
						list[i].onDisk = !q.load(slot{seq: list[i].seq, msg: &Message{}})
						return
					}
				}
			},
		})
	})
}

// A delivery that its client never acknowledges costs a place of its own, and
// neither memory nor identifiers for those that come and go after it.
func TestDeliveryThatStaysCostsOnePlace(t *testing.T) {
	t.Parallel()
	q := outqueue{base: routedBase, span: routedSpan, deep: shallow}
	send := func() *slot {
		q.push(slot{qos: 1}, true)
		it := q.candidate()
		if it == nil {
			t.Fatal("nothing can be sent")
		}
		q.identify(it)
		it.state = slotSent
		id := it.id
		q.sent(it)
		return q.find(id)
	}
	stays := *send()
	for i := range 3 * routedSpan {
		it := send()
		if it.id == stays.id {
			t.Fatalf("after %d messages the identifier %d is given again", i, it.id)
		}
		q.settle(it)
		q.trim()
	}
	if len(q.front.slots) > 4*maxGap || len(q.strays) != 1 {
		t.Errorf("the ring has %d places, and there are %d strays", len(q.front.slots), len(q.strays))
	}
	if it := q.find(stays.id); it == nil || it.seq != stays.seq {
		t.Errorf("identifier %d names %v, want message %d", stays.id, it, stays.seq)
	}
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
