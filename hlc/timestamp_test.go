package hlc_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

func ts(wall, counter uint64, node string) hlc.Timestamp {
	return hlc.Timestamp{Wall: wall, Counter: counter, Node: node}
}

// Protocol, section 4: exactly three parts, two unsigned 64-bit decimals and a
// node ID that isn't empty and has no colon; leading zeros are accepted.
var wellFormed = []struct {
	text string
	want hlc.Timestamp
}{
	{"1696374425000:1:StateStore", ts(1696374425000, 1, "StateStore")},
	{"0:0:n", ts(0, 0, "n")},
	{"001696374425000:00001:CLIENT", ts(1696374425000, 1, "CLIENT")},
	{"18446744073709551615:18446744073709551615:n", ts(math.MaxUint64, math.MaxUint64, "n")},
	{"000000000000000000000000018446744073709551615:0:n", ts(math.MaxUint64, 0, "n")},
	{"1:2: a node / with anything but a colon é", ts(1, 2, " a node / with anything but a colon é")},
}

var malformed = []string{
	"", ":", "::", "1", "1:2", "1:2:", ":2:n", "1::n", "1:2:n:", "1:2:n:m", "1:2::n",
	"-1:2:n", "+1:2:n", "1:-2:n", " 1:2:n", "1 :2:n", "1:2 :n", "0x1:2:n", "1_0:2:n", "1.0:2:n", "a:b:c",
	"18446744073709551616:0:n", "1:18446744073709551616:n", "184467440737095516150:0:n",
	"99999999999999999999999999:0:n", "-", "١:2:n",
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tc := range wellFormed {
		for name, parse := range parsers {
			got, err := parse(tc.text)
			if err != nil || got != tc.want {
				t.Errorf("%s(%q) = %v, %v; want %v", name, tc.text, got, err, tc.want)
			}
		}
	}
	for _, text := range malformed {
		for name, parse := range parsers {
			got, err := parse(text)
			if !errors.Is(err, hlc.ErrMalformed) || !got.IsZero() {
				t.Errorf("%s(%q) = %v, %v; want ErrMalformed", name, text, got, err)
			}
		}
	}
}

var parsers = map[string]func(string) (hlc.Timestamp, error){
	"Parse":      hlc.Parse,
	"ParseBytes": func(s string) (hlc.Timestamp, error) { return hlc.ParseBytes([]byte(s)) },
}

// Protocol, section 4: we print without padding.
func TestStringHasNoPadding(t *testing.T) {
	t.Parallel()
	got, err := hlc.Parse("001696374425000:00001:StateStore")
	if err != nil {
		t.Fatal(err)
	}
	if want := "1696374425000:1:StateStore"; got.String() != want {
		t.Errorf("printed %s, want %s", got, want)
	}
	text, err := got.AppendText([]byte("__ts="))
	if want := "__ts=1696374425000:1:StateStore"; err != nil || string(text) != want {
		t.Errorf("AppendText = %s, %v; want %s", text, err, want)
	}
}

func TestZeroIsNoTimestamp(t *testing.T) {
	t.Parallel()
	var none hlc.Timestamp
	if !none.IsZero() || none.String() != "-" {
		t.Errorf("the zero value: IsZero %v, prints %q", none.IsZero(), none)
	}
	if parsed, err := hlc.Parse("0:0:n"); err != nil || parsed.IsZero() {
		t.Errorf("0:0:n is a timestamp, but reads as %v, %v", parsed, err)
	}
}

// Protocol, section 4: ordered by wall clock, then counter, then node ID bytes.
func TestCompare(t *testing.T) {
	t.Parallel()
	rising := []hlc.Timestamp{
		{},
		ts(0, 0, "a"),
		ts(9, 99, "z"),
		ts(10, 0, "a"),
		ts(10, 9, "z"),
		ts(10, 10, "B"),
		ts(10, 10, "a"),
		ts(10, 10, "ab"),
		ts(10, 10, "b"),
		ts(10, 10, "é"),
		ts(math.MaxUint64, 0, "a"),
		ts(math.MaxUint64, math.MaxUint64, "a"),
	}
	for i, a := range rising {
		for j, b := range rising {
			if got := a.Compare(b); sign(got) != sign(i-j) {
				t.Errorf("%v.Compare(%v) = %d", a, b, got)
			}
		}
	}
}

func sign(n int) int { return max(-1, min(1, n)) }

func TestCloneSharesNothing(t *testing.T) {
	t.Parallel()
	b := []byte("1:2:node")
	view, err := hlc.ParseBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	kept := view.Clone()
	copy(b, "9:9:late")
	if want := ts(1, 2, "node"); kept != want {
		t.Errorf("the clone has changed to %v", kept)
	}
	if want := ts(1, 2, "late"); view != want {
		t.Errorf("ParseBytes copied the node ID: %v", view)
	}
}

