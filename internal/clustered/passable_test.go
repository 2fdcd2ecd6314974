package clustered

import "testing"

// Connections beyond the bound find a descriptor, so that they hear why they are turned away.
func TestPassableConnections(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ descriptors, most, want int }{
		{18_800, 0, 9272},
		{18_800, 9272, 9272},
		{18_800, 9273, 9272},
		{18_800, 100, 100},
		{512, 0, 128},
		{100, 0, 25},
	} {
		if got := passableWith(test.descriptors, test.most); got != test.want {
			t.Errorf("with %d descriptors, and %d connections at the most: %d, want %d", test.descriptors, test.most, got, test.want)
		}
	}
}
