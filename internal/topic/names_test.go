package topic

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// page is one call of Match as a list.
func page[V any](x *Names[V], filter, after string, limit int) (names []string, next string, more bool) {
	next, more = x.Match(filter, after, limit, func(e *Entry[V]) { names = append(names, e.Name()) })
	return names, next, more
}

// all is every page of a walk.
func all[V any](x *Names[V], filter string, limit int) (names []string) {
	for after, more := "", true; more; {
		var p []string
		p, after, more = page(x, filter, after, limit)
		names = append(names, p...)
	}
	return names
}

func TestNamesAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var x Names[int]
		model := map[string]int{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				name, v := drawName(t), rapid.Int().Draw(t, "value")
				old, replaced := x.Put(name, v)
				want, had := model[name]
				if old != want || replaced != had {
					t.Fatalf("Put(%q) = %v, %v; want %v, %v", name, old, replaced, want, had)
				}
				model[name] = v
			},
			"delete": func(t *rapid.T) {
				name := drawName(t)
				old, found := x.Delete([]byte(name))
				want, had := model[name]
				if old != want || found != had {
					t.Fatalf("Delete(%q) = %v, %v; want %v, %v", name, old, found, want, had)
				}
				delete(model, name)
			},
			"get": func(t *rapid.T) {
				name := drawName(t)
				got, found := x.Get([]byte(name))
				if want, had := model[name]; got != want || found != had {
					t.Fatalf("Get(%q) = %v, %v; want %v, %v", name, got, found, want, had)
				}
			},
			"": func(t *rapid.T) {
				filter := drawFilter(t)
				var want []string
				for name := range model {
					if naiveMatches(filter, name) {
						want = append(want, name)
					}
				}
				slices.Sort(want)
				got := all(&x, filter, rapid.IntRange(1, 5).Draw(t, "limit"))
				if !slices.Equal(got, want) {
					t.Fatalf("Match(%q) = %q, want %q", filter, got, want)
				}
				after := drawName(t)
				i, _ := slices.BinarySearch(want, after+"\x00")
				rest, _, _ := page(&x, filter, after, 1000)
				if !slices.Equal(rest, want[i:]) {
					t.Fatalf("Match(%q after %q) = %q, want %q", filter, after, rest, want[i:])
				}
				if x.Len() != len(model) {
					t.Fatalf("Len() = %d, want %d", x.Len(), len(model))
				}
			},
		})
	})
}

// Given a walk under way, when names come and go, then those that stay are found
// exactly once.
func TestNamesMatchResumesWhileNamesComeAndGo(t *testing.T) {
	t.Parallel()
	var x Names[int]
	var stays []string
	for i := range 1000 {
		name := fmt.Sprintf("n/%04d", i)
		x.Put(name, i)
		if i%2 == 1 {
			stays = append(stays, name)
		}
	}
	var found []string
	turn := 0
	for after, more := "", true; more; turn++ {
		var p []string
		p, after, more = page(&x, "n/#", after, 7)
		found = append(found, p...)
		if more { // even names go, and the one the cursor names; others come
			x.Delete([]byte(after))
			x.Put(after+"-", 0)
			for i := 0; i < 1000; i += 2 {
				x.Delete(fmt.Appendf(nil, "n/%04d", i))
			}
			x.Put(fmt.Sprintf("m/%d", turn), 0)
		}
	}
	for _, name := range stays {
		if n := count(found, name); n != 1 {
			t.Errorf("%s was found %d times", name, n)
		}
	}
	if !slices.IsSorted(found) {
		t.Error("pages are not in order")
	}
}

func count(names []string, name string) (n int) {
	for _, s := range names {
		if s == name {
			n++
		}
	}
	return n
}

