package dial

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// Servers are the addresses by which a client reaches one broker: one, or those of several nodes of
// a cluster. They are safe for concurrent use.
type Servers struct {
	list  string
	nodes []server

	mu      sync.Mutex
	next    int    // under mu: the node that Dial tries first
	reached string // under mu: the address of the last connection; the list if the last Dial failed
}

// MaxServers bounds the addresses of [To]. A cluster has up to nine nodes, and fronts before them; with more
// each would have too small a share of the time for an attempt to connect.
const MaxServers = 32

type server struct {
	address string
	dial    func(context.Context) (net.Conn, error)
}

// To takes one address, or several with commas between them: host, host:port, or mqtt://, mqtts://,
// ws:// or wss:// and host, port and path. Ports default to 1883, 8883, 80 and 443. An
// address without a scheme means mqtts if there is a TLS configuration. The error is
// about the address, or about their number.
func To(addresses string, t *tls.Config) (*Servers, error) {
	if n := strings.Count(addresses, ",") + 1; n > MaxServers {
		return nil, fmt.Errorf("%d addresses: want at most %d", n, MaxServers)
	}
	s := &Servers{list: addresses, reached: addresses}
	for address := range strings.SplitSeq(addresses, ",") {
		address = strings.TrimSpace(address)
		dial, err := to(address, t)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, server{address, dial})
	}
	return s, nil
}

// By is a single server that is reached in a way of the caller's. name is for logs and errors.
func By(name string, dial func(context.Context) (net.Conn, error)) *Servers {
	return &Servers{list: name, reached: name, nodes: []server{{name, dial}}}
}

// Len is the number of addresses.
func (s *Servers) Len() int { return len(s.nodes) }

// Attempt is the context of an attempt at one of the addresses, which has its share of the time for all.
func (s *Servers) Attempt(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, timeout/time.Duration(len(s.nodes)))
}

// Reached is the address of the last connection that [Servers.Dial] has made, or all of them if
// its last call failed, or there was none yet.
func (s *Servers) Reached() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reached
}

// StartAt has the next call of [Servers.Dial] begin with the n-th address, counted from 0 and round and round.
// n must not be negative.
func (s *Servers) StartAt(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = n % len(s.nodes)
}

// nextAfter is how long one address is waited for before the next one is tried beside it: the
// Connection Attempt Delay of RFC 8305, section 5.
const nextAfter = 250 * time.Millisecond

// Dial connects to the first address that answers. It begins with the one after that of its last
// connection, as a caller that comes again has found that node dead or of no use; the first call begins with
// the first address. An address that does not answer within 0.25 s does not hold the others up: the
// next is tried beside it, so a machine without power costs that and not the time of ctx.
// If all fail the error is a [*Failures], or for a single address what was wrong with it.
func (s *Servers) Dial(ctx context.Context) (net.Conn, error) {
	if len(s.nodes) == 1 {
		return s.nodes[0].dial(ctx)
	}
	s.mu.Lock()
	first := s.next
	s.mu.Unlock()
	nc, i, err := s.race(ctx, first)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.reached = s.list
		return nil, err
	}
	s.next, s.reached = (i+1)%len(s.nodes), s.nodes[i].address
	return nc, nil
}

// race connects to the addresses from the i-th on, and returns the connection that is there first.
func (s *Servers) race(ctx context.Context, i int) (net.Conn, int, error) {
	type outcome struct {
		nc  net.Conn
		i   int
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	outcomes := make(chan outcome)
	underWay := 0
	defer func() {
		cancel()
		go func(n int) { // those that are late
			for range n {
				if o := <-outcomes; o.nc != nil {
					_ = o.nc.Close()
				}
			}
		}(underWay)
	}()
	failed := &Failures{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for begun := 0; ; {
		select {
		case <-timer.C:
		case o := <-outcomes:
			underWay--
			if o.err == nil {
				return o.nc, o.i, nil
			}
			failed.add(s.nodes[o.i].address, o.err)
			if len(failed.Errs) == len(s.nodes) {
				return nil, 0, failed
			}
		}
		if begun == len(s.nodes) {
			continue
		}
		at := (i + begun) % len(s.nodes)
		begun++
		underWay++
		go func() {
			nc, err := s.nodes[at].dial(ctx)
			outcomes <- outcome{nc, at, err}
		}()
		timer.Reset(nextAfter)
	}
}

// Failures say why no address of several answers.
type Failures struct {
	Addresses []string
	Errs      []error // of each of them
}

func (f *Failures) add(address string, err error) {
	f.Addresses, f.Errs = append(f.Addresses, address), append(f.Errs, err)
}

func (f *Failures) Error() string {
	texts := make([]string, len(f.Errs))
	for i, err := range f.Errs {
		texts[i] = fmt.Sprintf("%s: %v", f.Addresses[i], err)
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives all of them to errors.Is and errors.As.
func (f *Failures) Unwrap() []error { return f.Errs }
