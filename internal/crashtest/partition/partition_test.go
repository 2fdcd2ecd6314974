package partition

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/harness/nodes"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// attempts is how often a test tries what another election, on a busy machine, can spoil.
const attempts = 5

// A leader that was paused while it was cut off finds a request when it goes on, of a client
// beside it. It must not answer from its memory, which is old. The control is a program whose
// leader does not look at its lease.
func TestPausedLeaderThatIsCutOffAnswersNothingStale(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	for _, test := range []struct {
		name    string
		control func() (string, error)
	}{{"lease", nil}, {"control", unchecked}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := run(t, program(t, test.control), Names("a", "b", "c"), "--cluster-election-timeout", "2s")
			stale := false
			for range attempts {
				if stale = w.answersStaleAfterAPause(); stale || test.control == nil {
					break
				}
			}
			if want := test.control != nil; stale != want {
				t.Errorf("a stale answer: %v, want %v", stale, want)
			}
		})
	}
}

func (w *world) answersStaleAfterAPause() bool {
	w.t.Helper()
	old := w.leader(0)
	reader, conn := w.dial(old.Leader)
	w.set(reader, "key", "old")

	// Given a leader that is cut off and paused, and a newer value at the next one,
	w.must(w.Isolate(old.Leader))
	old.Leader.Pause()
	next := w.leader(old.Term, w.Others(old.Leader)...)
	writer, _ := w.dial(next.Leader)
	w.set(writer, "key", "new")

	// when it goes on with a request that has come meanwhile,
	sent := conn.written.Load()
	answer := make(chan string, 1)
	go func() {
		v, _, err := reader.Get(w.ctx, "key")
		answer <- string(v.Bytes) + describe(err)
	}()
	w.eventually("the request is sent", func() bool { return conn.written.Load() > sent })
	old.Leader.Continue()
	var got string
	select {
	case got = <-answer:
	case <-conn.ended:
	}
	w.must(w.Heal())
	if got == "" {
		got = <-answer
	}

	// then the answer is the newer value, of whichever node.
	if got != "old" && got != "new" {
		w.t.Errorf("the answer is %q", got)
	}
	w.serving(w.Nodes()...)
	return got == "old"
}

func describe(err error) string {
	if err == nil {
		return ""
	}
	return " error: " + err.Error()
}

// A leader that is cut off acknowledges no write. The control is a program that acknowledges what
// its leader has only proposed.
func TestLeaderThatIsCutOffAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	for _, test := range []struct {
		name    string
		control func() (string, error)
	}{{"quorum", nil}, {"control", early}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := run(t, program(t, test.control), Names("a", "b", "c"), "--cluster-election-timeout", "2s")
			lost := false
			for i := range attempts {
				if lost = w.losesAWrite(fmt.Sprint("key", i)); lost || test.control == nil {
					break
				}
			}
			if want := test.control != nil; lost != want {
				t.Errorf("an acknowledged write is lost: %v, want %v", lost, want)
			}
		})
	}
}

func (w *world) losesAWrite(key string) bool {
	w.t.Helper()
	old := w.leader(0)
	writer, conn := w.dial(old.Leader)
	w.set(writer, "before", key)
	w.must(w.Isolate(old.Leader))
	outcome := make(chan error, 1)
	go func() {
		_, err := writer.Set(w.ctx, key, []byte("v"))
		outcome <- err
	}()
	acknowledged := false
	select {
	case err := <-outcome:
		acknowledged = err == nil
	case <-conn.ended:
	}
	next := w.leader(old.Term, w.Others(old.Leader)...)
	reader, _ := w.dial(next.Leader)
	v, _, err := reader.Get(w.ctx, "before")
	w.must(err)
	_, found, err := reader.Get(w.ctx, key)
	w.must(err)
	w.must(w.Heal())
	w.serving(w.Nodes()...)
	return acknowledged && !found || string(v.Bytes) != key
}

// While a follower is cut off, the others go on with their leader, and the follower does not
// end its office when it is back.
func TestFollowerThatIsCutOff(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	w := run(t, testserver.Binary(), Names("a", "b", "c"), "--cluster-election-timeout", "2s")
	for _, test := range []struct {
		name string
		cut  func(n *nodes.Node) error
	}{
		{"isolated", func(n *nodes.Node) error { return w.Isolate(n) }},
		{"deaf", w.Deafen},
		{"mute", w.Mute},
	} {
		kept := false
		for range attempts {
			if kept = w.keepsItsLeader(test.cut); kept {
				break
			}
		}
		if !kept {
			t.Errorf("%s: each time a follower was back, another node led, or the same one in a later term", test.name)
		}
	}
}

