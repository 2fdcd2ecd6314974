package top

import "unicode"

// wide are the characters that take two columns of a terminal: those of East Asian scripts, and
// pictures (Unicode, annex 11: W and F, in whole blocks).
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115F, Stride: 1}, {Lo: 0x2E80, Hi: 0x303E, Stride: 1}, {Lo: 0x3041, Hi: 0xA4CF, Stride: 1},
		{Lo: 0xA960, Hi: 0xA97F, Stride: 1}, {Lo: 0xAC00, Hi: 0xD7A3, Stride: 1}, {Lo: 0xF900, Hi: 0xFAFF, Stride: 1},
		{Lo: 0xFE30, Hi: 0xFE6F, Stride: 1}, {Lo: 0xFF01, Hi: 0xFF60, Stride: 1}, {Lo: 0xFFE0, Hi: 0xFFE6, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x16FE0, Hi: 0x18D08, Stride: 1}, {Lo: 0x1B000, Hi: 0x1B2FF, Stride: 1}, {Lo: 0x1F300, Hi: 0x1F64F, Stride: 1},
		{Lo: 0x1F680, Hi: 0x1F6FF, Stride: 1}, {Lo: 0x1F900, Hi: 0x1FAFF, Stride: 1}, {Lo: 0x20000, Hi: 0x3FFFD, Stride: 1},
	},
}

// columnsOf is how many columns of a terminal a character takes.
func columnsOf(r rune) int {
	switch {
	case r < 0x300: // the usual ones
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf): // over the one before it, or not seen
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// width is how many columns of a terminal a text takes.
func width(s string) (columns int) {
	for _, r := range s {
		columns += columnsOf(r)
	}
	return columns
}

// fitting is the beginning of a text that takes no more than so many columns.
func fitting(s string, columns int) string {
	for i, r := range s {
		if columns -= columnsOf(r); columns < 0 {
			return s[:i]
		}
	}
	return s
}
