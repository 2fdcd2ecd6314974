package metrics

import (
	"net/http"
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/fronts"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/replica/clocks"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/relay"
)

// Cluster is what the figures of a node of a cluster are read from. All are needed.
type Cluster struct {
	Status  func() node.Status
	Figures func() node.Figures
	Relay   func() relay.Figures
	Fronts  func() fronts.Figures
	Clocks  func() clocks.State
}

// clusterMoment is what is read once for an answer.
type clusterMoment struct {
	status  node.Status
	figures node.Figures
	relay   relay.Figures
	fronts  fronts.Figures
	clocks  clocks.State
}

func (c *Cluster) now() *clusterMoment {
	return &clusterMoment{c.Status(), c.Figures(), c.Relay(), c.Fronts(), c.Clocks()}
}

// NodeHandler serves the metrics of a node on which no server serves clients: those of the node,
// the fsyncs of its log, those of the process and of Go's runtime.
func NodeHandler(c Cluster) http.Handler {
	return serve(collect(slices.Concat(ofNode, []family{fsyncTimes}), func() *moment {
		m := &moment{cluster: c.now()}
		m.journal.Fsyncs = m.cluster.figures.Fsyncs
		return m
	}))
}

// fsyncTimes are of the log of a server, and of that of a node whether it leads or not.
var fsyncTimes = family{
	name: "holdfast_journal_fsync_seconds", help: "time of an fsync of the log",
	histograms: func(m *moment, emit func(histogram.Snapshot, float64, ...string)) { emit(m.journal.Fsyncs, 1e9) },
}

// whole is for a family of integers.
func whole(values func(c *clusterMoment, emit func(v int64, labels ...string))) func(*moment, func(float64, ...string)) {
	return func(m *moment, emit func(float64, ...string)) {
		values(m.cluster, func(v int64, labels ...string) { emit(float64(v), labels...) })
	}
}

// single is for a family of one integer without labels.
func single(value func(c *clusterMoment) int64) func(*moment, func(float64, ...string)) {
	return whole(func(c *clusterMoment, emit func(int64, ...string)) { emit(value(c)) })
}

