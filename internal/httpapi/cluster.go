package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
)

// clusterPath is where a node answers for its cluster.
const clusterPath = Prefix + "v1/cluster"

// OfNode says whether a node answers requests for a path also while it does not lead.
func OfNode(path string) bool { return path == clusterPath || strings.HasPrefix(path, clusterPath+"/") }

// Reporter answers for a node of a cluster.
type Reporter interface {
	Status(ctx context.Context) control.Report
	Transfer(ctx context.Context, to string) error
}

// Cluster is what a node knows of its cluster.
type Cluster struct {
	Node    string `json:"node"` // the one that answers
	Leader  string `json:"leader,omitempty"`
	Quorum  bool   `json:"quorum"`            // as many nodes answer as the cluster needs
	Problem string `json:"problem,omitempty"` // what an operator should know; empty: all is well
	// Clocks says of each node whose wall clock is not right by how much, in a sentence.
	Clocks []string `json:"clocks,omitempty"`
	Nodes  []Node   `json:"nodes"` // by name
}

// Node is one node of a Cluster.
type Node struct {
	Name          string `json:"name"`
	Address       string `json:"address"` // of its cluster port
	Role          string `json:"role"`
	Term          int64  `json:"term"`
	Lag           int64  `json:"lag"`                     // entries behind the leader, as far as that is known
	Learner       bool   `json:"learner,omitempty"`       // it has no vote yet
	ReceivedBytes int64  `json:"receivedBytes,omitempty"` // of the leader's data, while it gets all of it
	ReceiveBytes  int64  `json:"receiveBytes,omitempty"`  // how much that is
	Console       string `json:"console,omitempty"`       // HOST:PORT of --admin
	Error         string `json:"error,omitempty"`         // why it does not answer
}

// Transfer is a body that asks for another leader.
type Transfer struct {
	To string `json:"to,omitempty"` // the node's name; empty: the one that is furthest
}

// Transferred says that the leadership was given away.
type Transferred struct {
	Transferred bool `json:"transferred"`
}

// reporting bounds what asks other nodes, in time.
const reporting = 15 * time.Second

// errAlone is for a server that is no node of a cluster.
var errAlone = failed(http.StatusNotFound, "this server is by itself, and no node of a cluster (--node)")

func (a *API) clusterStatus(*request) (any, error) {
	if a.o.Cluster == nil {
		return nil, errAlone
	}
	ctx, cancel := context.WithTimeout(context.Background(), reporting)
	defer cancel()
	r := a.o.Cluster.Status(ctx)
	out := Cluster{Node: r.Node, Leader: r.Leader, Quorum: r.Quorum, Problem: r.Explain(), Clocks: r.Clocks(), Nodes: []Node{}}
	for _, n := range r.Nodes {
		out.Nodes = append(out.Nodes, Node{
			Name: n.Name, Address: n.Address, Role: n.Role, Term: int64(n.Term), Lag: int64(n.Lag), Learner: n.Learner,
			ReceivedBytes: n.Received, ReceiveBytes: n.ReceiveBytes, Console: n.Admin, Error: n.Error,
		})
	}
	return out, nil
}

func (a *API) transfer(q *request) (any, error) {
	if a.o.Cluster == nil {
		return nil, errAlone
	}
	var t Transfer
	lines := json.NewDecoder(strings.NewReader(string(q.body)))
	lines.DisallowUnknownFields()
	if err := lines.Decode(&t); err != nil {
		return nil, failed(http.StatusBadRequest, "the body is not what it should be: %v", err)
	}
	q.detail = "to " + cut(t.To)
	ctx, cancel := context.WithTimeout(context.Background(), reporting)
	defer cancel()
	if err := a.o.Cluster.Transfer(ctx, t.To); err != nil {
		return nil, failed(http.StatusConflict, "%v", err)
	}
	return Transferred{true}, nil
}
