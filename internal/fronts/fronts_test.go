package fronts

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

func TestAboutOnTheWire(t *testing.T) {
	t.Parallel()
	leaf, err := x509.ParseCertificate(certstest.New(t).Client("press").Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]About{
		"IPv4":           {0, "mqtt", netip.MustParseAddrPort("192.0.2.7:50000"), nil},
		"IPv6":           {65535, "wss", netip.MustParseAddrPort("[2001:db8::1]:1"), nil},
		"certificates":   {1, "mqtts", netip.MustParseAddrPort("192.0.2.7:50000"), []*x509.Certificate{leaf, leaf}},
		"as many as may": {1, "mqtts", netip.MustParseAddrPort("192.0.2.7:50000"), slicesOf(leaf, maxChain)},
	} {
		p, err := a.Append(nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := ParseAbout(p); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		for n := range p {
			if _, err := ParseAbout(p[:n]); err == nil && len(a.Chain) == 0 {
				t.Errorf("%s: %d of %d bytes are taken", name, n, len(p))
			}
		}
	}
	tooMany := About{1, "mqtts", netip.MustParseAddrPort("192.0.2.7:50000"), slicesOf(leaf, maxChain+1)}
	if _, err := tooMany.Append(nil); err == nil {
		t.Error("more certificates than may be are passed on")
	}
}

func slicesOf(c *x509.Certificate, n int) (all []*x509.Certificate) {
	for range n {
		all = append(all, c)
	}
	return all
}

func FuzzAbout(f *testing.F) {
	p, err := (&About{3, "mqtt", netip.MustParseAddrPort("192.0.2.7:50000"), nil}).Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		a, err := ParseAbout(p)
		if err != nil {
			return
		}
		if again, err := a.Append(nil); err != nil || !bytes.Equal(again, p) {
			t.Errorf("%x, %v, is written of %x", again, err, p)
		}
	})
}

// A node that does not serve clients refuses a link, and the front tries another node.
func TestANodeThatDoesNotLeadTakesNoLink(t *testing.T) {
	t.Parallel()
	f := New(Options{MaxStreams: 1, MaxUnread: 1, Logger: slog.New(slog.DiscardHandler)})
	near, far := net.Pipe()
	defer near.Close()
	go f.Receive(far)
	if _, err := mux.Own.Greet(near); !errors.Is(err, mux.ErrRefused) {
		t.Errorf("%v", err)
	}
}

// A front that speaks no version in common with the node is refused, and both sides' words say what
// each speaks, and what to do.
func TestAFrontOfAnotherVersion(t *testing.T) {
	t.Parallel()
	log := &logs.Text{}
	f := New(Options{MaxStreams: 1, MaxUnread: 1, Logger: slog.New(slog.NewTextHandler(log, nil))})
	f.Serve(nil)
	near, far := net.Pipe()
	defer near.Close()
	received := make(chan struct{})
	go func() { f.Receive(far); close(received) }()
	older := mux.Versions{Lowest: mux.Own.Lowest - 1, Highest: mux.Own.Lowest - 1}
	_, err := older.Greet(near)
	if want := fmt.Sprintf("the node from version %d on, and this front %v: run the release of the nodes here", mux.Own.Lowest, older); !errors.Is(err, mux.ErrVersion) || !strings.Contains(err.Error(), want) {
		t.Errorf("the front says %v, want %q", err, want)
	}
	<-received
	if want := fmt.Sprintf("the front up to version %d, and this node %v: run the release of the nodes on the front's machine", older.Highest, mux.Own); !strings.Contains(log.String(), want) {
		t.Errorf("the node says %s, want %q", log, want)
	}
	if n := f.Figures(); n.Links != 0 {
		t.Errorf("%+v", n)
	}
}

// When the server ends, its links end, and a new server takes new ones.
func TestLinksEndWithTheServer(t *testing.T) {
	t.Parallel()
	f := New(Options{MaxStreams: 1, MaxUnread: 1, Logger: slog.New(slog.DiscardHandler)})
	for range 2 {
		l := f.Serve(nil)
		near, far := net.Pipe()
		received := make(chan struct{})
		go func() { f.Receive(far); close(received) }()
		if _, err := mux.Own.Greet(near); err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		link := mux.New(near, mux.Options{MaxStreams: 1, Logger: slog.New(slog.DiscardHandler), Ended: func(err error) { over <- err }})
		_ = l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
		select {
		case <-over:
			<-received
		case <-time.After(time.Minute):
			t.Fatal("the link goes on")
		}
		link.Close()
		if n := f.Figures(); n.Links != 0 {
			t.Errorf("%+v", n)
		}
	}
}
