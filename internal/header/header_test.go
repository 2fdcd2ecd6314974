package header

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("v", MaxBytes-len("X-Key"))
	for _, test := range []struct {
		text, name, value string
		ok                bool
	}{
		{"Authorization: Bearer a=b:c", "Authorization", "Bearer a=b:c", true},
		{" X-Key=a: b \r", "X-Key", "a: b", true},
		{"X-Key:" + longest, "X-Key", longest, true},
		{"X-Key:" + longest + "v", "", "", false},
		{"", "", "", false},
		{"X-Key", "", "", false},
		{"X-Key:", "", "", false},
		{"X-Key= ", "", "", false},
		{": value", "", "", false},
		{"X Key: value", "", "", false},
		{"X-Kéy: value", "", "", false},
		{"X-Key: a\nHost: b", "", "", false},
		{"X-Key: a\x7f", "", "", false},
	} {
		name, value, ok := Parse(test.text)
		if ok != test.ok || ok && (name != test.name || value != test.value) {
			t.Errorf("%.40q: %q, %.40q, %v", test.text, name, value, ok)
		}
	}
}
