package keys

import (
	"testing"
	"time"
)

func TestParsePX(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"1":                   time.Millisecond,
		"1500":                1500 * time.Millisecond,
		"1.5s":                1500 * time.Millisecond,
		"2h":                  2 * time.Hour,
		"500us":               500 * time.Microsecond, // the client rounds up
		"0":                   0,
		"-1":                  0,
		"0s":                  0,
		"-1s":                 0,
		"":                    0,
		"soon":                0,
		"1e3":                 0,
		"010":                 0,
		"010s":                0,
		"9223372036854775807": 0,
	} {
		got, err := parsePX(s)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
}
