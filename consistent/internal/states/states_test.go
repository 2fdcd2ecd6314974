package states

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/decoded"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

func TestCacheAtItsBound(t *testing.T) {
	t.Parallel()
	one := (&entry{"a", State{Value: []byte("1")}}).bytes()
	c := New(3 * one)
	put := func(key, value string) int {
		return c.Put(key, State{Value: []byte(value), Version: hlc.Timestamp{Wall: 1}})
	}
	for _, key := range []string{"a", "b", "c", "a", "b"} { // three have room, however often they are put
		if n := put(key, "1"); n != 0 {
			t.Errorf("%d went for %q", n, key)
		}
	}
	if _, ok := c.Get("c"); !ok { // it is used now; a was used before b
		t.Error("c is not there")
	}
	if n := put("d", "1"); n != 1 {
		t.Errorf("%d went for one more", n)
	}
	for key, want := range map[string]bool{"a": false, "b": true, "c": true, "d": true} {
		if _, ok := c.Get(key); ok != want {
			t.Errorf("%q is there: %v, want %v", key, ok, want)
		}
	}
	if n := put("b", "22"); n != 1 || c.bytes != 2*one+1 {
		t.Errorf("%d went for a byte more; %d bytes", n, c.bytes)
	}
	if s, ok := c.Get("b"); !ok || string(s.Value) != "22" || s.Version.Wall != 1 {
		t.Errorf("got %+v, %v", s, ok)
	}
	v := decoded.Value{Bytes: 7}
	c.Put("d", State{Value: []byte("1"), Decoded: v})
	if s, ok := c.Get("d"); !ok || s.Decoded != v || c.bytes != 2*one+8 {
		t.Errorf("a state beside its value: %+v, %v, %d bytes", s, ok, c.bytes)
	}
	put("b", string(make([]byte, 3*one))) // it has no room by itself: what was known of it goes
	if _, ok := c.Get("b"); ok {
		t.Error("one that is larger than all of the room is kept")
	}
	c.Drop("c")
	c.Drop("d")
	c.Drop("d")
	if c.bytes != 0 || len(c.byKey) != 0 || c.order.Len() != 0 {
		t.Errorf("%d bytes of %d keys", c.bytes, len(c.byKey))
	}
	none := New(0)
	none.Put("a", State{})
	if _, ok := none.Get("a"); ok || none.bytes != 0 {
		t.Error("a cache of nothing keeps something")
	}
}
