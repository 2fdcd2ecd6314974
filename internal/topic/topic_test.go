package topic

import (
	"strings"
	"testing"
)

func TestValidName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"":                          false, // [MQTT-4.7.3-1]
		"/":                         true,
		"/finance":                  true,
		"a//b":                      true,
		"Accounts payable":          true,
		"$SYS/uptime":               true,
		"sport/+":                   false, // [MQTT-3.3.2-2]
		"sport#":                    false,
		"a\x00b":                    false, // [MQTT-4.7.3-2]
		strings.Repeat("x", 65_535): true,
		strings.Repeat("x", 65_536): false, // [MQTT-4.7.3-3]
	} {
		if got := ValidName([]byte(name)); got != want {
			t.Errorf("ValidName(%.20q) = %v, want %v", name, got, want)
		}
	}
}

func TestValidFilter(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]bool{
		"sport/tennis/player1/#":      true,
		"#":                           true,
		"sport/tennis/#":              true,
		"sport/tennis#":               false, // [MQTT-4.7.1-1]
		"sport/tennis/#/ranking":      false, // [MQTT-4.7.1-1]
		"##":                          false,
		"+":                           true,
		"+/tennis/#":                  true,
		"sport+":                      false, // [MQTT-4.7.1-2]
		"+sport":                      false,
		"sport/+x/y":                  false,
		"sport/+/player1":             true,
		"/+":                          true,
		"+/+":                         true,
		"//":                          true,
		"":                            false, // [MQTT-4.7.3-1]
		"a\x00":                       false, // [MQTT-4.7.3-2]
		strings.Repeat("+/", 9) + "#": true,
		strings.Repeat("x", 65_536):   false, // [MQTT-4.7.3-3]
	} {
		if got := ValidFilter(filter); got != want {
			t.Errorf("ValidFilter(%.20q) = %v, want %v", filter, got, want)
		}
	}
}

func TestSplitShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter, group, rest string
		ok, valid           bool
	}{
		{"sport/tennis", "", "sport/tennis", false, false},
		{"$share", "", "$share", false, false},
		{"$shared/g/t", "", "$shared/g/t", false, false},
		{"$share/consumer1/sport/tennis/+", "consumer1", "sport/tennis/+", true, true},
		{"$share/consumer1//finance", "consumer1", "/finance", true, true},
		{"$share/g/#", "g", "#", true, true},
		{"$share/g", "g", "", true, false},  // no filter [MQTT-4.8.2-2]
		{"$share/g/", "g", "", true, false}, // empty filter
		{"$share//t", "", "t", true, false}, // empty group [MQTT-4.8.2-1]
		{"$share/", "", "", true, false},
		{"$share/g+/t", "g+", "t", true, false}, // wildcard in the group [MQTT-4.8.2-2]
		{"$share/#/t", "#", "t", true, false},
		{"$share/g/a#", "g", "a#", true, false},
	} {
		group, rest, ok, valid := SplitShare(c.filter)
		if group != c.group || rest != c.rest || ok != c.ok || valid != c.valid {
			t.Errorf("SplitShare(%q) = %q, %q, %v, %v; want %q, %q, %v, %v",
				c.filter, group, rest, ok, valid, c.group, c.rest, c.ok, c.valid)
		}
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int{"a": 1, "a/b": 2, "/": 2, "/a//": 4, "": 1} {
		if got := Levels(s); got != want {
			t.Errorf("Levels(%q) = %d, want %d", s, got, want)
		}
	}
}

