package clustered

import (
	"fmt"
	"net"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// maxReadyLag is how many entries a node that is ready may lack: about a second of a busy leader.
// It would serve clients within a second after that if it became the leader now.
const maxReadyLag = 10_000

// openAdmin serves health and metrics of the node, on the leader and on the others. What only a
// server knows, such as who is an administrator, comes with each server.
func (n *Node) openAdmin() (err error) {
	if n.config.Admin == "" {
		return nil
	}
	part := admin.Part{Ready: n.starting, Metrics: metrics.NodeHandler(n.figures)}
	o := n.config.AdminOptions(part, n.log, nil)
	o.Later = true
	if n.admin, err = admin.Open(o); err != nil {
		return err
	}
	n.asked.Go(func() {
		defer failstop.End(n.log, "the listener of --admin")
		n.admin.Serve()
	})
	n.log.Info("health and metrics are served", "admin", n.admin.Addr())
	return nil
}

// AdminAddr is the address of --admin; nil: there is none.
func (n *Node) AdminAddr() net.Addr {
	if n.admin == nil {
		return nil
	}
	return n.admin.Addr()
}

// adminAddress is what other nodes are told: HOST:PORT, with the host as configured.
func (n *Node) adminAddress() string {
	if n.admin == nil {
		return ""
	}
	host, _, _ := net.SplitHostPort(n.config.Admin)
	_, port, _ := net.SplitHostPort(n.admin.Addr().String())
	return net.JoinHostPort(host, port)
}

func (n *Node) nodeFigures() (f node.Figures) {
	if open := n.opened.Load(); open != nil {
		f = open.Figures()
	}
	return f
}

// starting is why a node is not ready whose first server has not begun to start.
func (n *Node) starting() []string {
	return []string{"the node is starting: the first start of a cluster waits for all of its nodes, and that of a node that is to be added for holdfast cluster add"}
}

// health is why the node is not ready; empty: it is. It is asked through the socket for
// operators, as the listener of --admin asks the server.
func (n *Node) health() []string {
	if s := n.serving.Load(); s != nil {
		return s.Unready()
	}
	return n.unready(server.Following)
}

// unready says why clients that connect to this node are not served: given what its server does.
func (n *Node) unready(phase string) []string {
	s := n.Status()
	switch {
	case phase == server.Following:
		return follows(&s)
	case phase != "":
		return []string{phase}
	case s.Role != node.Leader:
		return []string{"this node has lost its office, and its server ends"}
	case s.Lease == 0:
		return []string{"this node leads, and no quorum of the nodes confirms it at the moment: see holdfast cluster status"}
	}
	return nil
}

// follows says why a node without a server that serves clients is not ready.
func follows(s *node.Status) []string {
	switch {
	case s.Role == node.Leader:
		return []string{"this node has become the leader, and reads its data"}
	case s.Role == node.Receiving:
		return []string{fmt.Sprintf("the leader sends this node all data: %d of %d bytes have arrived", s.Received, s.ReceiveBytes)}
	case s.Leader == 0:
		return []string{"this node knows no leader: see holdfast cluster status"}
	case s.DiskFull:
		return []string{"the disk of this node is full, so it takes nothing from the leader"}
	case !s.LagKnown:
		return []string{"the leader has not said yet what this node lacks"}
	case s.Lag > maxReadyLag:
		return []string{fmt.Sprintf("this node lacks %d entries of the log, and may lack %d", s.Lag, maxReadyLag)}
	}
	return nil
}
