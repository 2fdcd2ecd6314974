package node

import (
	"testing"
	"time"
)

// A batch is late when it takes four times as long as others, within bounds.
func TestPatienceWithABatch(t *testing.T) {
	t.Parallel()
	h := hurrying{timer: time.NewTimer(time.Hour)}
	for _, test := range []struct{ takes, patience time.Duration }{
		{takes: time.Millisecond, patience: minHurry},
		{takes: 8 * time.Millisecond, patience: 4 * 8 * time.Millisecond},
		{takes: time.Second, patience: maxHurry},
	} {
		for i := range 200 {
			now := time.Duration(i) * time.Hour
			h.begin(now)
			h.end(now + test.takes)
		}
		if got := h.patience(); got < test.patience-time.Microsecond || got > test.patience {
			t.Errorf("batches take %v, and one is late after %v, want %v", test.takes, got, test.patience)
		}
	}
}
