// Package svg has what the drawings have in common.
package svg

import (
	"bytes"
	"fmt"
	"html"
)

// Text writes s at x, y; anchor and weight are SVG's text-anchor and font-weight.
func Text(b *bytes.Buffer, x, y int, anchor, weight, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s" font-weight="%s" fill="#1f2933">%s</text>`+"\n", x, y, anchor, weight, html.EscapeString(s))
}
