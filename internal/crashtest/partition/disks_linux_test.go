package partition

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// diskBytes is the size of a node's disk in memory. Its reserve is a twentieth.
const diskBytes = 192 << 20

// disk makes a file system of its own for a node.
func disk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("holdfast-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes)); err != nil {
		t.Skipf("no disks of nodes: this test may not mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves no byte on the disk of a node, and empty makes the room again.
func (w *world) fill(n *nodes.Node) {
	w.t.Helper()
	f, err := os.Create(filler(n))
	w.must(err)
	for size := 1 << 20; size > 0; size /= 2 {
		for err = error(nil); err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			w.t.Fatal(err)
		}
	}
	w.must(f.Close())
}

func (w *world) empty(n *nodes.Node) {
	w.t.Helper()
	w.must(os.Remove(filler(n)))
}

// filler is beside the node's directory, on the same disk.
func filler(n *nodes.Node) string { return filepath.Join(filepath.Dir(n.Data), "filler") }

// The disk of a follower is full, and then that of the leader: not a byte is left. Nothing that was
// acknowledged is lost, a quorum with room serves clients, and the logs say which disk is full.
func TestFullDisks(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	var plans []Plan
	for _, name := range []string{"a", "b", "c"} {
		plans = append(plans, Plan{Name: name, Data: filepath.Join(disk(t), name)})
	}
	w := run(t, testserver.Binary(), plans, "--cluster-election-timeout", "2s")
	written := map[string]string{}

	// While a follower's disk is full, the others go on, and it has everything when there is room.
	leader := w.leader(0).Leader
	follower := w.Others(leader)[0]
	c, _ := w.dial(leader)
	w.write(c, "before", written)
	w.fill(follower)
	w.eventually("the follower says that its disk is full", func() bool {
		w.write(c, "while a follower's disk is full", written)
		return strings.Contains(follower.Output(), "the disk is full") && strings.Contains(follower.Output(), follower.Data)
	})
	for i := range 50 {
		w.write(c, fmt.Sprint("more while a follower's disk is full ", i), written)
	}
	if err := w.Transfer(w.ctx, follower); err == nil || !strings.Contains(err.Error(), "has taken the leadership, and not node "+follower.Name) {
		t.Errorf("the leadership is to go to a node whose disk is full: %v", err)
	}
	w.empty(follower)
	w.revive()
	w.eventually("the follower has everything", func() bool { return w.caughtUp(follower) })

	// A leader whose disk is full refuses what is new, and serves what there is; another node, which has
	// room, takes all when it leads.
	leader = w.leader(0).Leader
	c, _ = w.dial(leader)
	w.fill(leader)
	w.eventually("the leader refuses a write, or ends, or another node leads", func() bool {
		_, err := c.Set(w.ctx, "too much", []byte(strings.Repeat("x", 100_000)))
		return errors.Is(err, client.ErrQuotaExceeded) || !leader.Running() || w.leader(0).Leader != leader
	})
	w.eventually("the leader says which disk is full", func() bool {
		out := leader.Output()
		full := strings.Contains(out, "the disk is nearly full") || strings.Contains(out, "the disk is full") || strings.Contains(out, "no space left on device")
		return full && strings.Contains(out, leader.Data)
	})
	w.mustHold(c, written)
	next := w.Others(leader)[0]
	w.eventually("the leadership is given away", func() bool {
		_ = w.Transfer(w.ctx, next)
		v := w.leader(0, next)
		return v.Leader != leader
	})
	c, _ = w.dial(next)
	w.write(c, "while the former leader's disk is full", written)
	w.mustHold(c, written)
	w.empty(leader)
	w.revive()
	w.serving(w.Nodes()...)
	for _, n := range w.Nodes() {
		w.eventually("node "+n.Name+" has everything", func() bool { return w.caughtUp(n) })
	}
	w.sameData()
	c, _ = w.dial(leader)
	w.mustHold(c, written)
}

// revive starts the nodes that have ended: one that could not write its own votes or the leader's
// entries does, with a log line that says so.
func (w *world) revive() {
	w.t.Helper()
	w.must(w.Start(w.Dead()...))
}

// write sets a key, which must succeed, and notes it.
func (w *world) write(c *client.Client, key string, written map[string]string) {
	w.t.Helper()
	value := fmt.Sprint(len(written), strings.Repeat(".", 1000))
	w.set(c, key, value)
	written[key] = value
}

// mustHold checks that what was written is there.
func (w *world) mustHold(c *client.Client, written map[string]string) {
	w.t.Helper()
	for key, want := range written {
		if v, _, err := c.Get(w.ctx, key); err != nil || string(v.Bytes) != want {
			w.t.Errorf("%q holds %.10q, %v; want %.10q", key, v.Bytes, err, want)
		}
	}
}
