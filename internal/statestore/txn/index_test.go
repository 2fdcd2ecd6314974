package txn_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// A transaction of any number of keys finds each again, whatever order the operations are in, and
// after Reset it is as new.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	var x txn.Transaction
	key := func(i int) []byte { return fmt.Appendf(nil, "key %d", i) }
	for _, n := range []int{1, 24, 3000, 24} {
		x.Reset()
		if len(x.Keys)+len(x.Conditions)+len(x.Writes)+len(x.Once)+len(x.Settles) != 0 {
			t.Fatalf("not empty: %+v", x)
		}
		for i := range n {
			if f := x.If(key(i), txn.Condition{Check: txn.Absent}); f != statestore.None {
				t.Fatal(f)
			}
		}
		for i := range n { // the other way round, two for each key
			for _, id := range []string{"a", "b"} {
				if f := x.Remember(key(n-1-i), txn.Once{Message: []byte(id)}); f != statestore.None {
					t.Fatal(f)
				}
			}
		}
		for i := range n {
			k := (7*i + 3) % n
			if n%7 == 0 {
				k = i
			}
			if f := x.Then(txn.Write{Command: statestore.Command{Verb: statestore.Set, Key: key(k)}}); f != statestore.None {
				t.Fatalf("write %d of %d, of key %d: %v", i, n, k, f)
			}
			if f := x.Settle(txn.Settle{PacketID: uint16(i + 1)}); f != statestore.None {
				t.Fatal(f)
			}
		}
		if len(x.Keys) != n {
			t.Errorf("%d keys, want %d", len(x.Keys), n)
		}
		for i := range n {
			if c := &x.Conditions[i]; string(x.Keys[c.Key]) != string(key(i)) {
				t.Errorf("condition %d is on %q", i, x.Keys[c.Key])
			}
			if o := &x.Once[2*i+1]; string(x.Keys[o.Key]) != string(key(n-1-i)) {
				t.Errorf("once %d is of %q", 2*i+1, x.Keys[o.Key])
			}
			if w := &x.Writes[i]; string(x.Keys[w.Key]) != string(w.Command.Key) {
				t.Errorf("write %d is of %q", i, x.Keys[w.Key])
			}
		}
		last := n - 1
		for what, f := range map[string]statestore.Fault{
			"a condition": x.If(key(last), txn.Condition{Check: txn.Exists}),
			"a write":     x.Then(txn.Write{Command: statestore.Command{Verb: statestore.Del, Key: key(last)}}),
			"a message":   x.Remember(key(last), txn.Once{Message: []byte("a")}),
		} {
			if f != statestore.SameKey {
				t.Errorf("%s twice: %v", what, f)
			}
		}
		if f := x.Settle(txn.Settle{PacketID: uint16(n)}); f != statestore.SettledTwice {
			t.Errorf("a delivery twice: %v", f)
		}
	}
}
