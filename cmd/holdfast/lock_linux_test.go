package main

import "testing"

// A holder that is killed takes its command along, and the lock passes on when
// it expires. (Only Linux tells a child that its parent is gone.)
func TestLockKilled(t *testing.T) {
	t.Parallel()
	k := key(t)
	h := startLock(t, port, append([]string{k, "--ttl", "1s"}, until(`trap "echo ended; exit 0" TERM`)...)...)
	h.says(t, "ready")
	_ = h.cmd.Process.Kill()
	h.says(t, "ended")
	startLock(t, port, k, "--wait", patience.String(), "--", "true").ends(t, 0, "")
}