// matchCases are the examples of MQTT 5, section 4.7, and their neighbours.
var matchCases = []struct {
	filter, name string
	want         bool
}{
	{"sport/tennis/player1/#", "sport/tennis/player1", true},
	{"sport/tennis/player1/#", "sport/tennis/player1/ranking", true},
	{"sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true},
	{"sport/tennis/player1/#", "sport/tennis/player10", false},
	{"sport/#", "sport", true},
	{"sport/#", "sport/", true},
	{"sport/#", "sports", false},
	{"#", "/", true},
	{"#", "a/b/c", true},
	{"sport/tennis/+", "sport/tennis/player1", true},
	{"sport/tennis/+", "sport/tennis/player1/ranking", false},
	{"sport/+", "sport", false},
	{"sport/+", "sport/", true},
	{"+/+", "/finance", true},
	{"/+", "/finance", true},
	{"+", "/finance", false},
	{"+/tennis/#", "a/tennis", true},
	{"+/tennis/#", "a/tennis/b/c", true},
	{"+/tennis/#", "a/tenni", false},
	{"+/+/+", "//", true},
	{"+/+", "//", false},
	{"+/#", "a", true},
	{"a/+/#", "a", false},
	{"#", "$SYS", false}, // [MQTT-4.7.2-1]
	{"#", "$SYS/uptime", false},
	{"+/monitor/Clients", "$SYS/monitor/Clients", false},
	{"$SYS/#", "$SYS/", true},
	{"$SYS/#", "$SYS", true},
	{"$SYS/monitor/+", "$SYS/monitor/Clients", true},
	{"+/$x", "a/$x", true}, // only the first level is apart
	{"a/#", "a/$x", true},
	{"ACCOUNTS", "Accounts", false},
	{"Accounts payable", "Accounts payable", true},
	{"a", "a/", false},
	{"a/", "a", false},
	{"a/b", "a/b/c", false},
	{"a/b/c", "a/b", false},
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range matchCases {
		if got := Matches(c.filter, []byte(c.name)); got != c.want {
			t.Errorf("Matches(%q, %q) = %v, want %v", c.filter, c.name, got, c.want)
		}
	}
}

// Both indexes give the same answers.
func TestIndexesAgreeWithTheTable(t *testing.T) {
	t.Parallel()
	for _, c := range matchCases {
		var filters Index[int]
		filters.Insert(c.filter, 1)
		if got := len(filters.Match([]byte(c.name), nil)) == 1; got != c.want {
			t.Errorf("Index: %q matches %q: %v, want %v", c.filter, c.name, got, c.want)
		}
		var names Names[int]
		names.Put(c.name, 1)
		found := 0
		names.Match(c.filter, "", 10, func(*Entry[int]) { found++ })
		if got := found == 1; got != c.want {
			t.Errorf("Names: %q matches %q: %v, want %v", c.filter, c.name, got, c.want)
		}
	}
}

// naiveMatches is MQTT 5, section 4.7, by splitting, for comparison.
func naiveMatches(filter, name string) bool {
	if strings.HasPrefix(name, "$") && (strings.HasPrefix(filter, "#") || strings.HasPrefix(filter, "+")) {
		return false
	}
	fs, ns := strings.Split(filter, "/"), strings.Split(name, "/")
	for i, f := range fs {
		if f == "#" {
			return true
		}
		if i >= len(ns) || f != "+" && f != ns[i] {
			return false
		}
	}
	return len(fs) == len(ns)
}

// naiveValidFilter is MQTT 5, sections 4.7.1 and 4.7.3, by splitting.
func naiveValidFilter(filter string) bool {
	if filter == "" || len(filter) > 65_535 || strings.ContainsRune(filter, 0) {
		return false
	}
	levels := strings.Split(filter, "/")
	for i, l := range levels {
		if strings.Contains(l, "+") && l != "+" {
			return false
		}
		if strings.Contains(l, "#") && (l != "#" || i != len(levels)-1) {
			return false
		}
	}
	return true
}

func FuzzValidFilter(f *testing.F) {
	for _, c := range matchCases {
		f.Add(c.filter)
	}
	f.Add("a+/b")
	f.Add("a/#/b")
	f.Fuzz(func(t *testing.T, filter string) {
		if got, want := ValidFilter(filter), naiveValidFilter(filter); got != want {
			t.Fatalf("ValidFilter(%q) = %v, want %v", filter, got, want)
		}
		group, rest, ok, valid := SplitShare(filter)
		if valid && (!ok || "$share/"+group+"/"+rest != filter || !naiveValidFilter(rest)) {
			t.Fatalf("SplitShare(%q) = %q, %q, %v, %v", filter, group, rest, ok, valid)
		}
	})
}

func FuzzMatches(f *testing.F) {
	for _, c := range matchCases {
		f.Add(c.filter, c.name)
	}
	f.Fuzz(func(t *testing.T, filter, name string) {
		if !ValidFilter(filter) || !ValidName([]byte(name)) {
			return
		}
		want := naiveMatches(filter, name)
		if got := Matches(filter, []byte(name)); got != want {
			t.Fatalf("Matches(%q, %q) = %v, want %v", filter, name, got, want)
		}
		var filters Index[int]
		filters.Insert(filter, 1)
		if got := len(filters.Match([]byte(name), nil)) == 1; got != want {
			t.Fatalf("Index: %q matches %q: %v, want %v", filter, name, got, want)
		}
		if !filters.Remove(filter, 1) || filters.Len() != 0 {
			t.Fatalf("Remove(%q) left %d", filter, filters.Len())
		}
		var names Names[int]
		names.Put(name, 1)
		found := 0
		names.Match(filter, "", 10, func(*Entry[int]) { found++ })
		if got := found == 1; got != want {
			t.Fatalf("Names: %q matches %q: %v, want %v", filter, name, got, want)
		}
	})
}
