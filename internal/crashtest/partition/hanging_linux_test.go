package partition

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// The requests of Linux that stop all writes to a file system, fsyncs too, and let them go on.
const (
	fifreeze = 0xc0045877
	fithaw   = 0xc0045878
)

// freezable makes a file system of its own for a node, whose writes can be stopped.
func freezable(t *testing.T) (dir string) {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(diskBytes)
		_ = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no disks that hang: this test needs mkfs.ext4 and loop devices: %s: %v: %s", command[0], err, out)
		}
	}
	t.Cleanup(func() {
		_ = freeze(dir, false)
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// freeze stops the writes to a file system, or lets them go on.
func freeze(dir string, stop bool) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	request := uint(fithaw)
	if stop {
		request = fifreeze
	}
	return unix.IoctlSetInt(int(f.Fd()), request, 0)
}

// onFreezable runs three nodes, each on a disk that can hang.
func onFreezable(t *testing.T, election string) *world {
	t.Helper()
	needsNetwork(t)
	var plans []Plan
	for _, name := range []string{"a", "b", "c"} {
		plans = append(plans, Plan{Name: name, Data: filepath.Join(freezable(t), name)})
	}
	w := run(t, testserver.Binary(), plans, "--cluster-election-timeout", election)
	t.Cleanup(func() { // a process whose disk hangs cannot be killed
		for _, n := range w.Nodes() {
			_ = freeze(filepath.Dir(n.Data), false)
		}
	})
	return w
}

func (w *world) hang(n *nodes.Node, hangs bool) {
	w.t.Helper()
	w.must(freeze(filepath.Dir(n.Data), hangs))
}

// The disk of a follower hangs, and then that of the leader. The others go on without the former; the latter
// gives the leadership away after five seconds. Nothing that was acknowledged is lost.
func TestDisksThatHang(t *testing.T) {
	t.Parallel()
	w := onFreezable(t, "2s")
	written := map[string]string{}

	leader := w.leader(0).Leader
	follower := w.Others(leader)[0]
	c, _ := w.dial(leader)
	w.write(c, "before", written)
	w.hang(follower, true)
	for i := range 50 {
		w.write(c, fmt.Sprint("while a follower's disk hangs ", i), written)
	}
	w.hang(follower, false)
	w.eventually("the follower has everything", func() bool { return w.caughtUp(follower) })

	leader = w.leader(0).Leader
	next := w.Others(leader)[0]
	c, _ = w.dial(next)
	w.write(c, "before the leader's disk hangs", written)
	w.hang(leader, true)
	began := time.Now()
	w.write(c, "while the former leader's disk hangs", written)
	t.Logf("a write was acknowledged %v after the leader's disk had begun to hang", time.Since(began).Round(10*time.Millisecond))
	if !strings.Contains(leader.Output(), "the disk does not answer: giving the leadership away") {
		t.Errorf("the leader does not say that its disk hangs; it said\n%s", leader.Output())
	}
	if now := w.leader(0, w.Others(leader)...).Leader; now == leader {
		t.Errorf("node %s still leads", leader.Name)
	}
	w.mustHold(c, written)
	w.hang(leader, false)
	w.revive()
	w.serving(w.Nodes()...)
	for _, n := range w.Nodes() {
		w.eventually("node "+n.Name+" has everything", func() bool { return w.caughtUp(n) })
	}
	w.sameData()
	c, _ = w.dial(leader)
	w.mustHold(c, written)
}

// slowFor is how long a slow disk needs for each write.
const slowFor = 300 * time.Millisecond

// A slow disk of a follower holds up nothing; that of the leader holds up each write. Neither changes the leader.
func TestSlowDisks(t *testing.T) {
	t.Parallel()
	w := onFreezable(t, "10s")
	written := map[string]string{}
	before := w.leader(0)
	c, _ := w.dial(before.Leader)
	withFollower := w.slowWrites(c, w.Others(before.Leader)[0], written)
	withLeader := w.slowWrites(c, before.Leader, written)
	t.Logf("a SET takes %v (median) with a slow disk of a follower, %v with one of the leader", withFollower, withLeader)
	if withLeader < slowFor || withFollower >= slowFor {
		t.Errorf("with a disk that needs %v a SET takes %v if it is a follower's, and %v if it is the leader's", slowFor, withFollower, withLeader)
	}
	if after := w.leader(0); after.Leader != before.Leader || after.Term != before.Term {
		t.Errorf("node %s leads in term %d, before it was node %s in term %d", after.Leader.Name, after.Term, before.Leader.Name, before.Term)
	}
	w.mustHold(c, written)
}

// slowWrites writes keys while the disk of a node is slow, and returns the median of how long that takes.
func (w *world) slowWrites(c *client.Client, n *nodes.Node, written map[string]string) time.Duration {
	w.t.Helper()
	var took []time.Duration
	for range 11 {
		w.hang(n, true)
		done := make(chan error, 1)
		began := time.Now()
		time.AfterFunc(slowFor, func() { done <- freeze(filepath.Dir(n.Data), false) })
		w.write(c, fmt.Sprint("key", len(written)), written)
		took = append(took, time.Since(began))
		w.must(<-done)
	}
	slices.Sort(took)
	return took[len(took)/2].Round(time.Millisecond / 10)
}
