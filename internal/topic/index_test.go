package topic

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// level draws few and treacherous levels, so that names and filters meet: bytes
// on both sides of '/', empty levels, prefixes of each other, a leading $.
func level(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "a b", "a!", "ab", "a0", "", "$s", "é"}).Draw(t, "level")
}

func drawName(t *rapid.T) string {
	levels := make([]string, rapid.IntRange(1, 4).Draw(t, "levels"))
	for i := range levels {
		levels[i] = level(t)
	}
	if name := strings.Join(levels, "/"); name != "" {
		return name
	}
	return "/"
}

func drawFilter(t *rapid.T) string {
	levels := make([]string, rapid.IntRange(1, 4).Draw(t, "levels"))
	for i := range levels {
		if rapid.IntRange(0, 2).Draw(t, "wild") == 0 {
			levels[i] = "+"
		} else {
			levels[i] = level(t)
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "multi") == 0 {
		levels[len(levels)-1] = "#"
	}
	if filter := strings.Join(levels, "/"); filter != "" {
		return filter
	}
	return "#"
}

func TestIndexAgainstModel(t *testing.T) {
	t.Parallel()
	type pair struct {
		filter string
		value  int
	}
	rapid.Check(t, func(t *rapid.T) {
		var x Index[int]
		model := map[pair]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				p := pair{drawFilter(t), rapid.IntRange(0, 80).Draw(t, "value")}
				if added := x.Insert(p.filter, p.value); added == model[p] {
					t.Fatalf("Insert(%v) = %v", p, added)
				}
				model[p] = true
			},
			"insert many": func(t *rapid.T) { // over the border to a large set
				filter := drawFilter(t)
				for v := range rapid.IntRange(0, 80).Draw(t, "values") {
					x.Insert(filter, v)
					model[pair{filter, v}] = true
				}
			},
			"remove": func(t *rapid.T) {
				p := pair{drawFilter(t), rapid.IntRange(0, 80).Draw(t, "value")}
				if removed := x.Remove(p.filter, p.value); removed != model[p] {
					t.Fatalf("Remove(%v) = %v", p, removed)
				}
				delete(model, p)
			},
			"remove all": func(t *rapid.T) {
				filter := drawFilter(t)
				for p := range maps.Clone(model) {
					if p.filter == filter {
						if !x.Remove(p.filter, p.value) {
							t.Fatalf("Remove(%v) = false", p)
						}
						delete(model, p)
					}
				}
			},
			"": func(t *rapid.T) {
				name := drawName(t)
				var want []int
				for p := range model {
					if naiveMatches(p.filter, name) {
						want = append(want, p.value)
					}
				}
				got := x.Match([]byte(name), nil)
				slices.Sort(want)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Fatalf("Match(%q) = %v, want %v of %v", name, got, want, model)
				}
				if x.Len() != len(model) {
					t.Fatalf("Len() = %d, want %d", x.Len(), len(model))
				}
				x.wild.root.check(t, true)
			},
		})
		for p := range model {
			x.Remove(p.filter, p.value)
		}
		if x.Len() != 0 || x.wild.root.nodes() > 1 || x.wild.root.below != nil {
			t.Fatalf("emptied, but %d pairs and %+v are left", x.Len(), x.wild.root)
		}
	})
}

// nodes counts a node and those below it.
func (n *node[V]) nodes() (all int) {
	all = 1
	if n.plus != nil {
		all += n.plus.nodes()
	}
	for _, c := range n.children {
		all += c.nodes()
	}
	return all
}

// check fails if a node could be part of another one, or is found by another level than its first.
func (n *node[V]) check(t *rapid.T, root bool) {
	_, children := n.only()
	if !root && n.here == nil && n.below == nil && children < 2 {
		t.Fatalf("the node %q has no filter and %d children", n.path, children)
	}
	for first, c := range n.children {
		if first != firstLevel(c.path) || first == "+" {
			t.Fatalf("the node %q is found by %q", c.path, first)
		}
		c.check(t, false)
	}
	if c := n.plus; c != nil {
		if firstLevel(c.path) != "+" {
			t.Fatalf("the node %q is found by +", c.path)
		}
		c.check(t, false)
	}
}

