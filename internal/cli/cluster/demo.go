package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/datadir"
	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// NewDemoCommand makes the command demo-cluster.
func NewDemoCommand() *cobra.Command {
	var d demo
	cmd := &cobra.Command{
		Use:   "demo-cluster",
		Short: "Run three nodes of a cluster on this machine, to try it",
		Long: `Run a cluster of three nodes on this machine, each as a process of its own, until
Ctrl-C. Clients may connect to any of the three addresses that it prints, and a browser
to the console of each node, whose page Cluster shows all of them. Kill one of the
processes to see what happens: the other two go on, with every key and message.

Without --data the nodes keep their data in a temporary directory, which is removed
at the end.`,
		Example: `  holdfast demo-cluster
  holdfast demo-cluster --data demo --port 2883`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.out = cmd.OutOrStdout()
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&d.dir, "data", "", "`DIR` for the nodes' data and logs (default: a temporary one)")
	f.IntVar(&d.port, "port", 1883, "port of the first node for clients; the others take the next ones, for each other ports that are 10000 higher, and for their consoles ports that are 20000 higher; 0: any that are free")
	return cmd
}

// demo is a cluster of child processes.
type demo struct {
	dir  string
	port int

	mu    sync.Mutex
	out   io.Writer // mu
	nodes []*demoNode
}

type demoNode struct {
	name, clients, cluster, console, data, log string
	arguments                                  []string
	cmd                                        *exec.Cmd
}

const (
	demoMaxPort  = 45_000           // so that the highest of all ports is one
	demoGrace    = 15 * time.Second // for the nodes to stop
	demoPatience = time.Minute      // for the first leader
	demoPause    = 100 * time.Millisecond
	demoReason   = 4 << 10 // bytes of a log's end
)

func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, format, args...)
}

func (d *demo) run(ctx context.Context) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	}
	if err := d.plan(); err != nil {
		return err
	}
	if !signal.Ignored(syscall.SIGHUP) { // of a terminal that is closed
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
		defer stop()
	}
	ended := make(chan *demoNode, len(d.nodes))
	stopping, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		stop()
		running.Wait()
	}()
	for _, n := range d.nodes {
		if err := n.start(program); err != nil {
			return err
		}
		running.Go(func() {
			n.wait(stopping)
			ended <- n
		})
	}
	for _, n := range d.nodes {
		d.say("node %s  %s  console http://%s/  process %d  data %s  log %s\n", n.name, n.clients, n.console, n.cmd.Process.Pid, n.data, n.log)
	}
	left := len(d.nodes)
	waited, found := context.WithTimeout(ctx, demoPatience)
	defer found()
	leader := make(chan string, 1)
	running.Go(func() { leader <- d.awaitLeader(waited) })
	for left > 0 {
		select {
		case name := <-leader:
			if name != "" {
				d.say("node %s leads. Clients may connect to any node. To kill the leader: kill -9 %d\nCtrl-C stops all nodes.\n", name, d.node(name).cmd.Process.Pid)
			} else if ctx.Err() == nil {
				d.say("no node leads after %v: the logs say why. Ctrl-C stops all nodes.\n", demoPatience)
			}
			leader = nil
		case n := <-ended:
			left--
			if ctx.Err() == nil {
				d.say("node %s has ended (%s). To start it again: %s\n", n.name, n.end(), n.command(program))
			}
		}
	}
	if ctx.Err() == nil {
		return errors.New("all nodes have ended")
	}
	d.say("stopped\n")
	return nil
}

// plan decides about addresses and directories.
func (d *demo) plan() error {
	if d.port < 0 || d.port > demoMaxPort {
		return fmt.Errorf("--port %d: want 0 to %d", d.port, demoMaxPort)
	}
	dir, err := filepath.Abs(d.dir)
	if err != nil {
		return err
	}
	var peers []string
	var held []net.Listener // until all addresses are chosen, so that none is chosen twice
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for i, name := range []string{"a", "b", "c"} {
		n := &demoNode{name: name, data: filepath.Join(dir, name), log: filepath.Join(dir, name+".log")}
		for _, address := range []struct {
			of     *string
			higher int
		}{{&n.clients, 0}, {&n.cluster, 10_000}, {&n.console, 20_000}} {
			port := 0
			if d.port > 0 {
				port = d.port + address.higher + i
			}
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				return fmt.Errorf("%w: choose other ports with --port", err)
			}
			held = append(held, l)
			*address.of = l.Addr().String()
		}
		if err := isFree(filepath.Join(n.data, node.Dir)); errors.Is(err, datadir.ErrLocked) {
			return fmt.Errorf("a node runs on %s: stop it, or choose another directory with --data: %w", n.data, err)
		} else if err != nil {
			return err
		}
		peers = append(peers, name+"="+n.cluster)
		d.nodes = append(d.nodes, n)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, n := range d.nodes {
		n.arguments = []string{"serve", "--node", n.name, "--listen", n.clients, "--admin", n.console, "--data", n.data, "--cluster-peers", strings.Join(peers, ",")}
	}
	return nil
}

// isFree fails with datadir.ErrLocked if a node runs on a directory.
func isFree(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return nil // it is made when its node starts
	}
	l, err := datadir.Acquire(vfs.Default, dir)
	if err != nil {
		return err
	}
	return l.Close()
}

// command is what starts the node, for a shell.
func (n *demoNode) command(program string) string {
	words := []string{output.ShellWord(program)}
	for _, a := range n.arguments {
		words = append(words, output.ShellWord(a))
	}
	return strings.Join(words, " ")
}

// end says how the node's process has ended, and why if it knows: that is the last line of its log.
func (n *demoNode) end() string {
	how := n.cmd.ProcessState.String()
	if n.cmd.ProcessState.ExitCode() <= 0 { // a signal, or a node that was told to
		return how
	}
	log, err := os.Open(n.log)
	if err != nil {
		return how
	}
	defer log.Close()
	_, _ = log.Seek(-demoReason, io.SeekEnd) // else it is shorter
	text, err := io.ReadAll(io.LimitReader(log, demoReason))
	if err != nil || len(text) == 0 {
		return how
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return how + ": " + lines[len(lines)-1]
}

func (n *demoNode) start(program string) error {
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(program, n.arguments...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	detach(n.cmd)
	return n.cmd.Start()
}

// wait waits until the node has ended, which it is told to do when ctx ends.
func (n *demoNode) wait(ctx context.Context) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(demoGrace):
			_ = n.cmd.Process.Kill()
		}
	})
	defer stop()
	_ = n.cmd.Wait() // the process's state says how it ended
	close(ended)
}

func (d *demo) node(name string) *demoNode {
	for _, n := range d.nodes {
		if n.name == name {
			return n
		}
	}
	return d.nodes[0]
}

// awaitLeader is the name of the leader; empty: ctx has ended before there was one.
func (d *demo) awaitLeader(ctx context.Context) string {
	for {
		for _, n := range d.nodes {
			if report, err := control.Status(ctx, n.data); err == nil && report.Leader != "" {
				return report.Leader
			}
		}
		select {
		case <-time.After(demoPause):
		case <-ctx.Done():
			return ""
		}
	}
}
