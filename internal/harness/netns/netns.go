// Package netns makes networks in which tests run programs as on machines of their own: each
// host is a network namespace of Linux, joined to the others by a bridge in one more. Links
// can be cut, for one direction as well, and slowed down.
//
// Nothing of a network has a name outside of it, so any number of them can be there at the same
// time, with the same addresses; and all of it goes away with the process that has made it and
// with those that run in it, however they end. The package needs root and the program ip of
// iproute2; see [Unavailable].
//
// A direction between two hosts is cut by a wrong entry in the sender's table of neighbours: its
// packets leave for a machine that is not there. The sender hears nothing of that, as of a
// broken cable behind a switch. [Host.Unplug] takes the carrier away.
package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// Network is hosts that a bridge joins. Its methods are safe for concurrent use; those that
// change one link may be called by one goroutine at a time.
type Network struct {
	bridge *os.File // the namespace
	hosts  []*Host
}

// Host is one of them.
type Host struct {
	Address string // IPv4, without a port

	network   *Network
	number    int
	namespace *os.File
}

// MaxHosts bounds the hosts of a network.
const MaxHosts = 100

// commandTimeout bounds a call of ip or tc.
const commandTimeout = 30 * time.Second

// Unavailable says why this process can make no network; nil: it can.
func Unavailable() error {
	if err := mayMake(); err != nil {
		return err
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("the program ip is missing: install iproute2: %w", err)
	}
	return nil
}

// New makes a network with so many hosts, each of which reaches all others.
func New(hosts int) (n *Network, err error) {
	if hosts < 1 || hosts > MaxHosts {
		return nil, fmt.Errorf("a network of %d hosts: want 1 to %d", hosts, MaxHosts)
	}
	n = &Network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.bridge, err = makeNamespace(); err != nil {
		return nil, err
	}
	if err := ip(n.bridge, "link add bridge type bridge", "link set bridge up"); err != nil {
		return nil, err
	}
	for i := 1; i <= hosts; i++ {
		h := &Host{Address: fmt.Sprintf("10.77.0.%d", i), network: n, number: i}
		if h.namespace, err = makeNamespace(); err != nil {
			return nil, err
		}
		n.hosts = append(n.hosts, h)
		if err := h.join(hosts); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// join connects a host with the bridge.
func (h *Host) join(hosts int) error {
	err := ip(h.namespace,
		"link set lo up",
		fmt.Sprintf("link add eth0 address %s type veth peer name %s netns /proc/%d/fd/%d", mac(h.number), h.port(), os.Getpid(), h.network.bridge.Fd()),
		fmt.Sprintf("addr add %s/24 dev eth0", h.Address),
		"link set eth0 up")
	if err == nil {
		err = ip(h.network.bridge, fmt.Sprintf("link set %s master bridge", h.port()), fmt.Sprintf("link set %s up", h.port()))
	}
	var neighbours []string
	for i := 1; i <= hosts; i++ {
		if i != h.number {
			neighbours = append(neighbours, fmt.Sprintf("neigh replace 10.77.0.%d lladdr %s dev eth0 nud permanent", i, mac(i)))
		}
	}
	if err == nil && neighbours != nil {
		err = ip(h.namespace, neighbours...)
	}
	return err
}

// port is the name of the bridge's end of a host's link.
func (h *Host) port() string { return fmt.Sprintf("port%d", h.number) }

// nowhere is a number that no host has.
const nowhere = 255

// mac is the address of a host's interface.
func mac(number int) string { return fmt.Sprintf("02:00:00:00:00:%02x", number) }

// ip runs commands of ip in a namespace.
func ip(namespace *os.File, commands ...string) error {
	return run(namespace, strings.Join(commands, "\n")+"\n", "ip", "-batch", "-")
}

// run runs a program in a namespace until it has ended.
func run(namespace *os.File, input string, program string, args ...string) error {
	return in(namespace, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s\n%s", program, strings.Join(args, " "), err, bytes.TrimSpace(out), input)
		}
		return nil
	})
}

// Hosts are all hosts.
func (n *Network) Hosts() []*Host { return n.hosts }

// Close takes the network away, from programs that still run in it as well.
func (n *Network) Close() (err error) {
	if n.bridge == nil {
		return nil
	}
	for _, h := range n.hosts {
		err = errors.Join(err, ip(n.bridge, "link del "+h.port()), h.namespace.Close())
	}
	err = errors.Join(err, n.bridge.Close())
	n.bridge = nil
	return err
}

// Cut has everything lost that a host sends to another one. The other direction stays.
func (n *Network) Cut(from, to *Host) error { return from.sendTo(to, nowhere) }

// Mend is the end of Cut.
func (n *Network) Mend(from, to *Host) error { return from.sendTo(to, to.number) }

func (h *Host) sendTo(other *Host, number int) error {
	return ip(h.namespace, fmt.Sprintf("neigh replace %s lladdr %s dev eth0 nud permanent", other.Address, mac(number)))
}

// Part cuts both directions between each host of one group and each of the other.
func (n *Network) Part(one, other []*Host) error { return n.each(n.Cut, one, other) }

// Heal mends all directions and plugs all hosts in.
func (n *Network) Heal() error {
	err := n.each(n.Mend, n.hosts, n.hosts)
	for _, h := range n.hosts {
		err = errors.Join(err, h.Plug())
	}
	return err
}

func (n *Network) each(change func(from, to *Host) error, one, other []*Host) (err error) {
	for _, a := range one {
		for _, b := range other {
			if a != b {
				err = errors.Join(err, change(a, b), change(b, a))
			}
		}
	}
	return err
}

// Unplug takes the carrier of a host's interface away. The host reaches itself only.
func (h *Host) Unplug() error { return ip(h.network.bridge, fmt.Sprintf("link set %s down", h.port())) }

// Plug is the end of Unplug.
func (h *Host) Plug() error { return ip(h.network.bridge, fmt.Sprintf("link set %s up", h.port())) }

// Slow has a host's link carry so many bits per second in each direction: beyond, packets wait for up to
// latency, and are lost then. 0: the link is as before. It needs the program tc of iproute2.
func (h *Host) Slow(bits int, latency time.Duration) error {
	for _, end := range []struct {
		namespace *os.File
		device    string
	}{{h.namespace, "eth0"}, {h.network.bridge, h.port()}} {
		_ = run(end.namespace, "", "tc", "qdisc", "del", "dev", end.device, "root") // if it is slow already
		if bits == 0 {
			continue
		}
		err := run(end.namespace, "", "tc", "qdisc", "add", "dev", end.device, "root", "tbf",
			"rate", fmt.Sprintf("%dbit", bits), "burst", "16kb", "latency", fmt.Sprintf("%dms", latency.Milliseconds()))
		if err != nil {
			return err
		}
	}
	return nil
}

// Start starts a program on a host, as process.Start does.
func (h *Host) Start(cmd *exec.Cmd, ready *regexp.Regexp) (p *process.Process, err error) {
	err = in(h.namespace, func() (err error) {
		p, err = process.Start(cmd, ready)
		return err
	})
	return p, err
}

// Dial connects from a host to an address, whose host is a literal address.
func (h *Host) Dial(ctx context.Context, address string) (c net.Conn, err error) {
	err = in(h.namespace, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return err
	})
	return c, err
}
