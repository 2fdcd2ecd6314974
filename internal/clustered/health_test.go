package clustered_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
)

// fetch asks the listener of --admin of a node.
func (c *cluster) fetch(name, path string) (status int, text string) {
	c.t.Helper()
	answer, err := http.Get("http://" + c.nodes[name].AdminAddr().String() + path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it was not so in time: %s", what)
		}
	}
}

// health asks a node through its socket.
func (c *cluster) health(name string) string {
	c.t.Helper()
	unready, err := control.Health(c.t.Context(), c.dirs[name])
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(unready, "; ")
}

// Every node says how it is, also while it follows, and when there is no leader.
func TestHealthOfEachNode(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	for name := range c.nodes {
		await(t, name+" is ready", func() bool { status, text := c.fetch(name, "/readyz"); return status == 200 && text == "ready\n" })
		await(t, name+" says so through its socket", func() bool { return c.health(name) == "" })
		if status, text := c.fetch(name, "/healthz"); status != 200 || text != "ok\n" {
			t.Errorf("%s: %d %q", name, status, text)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.nodes[leader].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, leader)
	now, _ := c.leader()
	await(t, "the new leader is ready", func() bool { status, _ := c.fetch(now, "/readyz"); return status == 200 })
	if err := c.nodes[now].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, now)
	last := others[0]
	if last == now {
		last = others[1]
	}
	const why = "this node knows no leader: see holdfast cluster status"
	await(t, "the last node knows no leader", func() bool {
		status, text := c.fetch(last, "/readyz")
		return status == 503 && text == "not ready: "+why+"\n"
	})
	await(t, "it says so through its socket", func() bool { return c.health(last) == why })
	if status, _ := c.fetch(last, "/healthz"); status != 200 {
		t.Errorf("/healthz of a node without a quorum: %d", status)
	}
	if status, text := c.fetch(last, "/metrics"); status != 200 || !strings.Contains(text, `holdfast_cluster_role{node="`+last+`",role="candidate"} 1`) {
		t.Errorf("/metrics of a node without a quorum: %d\n%s", status, text)
	}
}

// Each node serves its figures; the one that leads also those of its server.
func TestMetricsOfEachNode(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	for name := range c.nodes {
		c.client(name) // which connects again if another node becomes the leader
	}
	var missing []string
	served := func(name, text string, want ...string) {
		for _, line := range want {
			if !regexp.MustCompile(`(?m)^` + line + `$`).MatchString(text) {
				missing = append(missing, name+": "+line)
			}
		}
	}
	all := func() bool {
		missing = nil
		leader, others := c.leader()
		for name := range c.nodes {
			status, text := c.fetch(name, "/metrics")
			if status != 200 {
				t.Fatalf("%s: status %d: %s", name, status, text)
			}
			served(name, text, `holdfast_cluster_leader\{leader="`+leader+`"\} 1`, `holdfast_cluster_term [1-9]\d*`, `holdfast_cluster_elections_total [1-9]\d*`,
				`holdfast_cluster_lag_entries 0`, `holdfast_cluster_log_bytes [1-9].*`, `holdfast_cluster_snapshots_total\{event="sent"\} 0`,
				`holdfast_cluster_snapshot_bytes_total\{direction="received"\} 0`, `holdfast_cluster_relay_memory_max_bytes 6.7108864e\+07`, `holdfast_cluster_disk_full 0`,
				`process_resident_memory_bytes .*`, `holdfast_journal_fsync_seconds_count [1-9]\d*`, `holdfast_journal_fsync_seconds_sum [0-9.e-]*[1-9].*`)
			if name == leader {
				served(name, text, `holdfast_cluster_role\{node="`+name+`",role="leader"\} 1`, `holdfast_cluster_lease_seconds [0-9.e-]*[1-9].*`,
					`holdfast_cluster_follower_lag_entries\{follower="`+others[1]+`"\} 0`, `holdfast_connections 3`)
				continue
			}
			served(name, text, `holdfast_cluster_role\{node="`+name+`",role="follower"\} 1`, `holdfast_cluster_lease_seconds 0`, `holdfast_cluster_relay_connections\{state="passing"\} 1`,
				`holdfast_cluster_relay_connections\{state="held"\} 0`, `holdfast_cluster_relay_connections_total\{outcome="passed"\} [1-9]\d*`)
			if strings.Contains(text, "holdfast_connections ") {
				missing = append(missing, name+", which follows, serves the metrics of a server")
			}
		}
		return len(missing) == 0
	}
	for end := time.Now().Add(patience); !all(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there are no lines %q", missing)
		}
	}
}

// A node that is paused, or on a machine that is gone, does not answer at all. The status of the
// others comes nevertheless at once, and says so.
func TestStatusBesideANodeThatIsSilent(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	silent, asked := others[0], others[1]
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	at := c.nodes[silent].ClusterAddr().String()
	if err := c.nodes[silent].Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	delete(c.nodes, silent)
	l, err := net.Listen("tcp", at) // it takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := control.Transfer(ctx, c.dirs[leader], silent); err == nil || !strings.Contains(err.Error(), "node "+silent+" does not answer") {
		t.Errorf("the leadership is to go to a node that is silent: %v", err)
	}
	await(t, "the status comes without the node's, once the leader knows that it does not hear it", func() bool {
		began := time.Now()
		report, err := control.Status(ctx, c.dirs[asked])
		took := time.Since(began)
		if err != nil {
			t.Fatal(err)
		}
		line, _ := report.Named(silent)
		return line.Role == control.Unreachable && line.Error == "it does not answer" && report.Leader != "" && slices.Equal(report.Missing, []string{silent}) && took < 1900*time.Millisecond
	})
}