// Filters of many levels take no more nodes than those of few, whether they have levels in common or not,
// and no more comparisons.
func TestDeepFiltersTakeFewNodes(t *testing.T) {
	t.Parallel()
	const filters = 1000
	deep := strings.Repeat("/x", 120)
	for name, filterOf := range map[string]func(i int) string{
		"nothing in common":        func(i int) string { return fmt.Sprintf("%d/+%s/y", i, deep) },
		"all but the last level":   func(i int) string { return fmt.Sprintf("x/+%s/%d", deep, i) },
		"pairs with all but one":   func(i int) string { return fmt.Sprintf("%d/+%s/%d", i/2, deep, i%2) },
		"wildcards in every place": func(i int) string { return fmt.Sprintf("%d%s/%d", i, strings.Repeat("/+", 120), i) },
		"all levels below":         func(i int) string { return fmt.Sprintf("%d%s/#", i, deep) },
	} {
		var x Index[int]
		for i := range filters {
			x.Insert(filterOf(i), i)
		}
		if n := x.wild.root.nodes(); n > 2*filters {
			t.Errorf("%s: %d nodes for %d filters", name, n, filters)
		}
		topic := strings.ReplaceAll(strings.TrimSuffix(filterOf(filters-1), "/#"), "+", "z")
		found, compared := x.MatchCounting([]byte(topic), nil)
		if !slices.Equal(found, []int{filters - 1}) || compared > 4 {
			t.Errorf("%s: %v match after %d comparisons", name, found, compared)
		}
		for i := range filters {
			x.Remove(filterOf(i), i)
		}
		if n := x.wild.root.nodes(); n != 1 {
			t.Errorf("%s: %d nodes are left", name, n)
		}
	}
}

// 100,000 subscribers of one filter come and go in constant time each; a scan
// per removal would take minutes.
func TestIndexManyValuesOnOneFilter(t *testing.T) {
	t.Parallel()
	const subscribers = 100_000
	for _, filter := range []string{"news", "news/+", "#"} {
		var x Index[int]
		for v := range subscribers {
			x.Insert(filter, v)
		}
		for v := 0; v < subscribers; v += 2 {
			if !x.Remove(filter, v) {
				t.Fatalf("%d was not there", v)
			}
		}
		got := x.Match([]byte(strings.ReplaceAll(filter, "+", "x")), nil)
		if filter == "#" {
			got = x.Match([]byte("news"), nil)
		}
		slices.Sort(got)
		if len(got) != subscribers/2 || got[0] != 1 || got[len(got)-1] != subscribers-1 {
			t.Fatalf("%s: %d values left, want %d", filter, len(got), subscribers/2)
		}
	}
}

func TestIndexConcurrently(t *testing.T) {
	t.Parallel()
	var x Index[int]
	x.Insert("stays/+", -1)
	x.Insert("stays/put", -2)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				filter := []string{"a/+", "a/b", "#", "stays/+", fmt.Sprintf("a/%d/+", i)}[i%5]
				x.Insert(filter, g)
				x.Match([]byte("a/b"), nil)
				if got := x.Match([]byte("stays/put"), nil); !slices.Contains(got, -1) || !slices.Contains(got, -2) {
					t.Errorf("a subscription was overlooked: %v", got)
				}
				x.Remove(filter, g)
			}
		})
	}
	wg.Wait()
	if x.Len() != 2 {
		t.Errorf("Len() = %d, want 2", x.Len())
	}
}

// benchIndex has exact subscriptions for 10,000 devices and wildcard ones for
// 100 sites.
func benchIndex() *Index[int] {
	x := &Index[int]{}
	for i := range 10_000 {
		x.Insert(fmt.Sprintf("site/%d/device/%d/cmd", i%100, i), i)
	}
	for i := range 100 {
		x.Insert(fmt.Sprintf("site/%d/device/+/state", i), i)
	}
	x.Insert("site/+/device/+/alarm/#", 0)
	return x
}

var benchNames = map[string]string{
	"exact":    "site/77/device/4277/cmd",
	"wildcard": "site/77/device/4277/state",
	"none":     "site/77/device/4277/other",
}

func TestIndexMatchAllocatesNothing(t *testing.T) {
	x := benchIndex()
	out := make([]int, 0, 8)
	for kind, name := range benchNames {
		name := []byte(name)
		if n := testing.AllocsPerRun(100, func() { out = x.Match(name, out[:0]) }); n != 0 {
			t.Errorf("%s: %v allocations per match", kind, n)
		}
	}
}

func BenchmarkIndexMatch(b *testing.B) {
	x := benchIndex()
	for kind, name := range benchNames {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			name := []byte(name)
			out := make([]int, 0, 8)
			for b.Loop() {
				out = x.Match(name, out[:0])
			}
		})
	}
	b.Run("exact without wildcards", func(b *testing.B) {
		b.ReportAllocs()
		var x Index[int]
		x.Insert("site/77/device/4277/cmd", 1)
		name := []byte("site/77/device/4277/cmd")
		out := make([]int, 0, 8)
		for b.Loop() {
			out = x.Match(name, out[:0])
		}
	})
}
