package queue

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
)

// The queue beside a plain list: whatever is pushed, evicted, loaded, sent,
// acknowledged in any order, dropped and sent again on a new connection, candidates
// come in the order pushed, every identifier names the message that it was given
// to, and sending waits for nothing but free identifiers.
func TestOutqueueAgainstAList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		q := New(100, rapid.Uint16Range(1, 9).Draw(rt, "span"))
		q.Start(rapid.Uint64Range(0, 50).Draw(rt, "start"))

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
				if q.Middle.Count != onDisk {
					rt.Fatalf("%d messages count as on disk only, want %d", q.Middle.Count, onDisk)
				}
				if held := int(q.Next - q.Front.head); held > 2*q.Live+MaxGap+1 {
					rt.Fatalf("the ring has %d places for %d deliveries under way", held, q.Live)
				}
			},
			"push": func(rt *rapid.T) {
				it := q.Push(Slot{QoS: 1, Message: &message.Message{}}, rapid.Bool().Draw(rt, "in front"))
				list = append(list, item{seq: it.Seq})
			},
			"pass numbers over": func(rt *rapid.T) { // as dropped messages do
				for range rapid.IntRange(1, 2*MaxGap).Draw(rt, "numbers") {
					it := q.Push(Slot{Message: &message.Message{}}, true)
					q.TakeOut(it)
					q.Trim()
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
				got := q.Candidate()
				if got == nil {
					if want != nil && !want.onDisk && (want.id != 0 || underWay() < int(q.Span)) {
						rt.Fatalf("nothing to send, want message %d", want.seq)
					}
					if lacks := want != nil && want.onDisk; q.LacksMessage() != lacks && underWay() < int(q.Span) {
						rt.Fatalf("the next is on disk only: %v, want %v", !lacks, lacks)
					}
					return
				}
				if want == nil || got.Seq != want.seq {
					rt.Fatalf("message %d is to be sent, want %v", got.Seq, want)
				}
				q.Identify(got)
				id := got.ID
				if want.id != 0 && want.id != id {
					rt.Fatalf("message %d is sent again as %d, it was %d", got.Seq, id, want.id)
				}
				for _, it := range list {
					if it.id == id && it.seq != got.Seq {
						rt.Fatalf("identifier %d is given to message %d while message %d has it", id, got.Seq, it.seq)
					}
				}
				got.State = Sent
				want.id, want.sent = id, true
				q.Sent(got)
			},
			"acknowledge": func(rt *rapid.T) {
				id := rapid.Uint16Range(100, 100+uint16(q.Span)-1).Draw(rt, "id")
				got := q.Find(id)
				for _, it := range list {
					if it.id != id || !it.sent {
						continue
					}
					if got == nil || got.Seq != it.seq {
						rt.Fatalf("identifier %d names %v, want message %d", id, got, it.seq)
					}
					q.TakeOut(got)
					q.Trim()
					remove(it.seq)
					return
				}
				if got != nil {
					rt.Fatalf("identifier %d names message %d, want none", id, got.Seq)
				}
			},
			"reconnect": func(*rapid.T) {
				q.Rewind()
				for i := range list {
					list[i].sent = false
				}
			},
			"drop": func(rt *rapid.T) {
				i := rapid.IntRange(0, 20).Draw(rt, "index")
				if i >= len(list) || list[i].id != 0 || list[i].onDisk {
					return
				}
				q.TakeOut(q.SlotAt(list[i].seq))
				q.Trim()
				remove(list[i].seq)
			},
			"evict": func(rt *rapid.T) {
				if it := q.Evictable(); it != nil && it.ID == 0 {
					find(it.Seq).onDisk = true
					q.Evict(it)
				}
			},
			"load": func(rt *rapid.T) {
				for i := range list {
					if list[i].onDisk {
						list[i].onDisk = !q.Load(Slot{Seq: list[i].seq, Message: &message.Message{}})
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
	q := New(RoutedBase, RoutedSpan)
	send := func() *Slot {
		q.Push(Slot{QoS: 1}, true)
		it := q.Candidate()
		if it == nil {
			t.Fatal("nothing can be sent")
		}
		q.Identify(it)
		it.State = Sent
		id := it.ID
		q.Sent(it)
		return q.Find(id)
	}
	stays := *send()
	for i := range 3 * RoutedSpan {
		it := send()
		if it.ID == stays.ID {
			t.Fatalf("after %d messages the identifier %d is given again", i, it.ID)
		}
		q.TakeOut(it)
		q.Trim()
	}
	if len(q.Front.Slots) > 4*MaxGap || len(q.Strays) != 1 {
		t.Errorf("the ring has %d places, and there are %d strays", len(q.Front.Slots), len(q.Strays))
	}
	if it := q.Find(stays.ID); it == nil || it.Seq != stays.Seq {
		t.Errorf("identifier %d names %v, want message %d", stays.ID, it, stays.Seq)
	}
}

// What a queue has kept for its next message goes when its client does, unless
// something is under way.
func TestEmptyQueueOfAClientThatLeavesKeepsNothing(t *testing.T) {
	t.Parallel()
	for _, onDisk := range []bool{false, true} {
		q := New(RoutedBase, RoutedSpan)
		if onDisk {
			q.Start(7)
		}
		leave := func() {
			q.Rewind()
			q.Shrink()
		}
		q.Push(Slot{QoS: 1}, true)
		it := q.Candidate()
		q.Identify(it)
		it.State = Sent
		id, next := it.ID, it.Seq+1
		q.Sent(it)
		leave()
		again := q.Candidate()
		if again == nil || again.ID != id {
			t.Fatalf("on disk %v: after the client has left, %+v is to be sent again, want identifier %d", onDisk, again, id)
		}
		q.Sent(again)
		q.TakeOut(q.Find(id))
		q.Trim()
		leave()
		if q.Front.Slots != nil || q.Strays != nil || q.Resend != nil {
			t.Errorf("on disk %v: an empty queue keeps %+v", onDisk, q.deliveries)
		}
		if !onDisk {
			if !q.Unused() {
				t.Errorf("an empty queue in memory keeps %+v", q.deliveries)
			}
			continue
		}
		if it := q.Push(Slot{QoS: 1}, true); it.Seq != next {
			t.Errorf("the next message has the number %d, want %d", it.Seq, next)
		}
	}
}
