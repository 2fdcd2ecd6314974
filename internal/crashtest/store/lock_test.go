package store

import "testing"

func TestTenures(t *testing.T) {
	t.Parallel()
	a := Tenure{lock: "l", holder: "a", from: 10, to: 20, token: issued(1)}
	cases := []struct {
		name string
		next Tenure
		good bool
	}{
		{"one after the other", Tenure{lock: "l", holder: "b", from: 20, to: 30, token: issued(2)}, true},
		{"both at once", Tenure{lock: "l", holder: "b", from: 19, to: 30, token: issued(2)}, false},
		{"a lower token", Tenure{lock: "l", holder: "b", from: 25, to: 30, token: issued(1)}, false},
		{"renewed", Tenure{lock: "l", holder: "a", from: 15, to: 30, token: issued(2)}, true},
		{"another lock", Tenure{lock: "m", holder: "b", from: 15, to: 30, token: issued(1)}, true},
		{"a reply that came too late", Tenure{lock: "l", holder: "b", from: 30, to: 15, token: issued(1)}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := CheckTenures([]Tenure{c.next, a}); (len(got) == 0) != c.good {
				t.Errorf("got %q, want good: %v", got, c.good)
			}
		})
	}
}