// keepsItsLeader cuts a follower off and mends that, and says whether the leader has kept its
// office. On a busy machine it may lose it for other reasons.
func (w *world) keepsItsLeader(cut func(n *nodes.Node) error) bool {
	w.t.Helper()
	before := w.leader(0)
	follower := w.Others(before.Leader)[0]
	c, _ := w.dial(before.Leader)
	w.must(cut(follower))
	w.eventually("the follower asks for votes", func() bool { return w.line(follower).Role == node.Candidate })
	w.set(c, "written without the follower", "v")
	w.must(w.Heal())
	w.eventually("the follower has everything again", func() bool { return w.caughtUp(follower) })
	after := w.leader(0)
	return after.Leader == before.Leader && after.Term == before.Term
}

// caughtUp says whether a node follows, and lacks nothing.
func (w *world) caughtUp(n *nodes.Node) bool {
	report, err := control.Status(w.ctx, n.Data)
	if err != nil || report.Leader == "" {
		return false
	}
	for _, l := range report.Nodes {
		if l.Name == n.Name {
			return (l.Role == node.Follower || l.Role == node.Leader) && l.Lag == 0
		}
	}
	return false
}

// Without a quorum no client is served: new ones hear 0x88, and the status of every node says which ones are
// missing. When the nodes reach each other again, everything goes on.
func TestWithoutAQuorum(t *testing.T) {
	t.Parallel()
	needsNetwork(t)
	w := run(t, testserver.Binary(), Names("a", "b", "c"), "--cluster-election-timeout", "1s")
	before := w.leader(0)
	c, conn := w.dial(before.Leader)
	w.set(c, "key", "kept")

	w.must(w.Scatter())
	for _, n := range w.Nodes() {
		want := fmt.Sprintf("no quorum: 1 of 3 nodes answer, and the cluster serves clients only with 2; missing: %s", names(w.Others(n)))
		w.eventually("the status of node "+n.Name+" says: "+want, func() bool {
			status, said := clusterStatus(w.t, n)
			return status == 1 && strings.Contains(said, want)
		})
	}
	await(w.t, conn.ended, "the former leader closes its connections")
	var refusals sync.WaitGroup
	for _, n := range w.Nodes() {
		refusals.Go(func() { w.refuses(n) })
	}
	refusals.Wait()

	w.must(w.Heal())
	w.serving(w.Nodes()...)
	if v, _, err := c.Get(w.ctx, "key"); err != nil || string(v.Bytes) != "kept" {
		t.Errorf("after all links were mended the key holds %q, %v", v.Bytes, err)
	}
	for _, n := range w.Nodes() {
		w.eventually("the status of node "+n.Name+" is good", func() bool {
			status, _ := clusterStatus(w.t, n)
			return status == 0
		})
	}
	w.sameData()
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("it never came about that %s", what)
	}
}

func names(all []*nodes.Node) string {
	var names []string
	for _, n := range all {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// clusterStatus runs holdfast cluster status.
func clusterStatus(t *testing.T, n *nodes.Node) (status int, said string) {
	t.Helper()
	cmd := exec.Command(testserver.Binary(), "cluster", "status", "--data", n.Data)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String()
}

// refuses has new clients connect to a node until one hears 0x88. Others may be disconnected without a CONNACK
// by a server that is about to end; none may be accepted.
func (w *world) refuses(n *nodes.Node) {
	for w.ctx.Err() == nil {
		nc, err := n.Dial(w.ctx)
		if err != nil {
			w.t.Errorf("a client of node %s: %v", n.Name, err)
			return
		}
		code, err := connect(nc)
		_ = nc.Close()
		switch {
		case err == nil && code == mqtt.ServerUnavailable:
			return
		case err == nil:
			w.t.Errorf("without a quorum, node %s answers a CONNECT with %v", n.Name, code)
			return
		}
	}
	w.t.Errorf("node %s refuses no client", n.Name)
}

// connect is what a server answers to a CONNECT.
func connect(nc net.Conn) (mqtt.ReasonCode, error) {
	c := wire.New(nc, 1<<20)
	if err := c.WriteFor(mqtt.AppendConnect(nil, &mqtt.Connect{Version: mqtt.V5, CleanStart: true, ClientID: []byte("newcomer")}), patience); err != nil {
		return 0, err
	}
	p, err := c.Next(time.Now().Add(patience))
	if err != nil {
		return 0, err
	}
	var ack mqtt.Connack
	if err := ack.Decode(mqtt.V5, p.Body); err != nil || p.Type() != mqtt.CONNACK {
		return 0, fmt.Errorf("%v: %w", p.Type(), err)
	}
	return ack.Code, nil
}

// sameData has one node after the other lead, and compares what they hold.
func (w *world) sameData() {
	w.t.Helper()
	var first map[string]client.Value
	for _, n := range w.Nodes() {
		w.lead(n)
		c, _ := w.dial(n)
		all := map[string]client.Value{}
		for e, err := range c.ScanValues(w.ctx, "*") {
			w.must(err)
			if e.Key != nodes.ProbeKey {
				all[e.Key] = e.Value
			}
		}
		if first == nil {
			first = all
		}
		if got, want := fmt.Sprint(all), fmt.Sprint(first); got != want {
			w.t.Errorf("node %s holds\n%s\nand node %s\n%s", n.Name, got, w.Nodes()[0].Name, want)
		}
	}
}
