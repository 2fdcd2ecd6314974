package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	"github.com/holdfast-mqtt/holdfast/internal/pebblefile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// Replicated is what a server has of the cluster, of which it is the leader's part. Package
// member makes it, one for each server.
type Replicated struct {
	// Log is the journal's log. StartContext waits until the node leads.
	Log *node.Log
	// Listen opens the listener with this place among Config.ListenConfigs. nil: listen.Open does.
	Listen func(place int, c listen.Config, o listen.Options) (*listen.Listener, error)
	// Clock gives the clock of versions and deadlines, when the node leads: it may wait until the clock was
	// compared with the other nodes'. nil: Config.Clock is it.
	Clock func() engine.Clock
	// Fronts gives the listener of clients that fronts pass on, which have come in at these listeners.
	// nil: there are none.
	Fronts func(listeners []*listen.Listener) net.Listener
	// Admin is the node's listener for health and metrics, which the server uses as long as it runs;
	// nil: it opens its own, if Config.Admin says so.
	Admin *admin.Server
	// Unready are the reasons why the node serves no clients and passes none on, given what the
	// server does besides serving clients; nil: that is the reason.
	Unready func(phase string) []string
	Cluster *metrics.Cluster // the node's figures; nil: none
	// Standby is called before StartContext waits for the node to lead. Until then, and afterwards,
	// Reload and Adjust may be called. nil: nothing happens.
	Standby func(*Server)
	// Reporter answers administrators' questions about the cluster; nil: they ask at the node's socket.
	Reporter httpapi.Reporter
}

// Following is what a server does, as Replicated.Unready is told, until its node leads.
const Following = "this node follows the leader of its cluster"

var (
	// ErrClockBehind: the machine's clock is behind the last version that the store has issued,
	// so this node must not lead.
	ErrClockBehind = errors.New("the machine's clock is behind the versions of the store")
	// errClusterData: the data directory is a node's.
	errClusterData = errors.New("the data directory belongs to a node of a cluster")
)

// notOfNodes is why the data of a node, whose log is another one, is not checked or salvaged.
const notOfNodes = "this version checks and salvages only the data of a server that is by itself"

// lost is closed when the journal can't write any more because its node has lost its office.
type lost struct {
	once *sync.Once
	c    chan struct{}
}

func newLost() lost { return lost{new(sync.Once), make(chan struct{})} }

// Lost is closed when the server must be shut down because what it is told to store is not
// stored any more: its node does not lead. A server that is by itself ends its process instead.
func (s *Server) Lost() <-chan struct{} { return s.lost.c }

// replicate sets what a journal needs of the cluster, if there is one.
func (s *Server) replicate(o *journal.Options) error {
	r := s.config.Replicated
	if r == nil {
		return s.refuseClusterData()
	}
	s.setPhase(Following)
	o.Log, o.Row = r.Log.Open, r.Log.Row
	if r.Standby != nil {
		r.Standby(s)
	}
	o.Fatal = func(err error) {
		if !errors.Is(err, journal.ErrLost) {
			s.log.Error("giving up: writes do not reach the disk", "error", pebblefile.PlainError(err))
			os.Exit(1)
		}
		s.lost.once.Do(func() { close(s.lost.c) })
	}
	return nil
}

// refuseClusterData refuses to run by itself on the data of a node: what it would write the
// other nodes would never have.
func (s *Server) refuseClusterData() error {
	return s.config.refuseClusterData("start it as that node, or choose another directory")
}

// refuseClusterData returns errClusterData if the data directory is a node's, with what to do
// instead.
func (c *Config) refuseClusterData(instead string) error {
	fsys := c.FS
	if fsys == nil {
		fsys = vfs.Default
	}
	is, err := identity.InCluster(fsys, c.DataDir)
	switch {
	case err != nil:
		return fmt.Errorf("data directory %s cannot be read: %w", c.DataDir, err)
	case is:
		return fmt.Errorf("%w: %s has a directory %q; %s", errClusterData, c.DataDir, identity.Dir, instead)
	}
	return nil
}

// clock is that of versions and deadlines, and the broker's wall clock; nil: the machine's.
func (s *Server) clock() (c engine.Clock, wallMs func() int64) {
	if r := s.config.Replicated; r != nil && r.Clock != nil {
		c = r.Clock()
		return c, c.WallMs
	}
	return s.config.Clock, nil
}

// VersionsAhead is how far the last version is ahead of the server's clock.
func (s *Server) VersionsAhead() time.Duration {
	return time.Duration(s.engine.Stats().AheadMs) * time.Millisecond
}

// awaitRead is what the broker has to wait for before it answers; nil: nothing.
func (s *Server) awaitRead() func() bool {
	if s.config.Replicated == nil {
		return nil
	}
	return s.config.Replicated.Log.Office().AwaitRead
}

// openListener opens a listener.
func (s *Server) openListener(place int, c listen.Config, o listen.Options) (*listen.Listener, error) {
	if r := s.config.Replicated; r != nil && r.Listen != nil {
		return r.Listen(place, c, o)
	}
	return listen.Open(c, o)
}