// Protocol, section 4, the issuing rule:
//
//	w = max(wall, ts.wall, last.wall)
//	c = 1 + the largest counter among ts and last whose wall part is w; 1 if there is none
func TestNext(t *testing.T) {
	t.Parallel()
	none := hlc.Timestamp{}
	for _, tc := range []struct {
		rule     string
		wall     uint64
		last, ts hlc.Timestamp
		want     string
	}{
		{"nothing known: the wall clock, counter at least 1", 100, none, none, "100:1:S"},
		{"all zero: counter at least 1", 0, none, none, "0:1:S"},
		{"the documented example: the request's own millisecond, its counter plus one", 1696374425000, none, ts(1696374425000, 0, "CLIENT"), "1696374425000:1:S"},
		{"the wall clock is latest: counters of other milliseconds don't count", 100, ts(99, 7, "S"), ts(98, 9, "c"), "100:1:S"},
		{"last is latest", 100, ts(120, 7, "S"), ts(98, 9, "c"), "120:8:S"},
		{"the request is latest", 100, ts(99, 7, "S"), ts(150, 9, "c"), "150:10:S"},
		{"request and last at the same latest time: the larger counter", 100, ts(150, 7, "S"), ts(150, 9, "c"), "150:10:S"},
		{"the same, the other way round", 100, ts(150, 11, "S"), ts(150, 9, "c"), "150:12:S"},
		{"all three at the same time", 150, ts(150, 11, "S"), ts(150, 12, "c"), "150:13:S"},
		{"the wall clock was stepped back", 1, ts(150, 3, "S"), none, "150:4:S"},
		{"the highest counter that is issued is 2^31-3", 1, ts(150, 1<<31-4, "S"), none, "150:2147483645:S"},
		{"at the bound the wall part advances by 1", 1, ts(150, 1<<31-3, "S"), none, "151:1:S"},
		{"a request's counter beyond the bound", 1, none, ts(150, math.MaxUint64, "c"), "151:1:S"},
		{"a counter beyond the bound at an earlier time doesn't count", 151, none, ts(150, math.MaxUint64, "c"), "151:1:S"},
	} {
		if got := hlc.Next(tc.wall, tc.last, tc.ts, "S"); got.String() != tc.want {
			t.Errorf("%s: Next(%d, %v, %v) = %v, want %s", tc.rule, tc.wall, tc.last, tc.ts, got, tc.want)
		}
	}
}

func TestNextIsLaterThanLastAndRequest(t *testing.T) {
	t.Parallel()
	// Few walls, so that they often meet, and counters around the bound.
	stamp := rapid.Custom(func(t *rapid.T) hlc.Timestamp {
		counter := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.Uint64Range(1<<31-6, 1<<31), rapid.Uint64())
		return ts(rapid.Uint64Range(0, 5).Draw(t, "wall"), counter.Draw(t, "counter"), "n")
	})
	rapid.Check(t, func(t *rapid.T) {
		wall := rapid.Uint64Range(0, 5).Draw(t, "wall clock")
		last, request := stamp.Draw(t, "last"), stamp.Draw(t, "request")
		got := hlc.Next(wall, last, request, "n")
		if got.Compare(last) <= 0 || got.Compare(request) <= 0 {
			t.Fatalf("%v isn't later than %v and %v", got, last, request)
		}
		if got.Wall < wall || got.Counter < 1 || got.Counter >= 1<<31-2 {
			t.Fatalf("%v at %d is out of bounds", got, wall)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, tc := range wellFormed {
		f.Add(tc.text)
	}
	for _, text := range malformed {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := hlc.Parse(text)
		if want, ok := naiveParse(text); ok != (err == nil) || got != want {
			t.Fatalf("Parse(%q) = %v, %v; want %v, %v", text, got, err, want, ok)
		}
		if err != nil {
			return
		}
		if again, err := hlc.Parse(got.String()); err != nil || again != got {
			t.Fatalf("%q printed %q reads %v, %v", text, got, again, err)
		}
	})
}

// naiveParse reads a timestamp in the most obvious way.
func naiveParse(text string) (hlc.Timestamp, bool) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 || parts[2] == "" {
		return hlc.Timestamp{}, false
	}
	wall, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return hlc.Timestamp{}, false
	}
	counter, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return hlc.Timestamp{}, false
	}
	return ts(wall, counter, parts[2]), true
}

func TestAllocations(t *testing.T) {
	text := []byte("1696374425000:1:StateStore")
	last := ts(1696374425000, 1, "StateStore")
	buf := make([]byte, 0, 64)
	allocs := testing.AllocsPerRun(100, func() {
		parsed, err := hlc.ParseBytes(text)
		if err != nil || parsed.Compare(last) != 0 {
			t.Fatal(parsed, err)
		}
		hlc.Next(1, last, parsed, "StateStore").Append(buf)
		if _, err := hlc.ParseBytes(text[:5]); err == nil {
			t.Fatal("parsed")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkParseBytes(b *testing.B) {
	text := []byte("001696374425000:00001:StateStore")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hlc.ParseBytes(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	buf := make([]byte, 0, 64)
	at := ts(1696374425000, 1, "StateStore")
	b.ReportAllocs()
	for b.Loop() {
		at.Append(buf)
	}
}

func BenchmarkNext(b *testing.B) {
	last := ts(1696374425000, 1, "StateStore")
	b.ReportAllocs()
	for b.Loop() {
		last = hlc.Next(1696374425001, last, last, "StateStore")
	}
}
