package topic

import "strings"

// Overlap tells whether a topic can match both filters.
func Overlap(a, b string) bool {
	x, restA, moreA := strings.Cut(a, "/")
	y, restB, moreB := strings.Cut(b, "/")
	switch {
	case x == "#" || y == "#":
		return true
	case x != y && x != "+" && y != "+":
		return false
	case moreA && moreB:
		return Overlap(restA, restB)
	}
	return moreA == moreB || restA == "#" || restB == "#"
}