func asNumber(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

var roles = []string{node.Leader, node.Follower, node.Candidate, node.Receiving}

// ofNode are the metrics of a node of a cluster, which a server by itself does not have.
var ofNode = []family{
	{name: "holdfast_cluster_role", kind: gauge, labels: []string{"node", "role"}, help: "1 for the role of this node of a cluster: leader, follower, candidate (it knows no leader) or receiving (it gets all data from the leader)",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			for _, role := range roles {
				emit(asNumber(c.status.Role == role), c.status.Name, role)
			}
		})},
	{name: "holdfast_cluster_leader", kind: gauge, labels: []string{"leader"}, help: "1 for each node that this one takes for the leader: none or one",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			for _, m := range c.status.Members {
				emit(asNumber(m.ID == c.status.Leader), m.Name)
			}
		})},
	{name: "holdfast_cluster_term", kind: gauge, help: "the term, which each election makes larger", values: single(func(c *clusterMoment) int64 { return int64(c.status.Term) })},
	{name: "holdfast_cluster_elections_total", kind: counter, help: "leaders that this node has learned of since its start: elections, but for those that it missed", values: single(func(c *clusterMoment) int64 { return c.figures.Leaders })},
	{name: "holdfast_cluster_lag_entries", kind: gauge, help: "entries of the log that this node's database lacks, as far as the leader has told it",
		values: single(func(c *clusterMoment) int64 { return int64(c.status.Lag) })},
	{name: "holdfast_cluster_follower_lag_entries", kind: gauge, labels: []string{"follower"}, help: "entries that the log of another node lacks, on the leader",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			for _, m := range c.status.Members {
				if c.status.Role == node.Leader && m.ID != c.status.ID {
					emit(int64(m.Lag), m.Name)
				}
			}
		})},
	{name: "holdfast_cluster_lease_seconds", kind: gauge, help: "for how much longer this node, as the leader, may answer reads from memory; 0: it may not",
		values: func(m *moment, emit func(float64, ...string)) { emit(m.cluster.status.Lease.Seconds()) }},
	{name: "holdfast_cluster_committed_entries", kind: gauge, help: "index of the last entry that this node knows to be committed", values: single(func(c *clusterMoment) int64 { return int64(c.status.Committed) })},
	{name: "holdfast_cluster_format_level", kind: gauge, labels: []string{"of"}, help: "format level of the cluster, and the highest that this node's program knows: the former rises when all nodes know more",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			emit(int64(c.status.InForce), "cluster")
			emit(int64(c.status.Level), "program")
		})},
	{name: "holdfast_cluster_disk_full", kind: gauge, help: "1 while this node takes no entries of a leader, for lack of free space", values: single(func(c *clusterMoment) int64 { return asNumber(c.status.DiskFull) })},
	{name: "holdfast_cluster_clock_offset_seconds", kind: gauge, labels: []string{"peer"}, help: "how far the wall clock of another node is ahead of this node's, by the last comparison, to within half a round trip; nodes that did not answer have no value",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, r := range m.cluster.clocks.Readings {
				emit(r.Ahead.Seconds(), r.Name)
			}
		}},
	{name: "holdfast_cluster_clock_wrong", kind: gauge, help: "1 while this node's clock is further from a majority's than half of --max-clock-skew: it does not lead as long as another node can", values: single(func(c *clusterMoment) int64 { return asNumber(c.clocks.Wrong) })},
	{name: "holdfast_cluster_log_bytes", kind: gauge, help: "bytes on disk of the entries in the log of a node of a cluster (--cluster-log-keep)", values: single(func(c *clusterMoment) int64 { return c.figures.LogBytes })},
	{name: "holdfast_cluster_log_memory_bytes", kind: gauge, help: "bytes of these entries that are in memory, too", values: single(func(c *clusterMoment) int64 { return c.figures.LogMemoryBytes })},
	{name: "holdfast_cluster_snapshots_total", kind: counter, labels: []string{"event"}, help: "snapshots: sent whole to a node that was away for too long; installed by this node; failed, of both",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			emit(c.figures.SnapshotsSent, "sent")
			emit(c.figures.SnapshotsTaken, "installed")
			emit(c.figures.SnapshotsFailed, "failed")
		})},
	{name: "holdfast_cluster_snapshot_bytes_total", kind: counter, labels: []string{"direction"}, help: "bytes of snapshots",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			emit(c.figures.SnapshotBytesSent, "sent")
			emit(c.figures.SnapshotBytesReceived, "received")
		})},
	{name: "holdfast_cluster_relay_connections", kind: gauge, labels: []string{"state"}, help: "connections of clients to this node while it does not lead: held until a leader takes them; passing, which the leader has",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			emit(c.relay.Held, "held")
			emit(c.relay.Passing, "passing")
		})},
	{name: "holdfast_cluster_relay_connections_max", kind: gauge, help: "bound of them together (--max-connections, and half of the descriptors)", values: single(func(c *clusterMoment) int64 { return c.relay.MaxConnections })},
	{name: "holdfast_cluster_relay_connections_total", kind: counter, labels: []string{"outcome"}, help: "connections that were passed to a leader; refused, because no leader took them in time; beyond the bound; vanished, whose client had gone before",
		values: whole(func(c *clusterMoment, emit func(int64, ...string)) {
			emit(int64(c.relay.Passed), "passed")
			emit(int64(c.relay.Refused), "refused")
			emit(int64(c.relay.Beyond), "beyond")
			emit(int64(c.relay.Vanished), "vanished")
		})},
	{name: "holdfast_cluster_relay_memory_bytes", kind: gauge, help: "large buffers of what is being passed on", values: single(func(c *clusterMoment) int64 { return c.relay.Buffered })},
	{name: "holdfast_cluster_relay_memory_max_bytes", kind: gauge, help: "bound of them (--cluster-relay-memory)", values: single(func(c *clusterMoment) int64 { return c.relay.MaxBuffered })},
	{name: "holdfast_cluster_front_links", kind: gauge, help: "connections of fronts (holdfast front) that carry clients", values: single(func(c *clusterMoment) int64 { return int64(c.fronts.Links) })},
	{name: "holdfast_cluster_front_clients", kind: gauge, help: "clients that these carry", values: single(func(c *clusterMoment) int64 { return int64(c.fronts.Clients) })},
	{name: "holdfast_cluster_front_unread_bytes", kind: gauge, help: "buffers with what these clients have sent and the server has not read yet", values: single(func(c *clusterMoment) int64 { return c.fronts.Unread })},
	{name: "holdfast_cluster_front_unread_max_bytes", kind: gauge, help: "bound of them (--cluster-relay-memory); beyond, the client that sends more is disconnected", values: single(func(c *clusterMoment) int64 { return c.fronts.MaxUnread })},
}
