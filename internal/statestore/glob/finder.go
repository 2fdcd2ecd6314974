package glob

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// finder finds a segment of classes in a key in one pass (Shift-And): it keeps a bit
// for each element of the segment, which says whether the code points up to the one
// just read match the elements up to this. The next code point shifts the bits by one
// and clears those whose element it doesn't match. Trying the segment at each place
// of the key instead would take the product of their lengths: seconds for a key of
// megabytes, with no way to stop.
//
// Which elements a code point matches is looked up by its interval: all ranges of the
// segment's classes and literals together cut the code points into intervals, within
// which all are matched by the same elements.
type finder struct {
	words  int      // of 64 bits, for the elements; 0: there is no finder
	last   uint64   // the last element's bit, in the last word
	starts []rune   // of each interval but the first, which begins at 0
	masks  []uint64 // of each interval: words of them
	ascii  []int32  // the intervals of ASCII, which are looked up most
}

// stackWords is how many words of bits a search has on its stack.
const stackWords = 16

func newFinder(s *segment) finder {
	f := finder{words: (s.runes + 63) / 64, last: 1 << ((s.runes - 1) % 64)}
	s.eachRange(func(_ int, low, high rune) { f.starts = append(f.starts, low, high+1) })
	slices.Sort(f.starts)
	f.starts = slices.Compact(f.starts)
	f.ascii = make([]int32, utf8.RuneSelf)
	for r := range f.ascii {
		f.ascii[r] = int32(f.interval(rune(r)))
	}
	f.masks = make([]uint64, (len(f.starts)+1)*f.words)
	s.eachRange(func(element int, low, high rune) {
		for i := f.interval(low); i < f.interval(high+1); i++ {
			f.masks[i*f.words+element/64] |= 1 << (element % 64)
		}
	})
	element := 0
	for i := range s.steps {
		st := &s.steps[i]
		if st.any || st.negated {
			for at := element / 64; at < len(f.masks); at += f.words {
				f.masks[at] ^= 1 << (element % 64)
			}
		}
		element += st.runes()
	}
	return f
}

// eachRange calls fn for each range of code points that an element of the segment
// names, negated or not.
func (s *segment) eachRange(fn func(element int, low, high rune)) {
	element := 0
	for i := range s.steps {
		st := &s.steps[i]
		for rest := st.class; len(rest) > 0; {
			low, high, n := nextRange(rest)
			fn(element, low, high)
			rest = rest[n:]
		}
		if st.literal != nil {
			for _, r := range string(st.literal) {
				fn(element, r, r)
				element++
			}
			continue
		}
		element++
	}
}

// runes is how many code points the step matches.
func (st *step) runes() int {
	if st.literal != nil {
		return utf8.RuneCount(st.literal)
	}
	return 1
}

// interval is the number of the one that r is in.
func (f *finder) interval(r rune) int {
	i, found := slices.BinarySearch(f.starts, r)
	if found {
		i++
	}
	return i
}

// search returns the end of the first place in key where the segment is. It may begin
// with a literal: then what has none of it is skipped.
func (f *finder) search(key, literal []byte) (end int, ok bool) {
	var onStack [stackWords]uint64
	state := onStack[:]
	if f.words > stackWords {
		state = make([]uint64, f.words)
	}
	state = state[:f.words]
	idle := true // no bit is set
	for at := 0; at < len(key); {
		if idle && literal != nil {
			i := bytes.Index(key[at:], literal)
			if i < 0 {
				return 0, false
			}
			at += i
		}
		i, width := 0, 1
		if c := key[at]; c < utf8.RuneSelf {
			i = int(f.ascii[c])
		} else {
			var r rune
			r, width = utf8.DecodeRune(key[at:])
			i = f.interval(r)
		}
		at += width
		i *= f.words
		idle = f.advance(state, f.masks[i:i+f.words])
		if state[f.words-1]&f.last != 0 {
			return at, true
		}
	}
	return 0, false
}

// advance reads one code point, which the elements of mask match.
func (f *finder) advance(state, mask []uint64) (idle bool) {
	carry, any := uint64(1), uint64(0) // the first element may match anywhere
	for i, m := range mask {
		before := state[i]
		after := (before<<1 | carry) & m
		carry = before >> 63
		state[i] = after
		any |= after
	}
	return any == 0
}