// The value handed out is the current one, and yield may use the index.
func TestNamesMatchYieldsWithoutLock(t *testing.T) {
	t.Parallel()
	var x Names[string]
	for _, name := range []string{"a/1", "a/2", "a/3"} {
		x.Put(name, "old")
	}
	var got []string
	x.Match("a/+", "", 10, func(e *Entry[string]) {
		v, found := x.Value(e)
		got = append(got, fmt.Sprint(e.Name(), "=", v, found))
		x.Put("a/2", "new")
		x.Delete([]byte("a/3"))
	})
	if want := []string{"a/1=oldtrue", "a/2=newtrue", "a/3=false"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A name that is deleted and put again after Match has found it has its new value.
func TestNamesValueAfterDelete(t *testing.T) {
	t.Parallel()
	var x Names[string]
	x.Put("a", "old")
	for _, filter := range []string{"a", "#"} {
		var found *Entry[string]
		x.Match(filter, "", 1, func(e *Entry[string]) { found = e })
		x.Delete([]byte("a"))
		if v, ok := x.Value(found); ok {
			t.Errorf("%s: a deleted name has the value %q", filter, v)
		}
		x.Put("a", "new")
		if v, ok := x.Value(found); v != "new" || !ok {
			t.Errorf("%s: a name that was put again has %q, %v", filter, v, ok)
		}
	}
}

func TestNamesMatchLimits(t *testing.T) {
	t.Parallel()
	var x Names[int]
	for i := range 1000 {
		x.Put(fmt.Sprintf("%03d/x", i), i)
	}
	for _, limit := range []int{1, pageNames - 1, pageNames, pageNames + 1, 999} {
		names, next, more := page(&x, "#", "", limit)
		if len(names) != limit || !more || next != names[limit-1] {
			t.Errorf("limit %d: %d names, next %q, more %v", limit, len(names), next, more)
		}
	}
	for _, limit := range []int{1001, 5000} {
		if names, _, more := page(&x, "+/x", "", limit); len(names) != 1000 || more {
			t.Errorf("limit %d: %d names, more %v", limit, len(names), more)
		}
	}
	if names, next, more := page(&x, "#", "500/x", 0); len(names) != 0 || !more || next != "500/x" {
		t.Errorf("limit 0: %q, next %q, more %v; want to stay where it was", names, next, more)
	}
	if names, _, more := page(&x, "500/x", "", 1); len(names) != 1 || more {
		t.Errorf("without wildcards: %q, more %v", names, more)
	}
}

// steps counts the entries that a walk looks at.
func steps(x *Names[int], filter string) (n int) {
	w := walk[int]{filter: filter}
	w.start("")
	for !w.done {
		e := x.list.seek(w.key)
		if e == nil {
			break
		}
		n++
		switch w.judge(e.name) {
		case matches, step:
			w.key = append(append(w.key[:0], e.name...), 0)
		case end:
			w.done = true
		case jump:
		}
	}
	return n
}

func TestNamesMatchJumpsOverSubtrees(t *testing.T) {
	t.Parallel()
	var x Names[int]
	for i := range 10 {
		for j := range 500 {
			x.Put(fmt.Sprintf("a/%d/b/%d", i, j), 0)
			x.Put(fmt.Sprintf("z/%d/%d", i, j), 0)
		}
		x.Put(fmt.Sprintf("a/%d/c", i), 0)
	}
	for filter, atMost := range map[string]int{
		"a/+/c":    40, // four looks per second level
		"+/3/c":    10,
		"a/4/#":    503,
		"+/+/none": 70,
		"b/#":      1,
	} {
		if n := steps(&x, filter); n > atMost {
			t.Errorf("%s looked at %d of %d names, want at most %d", filter, n, x.Len(), atMost)
		}
	}
}

func TestNamesConcurrently(t *testing.T) {
	t.Parallel()
	var x Names[int]
	for i := range 200 {
		x.Put(fmt.Sprintf("stays/%d", i), i)
	}
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			for i := range 300 {
				name := fmt.Sprintf("stays/%d/%d", i%200, g)
				x.Put(name, i)
				x.Put(name, i+1)
				x.Get([]byte(name))
				x.Delete([]byte(name))
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if n := len(all(&x, "stays/+", 13)); n != 200 {
				t.Errorf("%d names found, want 200", n)
			}
		}
	})
	wg.Wait()
	if x.Len() != 200 {
		t.Errorf("Len() = %d, want 200", x.Len())
	}
}

func manyNames(n int) *Names[int] {
	x := &Names[int]{}
	for i := range n {
		x.Put(fmt.Sprintf("site/%d/device/%d/%s", i%100, i/10, []string{"state", "alarm"}[i%2]), i)
	}
	return x
}

func TestNamesGetAndPutAllocateNothing(t *testing.T) {
	x := manyNames(1000)
	name, key := "site/7/device/0/alarm", []byte("site/7/device/0/alarm")
	if _, found := x.Get(key); !found {
		t.Fatal("the name is not there")
	}
	if n := testing.AllocsPerRun(100, func() { x.Put(name, 1); x.Get(key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNames(b *testing.B) {
	x := manyNames(1_000_000)
	name := "site/7/device/5000/alarm"
	b.Run("Get", func(b *testing.B) {
		b.ReportAllocs()
		key := []byte(name)
		for b.Loop() {
			x.Get(key)
		}
	})
	b.Run("Put", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x.Put(name, 1)
		}
	})
	b.Run("PutDelete", func(b *testing.B) {
		b.ReportAllocs()
		name := name + "!"
		key := []byte(name)
		for b.Loop() {
			x.Put(name, 1)
			x.Delete(key)
		}
	})
	for _, filter := range []string{"#", "site/8/device/+/state", "site/+/device/+/none", "site/+/device/5000/alarm"} {
		b.Run("Match "+strings.ReplaceAll(filter, "/", "-"), func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				for after, more := "", true; more; {
					after, more = x.Match(filter, after, 1000, func(*Entry[int]) { n++ })
				}
			}
			b.ReportMetric(float64(n)/float64(b.N), "names/op")
		})
	}
}
