package node

import "testing"

// While clients write, a snapshot is sent as slowly as the log's room for what they write allows, and in time
// before that ends.
func TestASnapshotIsSentInTime(t *testing.T) {
	t.Parallel()
	const mib, room, rate, hurry = 1 << 20, 1 << 30, 32 << 20, 4
	for _, test := range []struct {
		what           string
		data, written  int64 // bytes; bytes in a second
		seconds, spare int64 // at most; bytes of the room at the end, at least
		slow           bool  // never urgent
	}{
		{"nothing is written", 8 << 30, 0, 256, room, true},
		{"little is written", 8 << 30, 1 * mib, 256, room / 2, true},
		{"too much for the rate", 8 << 30, 6 * mib, 128, room / 4, false},
		{"nearly too much for the highest rate", 8 << 30, 12 * mib, 80, room / 16, false},
		{"little data, much is written", 64 * mib, 100 * mib, 2, room / 2, true},
		{"no data", 0, 100 * mib, 1, room / 2, true},
	} {
		var sent, written, seconds int64
		slow := true
		for sent < test.data {
			step := int64(rate)
			if urgent(written, room, sent, test.data) {
				step, slow = rate*hurry, false
			}
			sent += step
			written += test.written
			seconds++
		}
		if seconds > test.seconds || room-written < test.spare || slow != test.slow {
			t.Errorf("%s: %d s, %d MiB of the room are left, never urgent: %t", test.what, seconds, (room-written)/mib, slow)
		}
	}
	if !urgent(1, 0, 0, 1) || !urgent(1, -1, 0, 1) {
		t.Error("no room: not urgent")
	}
}
