package founding

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// stopper ends a start when it says that it waits.
type stopper struct{ stop func() }

func (s stopper) Write(line []byte) (int, error) { s.stop(); return len(line), nil }

// The error of a first start that is stopped says what it lacked, and nothing of how it was stopped.
func TestAStoppedFirstStartSaysWhatItLacked(t *testing.T) {
	t.Parallel()
	p, err := port.Listen(port.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	s := &Start{
		Self: identity.Identity{Name: "a", ID: 1}, Peers: []Peer{{"a", "127.0.0.1:2"}, {"b", "127.0.0.1:1"}}, // where nothing listens
		Port: p, Logger: slog.New(slog.NewTextHandler(stopper{cancel}, nil)),
	}
	_, _, err = s.askAll(ctx)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "cancel") || !strings.Contains(err.Error(), "needs all of its nodes: node b at ") {
		t.Errorf("stopped while it waits: %v", err)
	}
	_, _, err = s.askAll(ctx)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "cancel") || !strings.Contains(err.Error(), "has not heard from all") {
		t.Errorf("stopped before it has asked: %v", err)
	}
}

// A first start that waits says of each node that it lacks why it does, also when others have answered since.
func TestAFirstStartSaysWhichNodeItLacks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(chan string, 10)
	logger := slog.New(slog.NewTextHandler(writer(func(line []byte) { lines <- string(line) }), nil))
	b, err := process.UnusedAddress()
	if err != nil {
		t.Fatal(err)
	}
	own, err := port.Listen(port.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	waits := &Start{
		Self: identity.Identity{Name: "a", ID: 1}, Peers: []Peer{{"a", own.Addr().String()}, {"b", b}, {"c", "127.0.0.1:1"}},
		Port: own, Logger: logger,
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = waits.askAll(ctx)
	}()
	if line := <-lines; !strings.Contains(line, "node b at "+b) {
		t.Errorf("without any other node it says %s", line)
	}
	answers := Answer{Identity: identity.Identity{Name: "b", ID: 2}, Peers: []string{"a", "b", "c"}}
	other, err := port.Listen(port.Options{Address: b})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.Handle(Magic, answers.Send)
	other.Serve()
	if line := <-lines; !strings.Contains(line, "node c at 127.0.0.1:1") {
		t.Errorf("when b has answered it says %s", line)
	}
	cancel()
	<-ended
	if len(lines) > 0 {
		t.Errorf("it says more: %s", <-lines)
	}
}

// A node that has founded the cluster with this one has heard of all founders, also of one that has died since.
func TestAFounderKnowsThoseWhoHaveDied(t *testing.T) {
	t.Parallel()
	founders := []members.Member{{Name: "a", ID: 1, Address: "a.example:7001"}, {Name: "b", ID: 2}, {Name: "c", ID: 3}}
	other, err := port.Listen(port.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	answer := Answer{Identity: identity.Identity{Name: "b", ID: 2, Cluster: identity.ClusterOf(founders), Members: founders}, Now: founders}
	other.Handle(Magic, answer.Send)
	other.Serve()
	s := &Start{
		Self: identity.Identity{Name: "a", ID: 1}, Peers: []Peer{{"a", "127.0.0.1:2"}, {"b", other.Addr().String()}, {"c", "127.0.0.1:1"}}, // where nothing listens
		Port: other, Logger: slog.New(slog.DiscardHandler),
	}
	got, joined, err := s.askAll(t.Context())
	if err != nil || joined != nil {
		t.Fatal(joined, err)
	}
	if identity.ClusterOf(got) != answer.Cluster || got[0].Address != "127.0.0.1:2" || got[2].Address != "127.0.0.1:1" {
		t.Errorf("the founders are %v", got)
	}
}

type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) { w(line); return len(line), nil }

// Nodes found a cluster only if they agree on who they are.
func TestFoundersWhoDisagree(t *testing.T) {
	t.Parallel()
	peers := []Peer{{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:2"}}
	a := &Start{Peers: peers, Self: identity.Identity{Name: "a", ID: 1}}
	from := func(name string, id, cluster members.ID, founders ...members.Member) Answer {
		return Answer{Identity: identity.Identity{Name: name, ID: id, Cluster: cluster, Members: founders}, Peers: []string{"a", "b"}}
	}
	founders := []members.Member{{Name: "a", ID: 1}, {Name: "b", ID: 2}}
	others, removed, added := from("b", 2, 0), from("b", 2, 5, founders...), from("b", 2, 5, members.Member{Name: "b", ID: 2})
	others.Peers = []string{"a", "b", "c"}
	removed.Removed = []members.ID{1}
	added.Now = founders
	for _, test := range []struct {
		answer  Answer
		belongs bool
		want    string
	}{
		{answer: from("b", 2, 0)},
		{answer: from("b", 2, 5, founders...)},
		{answer: from("b", 2, 5, members.Member{Name: "b", ID: 2})}, // it may be added there
		{answer: added, belongs: true},
		{answer: from("c", 2, 0), want: "has the name"},
		{answer: from("b", 1, 0), want: "has this node's ID"},
		{answer: others, want: "the same list"},
		{answer: from("b", 2, 5, members.Member{Name: "a", ID: 7}, members.Member{Name: "b", ID: 2}), want: "another ID"},
		{answer: removed, want: "was removed"},
	} {
		belongs, err := a.agrees(peers[1], test.answer)
		if belongs != test.belongs || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, %v, want %v, %q", test.answer, belongs, err, test.belongs, test.want)
		}
	}
}
