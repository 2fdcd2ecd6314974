package clocks

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const bound = 30 * time.Second

// clocksOf are the readings of the nodes b, c, … whose clocks are so far ahead of the own one.
func clocksOf(ahead ...time.Duration) (all []Reading) {
	for i, a := range ahead {
		all = append(all, Reading{Name: string(rune('b' + i)), Ahead: a})
	}
	return all
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const s, h = time.Second, time.Hour
	for name, test := range map[string]struct {
		others []Reading
		want   Judgement
	}{
		"alone":                                    {nil, Judgement{}},
		"two that agree":                           {clocksOf(10 * s), Judgement{Majority: true, Agree: []string{"b"}, Ahead: -5 * s}},
		"two that differ":                          {clocksOf(2 * h), Judgement{}},
		"three, the own one ahead":                 {clocksOf(-2*h, -2*h+s), Judgement{Majority: true, Agree: []string{"b", "c"}, Ahead: 2*h - s/2, Wrong: true}},
		"three, the own one behind":                {clocksOf(2*h, 2*h), Judgement{Majority: true, Agree: []string{"b", "c"}, Ahead: -2 * h, Wrong: true}},
		"three, another one wrong":                 {clocksOf(0, 2*h), Judgement{Majority: true, Agree: []string{"b"}}},
		"three that all differ":                    {clocksOf(2*h, 4*h), Judgement{}},
		"three, of which one does not answer":      {clocksOf(-2 * h), Judgement{}},
		"three, just within the bound":             {clocksOf(bound, bound), Judgement{Majority: true, Agree: []string{"b", "c"}, Ahead: -bound}},
		"three, just beyond it":                    {clocksOf(bound+1, bound+1), Judgement{Majority: true, Agree: []string{"b", "c"}, Ahead: -bound - 1, Wrong: true}},
		"five, two wrong alike":                    {clocksOf(2*h, 2*h, 2*h, 0), Judgement{Majority: true, Agree: []string{"b", "c", "d"}, Ahead: -2 * h, Wrong: true}},
		"five, two wrong, the own one right":       {clocksOf(2*h, 2*h, 0, s), Judgement{Majority: true, Agree: []string{"d", "e"}}},
		"five, of which two do not answer":         {clocksOf(2*h, 2*h), Judgement{Majority: true, Agree: []string{"b", "c"}, Ahead: -2 * h, Wrong: true}},
		"five, of which one does not answer: even": {clocksOf(2*h, 2*h, 0), Judgement{}},
		"five, three of which differ":              {clocksOf(0, h, 2*h, 3*h), Judgement{}},
		"five in a row, of the group behind":       {clocksOf(0, 25*s, 50*s, 50*s), Judgement{Majority: true, Agree: []string{"b", "c"}}},
		"five in a row, of the other group":        {clocksOf(-50*s, -50*s, -25*s, 0), Judgement{Majority: true, Agree: []string{"b", "c", "d"}, Ahead: 50 * s, Wrong: true}},
	} {
		got := Judge(test.others, bound)
		if got.Majority != test.want.Majority || got.Ahead != test.want.Ahead || got.Wrong != test.want.Wrong || !slices.Equal(got.Agree, test.want.Agree) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// A clock is called wrong only if it is for certain.
func TestJudgeKnowsItsError(t *testing.T) {
	t.Parallel()
	others := clocksOf(bound+time.Second, bound+time.Second)
	if !Judge(others, bound).Wrong {
		t.Error("a clock beyond the bound is not wrong")
	}
	others[1].Within = 2 * time.Second
	if Judge(others, bound).Wrong {
		t.Error("a clock is wrong that may be right")
	}
}

// Whatever the clocks are, as long as a majority agrees not all are wrong; and of any two nodes that are not, one can
// follow the other as the leader: their clocks are at most twice the bound apart.
func TestJudgementsOfAllNodes(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	agreed, found := 0, 0
	for range 20_000 {
		at := make([]time.Duration, 1+rng.IntN(9))
		for i := range at {
			at[i] = time.Duration(rng.Int64N(int64(4 * bound)))
		}
		var right []time.Duration
		majority := false
		for i, own := range at {
			var others []Reading
			for k, other := range at {
				if k != i {
					others = append(others, Reading{Name: fmt.Sprint(k), Ahead: other - own})
				}
			}
			j := Judge(others, bound)
			majority = j.Majority
			if j.Wrong {
				found++
				continue
			}
			right = append(right, own)
		}
		if !majority {
			if len(right) != len(at) {
				t.Fatalf("%v: nodes are wrong without a majority", at)
			}
			continue
		}
		agreed++
		if len(right) == 0 {
			t.Fatalf("%v: no node may lead", at)
		}
		if apart := slices.Max(right) - slices.Min(right); apart > 2*bound {
			t.Fatalf("%v: nodes that may lead are %v apart", at, apart)
		}
	}
	if agreed == 0 || found == 0 {
		t.Errorf("%d clusters with a majority, %d wrong clocks: the test shows nothing", agreed, found)
	}
}
