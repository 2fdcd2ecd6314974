package message

import "testing"

func TestMessageBuffersGoBackToTheirClass(t *testing.T) {
	t.Parallel()
	for size, class := range map[int]int{0: 0, 256: 0, 257: 1, 1024: 1, 1025: 2, 4096: 2, 16384: 3, 16385: 4} {
		if got := classOf(size); got != class {
			t.Errorf("a message of %d bytes is of class %d, want %d", size, got, class)
		}
	}
	m := New(300)
	if cap(m.buf) != 1024 {
		t.Errorf("room for 300 bytes is %d, want 1024", cap(m.buf))
	}
	m.Keep()
	m.Release()
	m.Release()
	defer func() {
		if recover() == nil {
			t.Error("one release too many goes unnoticed")
		}
	}()
	n := NewKept(1)
	n.Release()
	n.Release()
}

// A will that was read from disk is in pooled memory; stored as a retained
// message it is copied, and nothing may go on reading the original.
func TestKeptMessageDoesNotReadWhatItWasCopiedFrom(t *testing.T) {
	t.Parallel()
	m := New(16)
	m.buf, m.topicEnd, m.propsEnd = append(m.buf, "topicpropspayload"...), 5, 10
	m.Keep() // so that it is not in the pool while this test writes to it
	o := m.Outgoing()
	kept := o.Kept()
	m.buf = append(m.buf[:0], "#################"...) // as the pool's next user would
	if string(o.Topic) != "topic" || string(o.props) != "props" || string(o.Payload) != "payload" {
		t.Errorf("got %q, %q, %q", o.Topic, o.props, o.Payload)
	}
	if string(kept.buf) != "topicpropspayload" {
		t.Errorf("kept %q", kept.buf)
	}
}
func TestSecondsLeftAreRoundedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expires, now int64
		want         uint32
	}{{1000, 0, 1}, {1001, 0, 2}, {1000, 999, 1}, {1000, 1000, 0}, {1000, 5000, 0}} {
		if got := SecondsLeft(c.expires, c.now); got != c.want {
			t.Errorf("from %d to %d there are %d s, want %d", c.now, c.expires, got, c.want)
		}
	}
}
