package protocol

import (
	"strings"
	"testing"
)

func TestLongNamesAreShownInPart(t *testing.T) {
	t.Parallel()
	a := func(n int) string { return strings.Repeat("a", n) }
	for name, want := range map[string]string{
		"":        `""`,
		"a\xffb":  `"a\xffb"`,
		a(100):    `"` + a(100) + `"`,
		a(101):    `"` + a(100) + `"… (101 bytes)`,
		a(70_000): `"` + a(100) + `"… (70000 bytes)`,
	} {
		if got := Quote(name); got != want {
			t.Errorf("%d bytes are shown as %s, want %s", len(name), got, want)
		}
	}
}
