package control

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
)

// said is what a node of a cluster of a, b and c answers; role empty: it does not answer.
func said(name, role string, id node.ID, term uint64, members ...node.Member) answered {
	a := answered{member: node.Member{Name: name, ID: id, Address: name + ":1"}}
	if role == "" {
		a.err = errors.New("connection refused")
		return a
	}
	a.status = node.Status{Name: name, ID: id, Role: role, Term: term, Members: members}
	return a
}

// A program that asks a node for its status is told what may be wrong when the other side ends the connection.
func TestAskOfWhatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	node := a.Node()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: node.Certificates, ClientCAs: node.ClientCAs, ClientAuth: tls.RequireAndVerifyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.(*tls.Conn).Handshake()
				raw := c.(*tls.Conn).NetConn().(*net.TCPConn)
				_ = raw.CloseWrite()
				_, _ = io.Copy(io.Discard, raw) // what is left unread would have the system reset the connection
			}()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stranger := node.Clone()
	stranger.Certificates, stranger.GetClientCertificate = nil, nil
	for want, config := range map[string]*tls.Config{"one of the two has --cluster-cert": nil, "refuses this node's certificate": stranger} {
		if _, err := Ask(ctx, port.NewDialer(config, nil), l.Addr().String()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The status says what an upgrade waits for.
func TestUpgradeInReport(t *testing.T) {
	t.Parallel()
	at := func(name string, id node.ID, inForce, knows int) answered {
		a := said(name, node.Follower, id, 4)
		a.status.InForce, a.status.Level = inForce, knows
		return a
	}
	for what, test := range map[string]struct {
		all  []answered
		want string // a part of it; empty: there is nothing to say
	}{
		"one version":                      {[]answered{at("a", 1, 2, 2), at("b", 2, 2, 2)}, ""},
		"one has the former version":       {[]answered{at("a", 1, 1, 2), at("b", 2, 1, 1)}, "format level 1. It goes to 2 when all nodes run a program that knows it; not yet: b."},
		"one is away":                      {[]answered{at("a", 1, 1, 2), said("b", "", 2, 0)}, "not yet: b."},
		"the level is about to rise":       {[]answered{at("a", 1, 1, 2), at("b", 2, 1, 2)}, "goes to 2 now"},
		"one has yet to hear of the level": {[]answered{at("a", 1, 2, 2), at("b", 2, 1, 2)}, ""},
		"no node says a level":             {[]answered{said("a", "", 1, 0), said("b", "", 2, 0)}, ""},
	} {
		r := report(&node.Status{Name: "a"}, test.all, time.Minute)
		if got := r.Upgrade(); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: it says %q, want %q", what, got, test.want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	lags := []node.Member{{Name: "a", ID: 1}, {Name: "b", ID: 2, Lag: 3}, {Name: "c", ID: 3, Lag: 500}}
	for _, test := range []struct {
		name    string
		all     []answered
		leader  string
		quorum  bool
		missing []string
		explain string // a part of it; empty: all is well
		lagOfC  uint64
	}{
		{"all are there", []answered{said("b", node.Follower, 2, 4), said("c", node.Follower, 3, 4), said("a", node.Leader, 1, 4, lags...)}, "a", true, nil, "", 500},
		{"a former leader does not know yet", []answered{said("a", node.Leader, 1, 5, lags...), said("b", node.Leader, 2, 4), said("c", node.Follower, 3, 5)}, "a", true, nil, "", 500},
		{"one is missing", []answered{said("a", node.Leader, 1, 4, lags...), said("b", node.Follower, 2, 4), said("c", "", 3, 0)}, "a", true, []string{"c"}, "missing: c", 500},
		{"an election", []answered{said("a", "", 1, 0), said("b", node.Candidate, 2, 5), said("c", node.Candidate, 3, 4)}, "", true, []string{"a"}, "no leader at the moment", 0},
		{"no quorum", []answered{said("a", "", 1, 0), said("b", node.Candidate, 2, 5), said("c", "", 3, 0)}, "", false, []string{"a", "c"}, "1 of 3 nodes answer, and the cluster serves clients only with 2; missing: a, c", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := report(&node.Status{Name: "b"}, test.all, time.Minute)
			if r.Node != "b" || r.Leader != test.leader || r.Quorum != test.quorum || !slices.Equal(r.Missing, test.missing) {
				t.Errorf("got %+v", r)
			}
			if got := r.Explain(); (got == "") != (test.explain == "") || !strings.Contains(got, test.explain) {
				t.Errorf("it says %q, want %q", got, test.explain)
			}
			if len(r.Nodes) != 3 || r.Nodes[0].Name != "a" || r.Nodes[1].Name != "b" || r.Nodes[2].Lag != test.lagOfC {
				t.Errorf("the lines are %+v", r.Nodes)
			}
			for _, line := range r.Nodes {
				if (line.Role == Unreachable) != slices.Contains(test.missing, line.Name) || (line.Error != "") != (line.Role == Unreachable) {
					t.Errorf("the line %+v", line)
				}
			}
		})
	}
}
