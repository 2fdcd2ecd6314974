package top

import "testing"

// Names are cut and padded by the columns that a terminal gives their characters.
func TestColumns(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
	}{
		{"plant/7", "plant/7   "},
		{"plant/1234", "plant/1234"},
		{"plant/12345", "plant/123…"},
		{"世界", "世界      "},
		{"世界世界世", "世界世界世"},
		{"世界世界世界", "世界世界… "},
		{"a世界世界世界", "a世界世界…"},
		{"é́é", "é́é        "},
		{"ключ", "ключ      "},
		{"📦📦", "📦📦      "},
	} {
		got := pad(tc.name, 10)
		if got != tc.want || width(got) != 10 {
			t.Errorf("%q becomes %q, %d columns; want %q", tc.name, got, width(got), tc.want)
		}
	}
}
