package port

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

const aboutNothing = "holdfast test dn"

// certified is the configuration of a node whose certificate is for its name in the domain example.
func certified(t *testing.T, a *certstest.Authority, node string) *tls.Config {
	t.Helper()
	if err := a.Issue(certs.Request{Name: node, Node: true, Hosts: []string{node + ".example"}, Valid: time.Hour}, a.File(node)); err != nil {
		t.Fatal(err)
	}
	config, err := (&settings.Settings{
		Node: node, Peers: []string{"b=b.example:7001", "other=other.example:7001"},
		Cert: a.File(node + ".crt"), Key: a.File(node + ".key"), CA: a.File(certs.AuthorityCert),
	}).TLS(nil)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// saying listens as a node, and says something to each that connects.
func saying(t *testing.T, text string, config *tls.Config) (address string) {
	t.Helper()
	p, err := Listen(Options{Address: "127.0.0.1:0", TLS: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	p.Handle(aboutNothing, func(c net.Conn) {
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	})
	p.Complete()
	p.Serve()
	return p.Addr().String()
}

// A node is found where it was last while DNS does not answer, and where its name leads when it does.
func TestNodesAreReachedWithoutDNS(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	const address = "b.example:7001"
	config := certified(t, a, "b")
	first, moved := saying(t, "node b", config), saying(t, "node b", config)
	other := saying(t, "another node", certified(t, a, "other")) // which has the address that b had
	never := func(ctx context.Context, _ <-chan string) (string, error) {
		<-ctx.Done()
		return "", &net.DNSError{Err: "i/o timeout", Name: "b.example", IsTimeout: true}
	}
	for _, test := range []struct {
		name    string
		last    string // where the node was reached
		lookup  func(ctx context.Context, dialled <-chan string) (at string, err error)
		want    string // empty: it is not reached
		dialled int    // connections that were tried, without those that lookup has waited for
	}{
		{"DNS answers", first, func(context.Context, <-chan string) (string, error) { return moved, nil }, moved, 1},
		{"DNS does not answer", first, never, first, 1},
		{"DNS has failed", first, func(context.Context, <-chan string) (string, error) {
			return "", &net.DNSError{Err: "server misbehaving", Name: "b.example", IsTemporary: true}
		}, first, 1},
		{"the name has gone", first, func(context.Context, <-chan string) (string, error) {
			return "", &net.DNSError{Err: "no such host", Name: "b.example", IsNotFound: true}
		}, "", 0},
		{"DNS answers late, and another node has the address", other, func(ctx context.Context, dialled <-chan string) (string, error) {
			select {
			case <-dialled:
			case <-ctx.Done():
			}
			return moved, nil
		}, moved, 1},
		{"DNS has never answered", "", func(context.Context, <-chan string) (string, error) {
			return "", &net.DNSError{Err: "server misbehaving", Name: "b.example", IsTemporary: true}
		}, "", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			dialled := make(chan string, 8)
			d := NewDialer(config, nil)
			d.system = func(ctx context.Context, network, at string) (net.Conn, error) {
				if at == address {
					var err error
					if at, err = test.lookup(ctx, dialled); err != nil {
						return nil, err
					}
				}
				dialled <- at
				return new(net.Dialer).DialContext(ctx, network, at)
			}
			if test.last != "" {
				m := <-d.reached
				m[address] = test.last
				d.reached <- m
			}
			c, err := d.Dial(ctx, address, aboutNothing)
			if test.want == "" {
				var dns *net.DNSError
				if !errors.As(err, &dns) {
					t.Errorf("it is reached, or fails with %v", err)
				}
			} else if err != nil {
				t.Fatal(err)
			} else {
				defer c.Close()
				if at := c.RemoteAddr().String(); at != test.want {
					t.Errorf("it is reached at %s, want %s", at, test.want)
				}
				if said, err := io.ReadAll(c); string(said) != "node b" {
					t.Errorf("the node says %q, %v", said, err)
				}
				if last := d.last(address); last != test.want {
					t.Errorf("it is remembered at %q", last)
				}
			}
			if len(dialled) != test.dialled {
				t.Errorf("%d connections were tried, want %d", len(dialled), test.dialled)
			}
		})
	}
}

// As many names are remembered as a cluster may have, and no more; addresses without names need not be.
func TestRememberedNamesAreBounded(t *testing.T) {
	t.Parallel()
	d := NewDialer(nil, nil)
	at, _ := net.Pipe()
	for i := range maxReached + 1 {
		d.remember(fmt.Sprintf("node-%d:7001", i), at)
		if i == maxReached-1 && d.last("node-0:7001") == "" {
			t.Error("a name was forgotten below the bound")
		}
	}
	if m := <-d.reached; len(m) != maxReached || m[fmt.Sprintf("node-%d:7001", maxReached)] == "" {
		t.Errorf("%d names are remembered, want %d with the latest", len(m), maxReached)
	}
	d.reached <- map[string]string{}
	d.remember("127.0.0.1:7001", at)
	d.remember("[::1]:7001", at)
	if m := <-d.reached; len(m) != 0 {
		t.Errorf("addresses without names are remembered: %v", m)
	}
}

// What is tried ends with its context, also when nothing answers: a stopped node ends.
func TestAttemptsEnd(t *testing.T) {
	t.Parallel()
	for range 100 { // the name and the address fail at the same moment
		ctx, cancel := context.WithCancel(t.Context())
		d := NewDialer(nil, nil)
		tried := make(chan string, 2)
		d.system = func(ctx context.Context, _, at string) (net.Conn, error) {
			if tried <- at; at == "localhost:7001" {
				return nil, &net.DNSError{Err: "server misbehaving", Name: "localhost", IsTemporary: true}
			}
			cancel()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		m := <-d.reached
		m["localhost:7001"] = "127.0.0.1:7001"
		d.reached <- m
		if _, err := d.Dial(ctx, "localhost:7001", aboutNothing); err == nil || len(tried) != 2 {
			t.Fatal(err, len(tried))
		}
	}
}
