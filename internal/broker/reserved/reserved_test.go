package reserved

import "testing"

func TestTopics(t *testing.T) {
	t.Parallel()
	r := Topics{Handlers: []string{"ask"}, Servers: []string{"own"}}
	for _, c := range []struct {
		name                      string
		handled, protected, below bool
	}{
		{"ask", true, false, false}, {"ask/x", false, false, false}, {"own", false, true, false}, {"own/x", false, true, true},
		{"owner", false, true, false}, {"ow", false, false, false}, {"$SYS/broker", false, true, false}, {"$SYS/broker/connection/b/state", false, false, false}, {"", false, false, false},
	} {
		if r.Handled([]byte(c.name)) != c.handled || r.Protected([]byte(c.name)) != c.protected || r.Below(c.name) != c.below {
			t.Errorf("%q: handled %v, protected %v, below %v; want %+v", c.name, r.Handled([]byte(c.name)), r.Protected([]byte(c.name)), r.Below(c.name), c)
		}
	}
	for name, want := range map[string]bool{"a/b": false, "a/b/c": true, "": false, "///": true} {
		if TooManyLevels([]byte(name), 2) != want {
			t.Errorf("%q has more than 2 levels: %v", name, !want)
		}
	}
}
