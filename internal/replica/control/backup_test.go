package control

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/backup"
)

// A node that cannot know what was acknowledged, or does not get it in time, makes no backup, and says so.
func TestNoBackupOfLess(t *testing.T) {
	t.Parallel()
	nodes := cluster(t, "a", "b")
	leader := nodes["a"].await(t, "an election", func(r *Report) bool { return r.Leader != "" }).Leader
	follower := "a"
	if leader == follower {
		follower = "b"
	}
	to := filepath.Join(t.TempDir(), "backup")
	fails := func(want string) {
		t.Helper()
		const patience = 300 * time.Millisecond
		_, err := (&Reporter{node: nodes[follower].Node}).backup(t.Context(), patience, to, false, func(backup.Progress) {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if files, _ := filepath.Glob(filepath.Join(to, "*")); len(files) > 0 {
			t.Errorf("it left %q", files)
		}
	}
	// The nodes have no journal here, so nothing is ever applied.
	fails("what was acknowledged before is not all here after 300ms")
	nodes[leader].end()
	nodes[follower].await(t, "the end of "+leader, func(r *Report) bool { return r.Leader == "" })
	fails("no leader says what was acknowledged before (") // it may not know yet that the leader has gone
}
