package front

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

// A front asks the nodes that it was given and those that the cluster has now. It forgets those that were replaced,
// so that it learns new ones however many there have been.
func TestNodesThatAFrontAsks(t *testing.T) {
	t.Parallel()
	l := newLinks(&Front{o: Options{Peers: []settings.Peer{{Name: "a", Address: "a:1"}, {Name: "b", Address: "b:1"}}}})
	for i := range 3 * maxNodes {
		added := fmt.Sprintf("n%d:1", i)
		l.remember([]node.Member{{Address: "a:1"}, {Address: added}, {Address: ""}})
		if want := []string{"a:1", "b:1", added}; !slices.Equal(l.nodes, want) {
			t.Fatalf("it asks %v, want %v", l.nodes, want)
		}
	}
	many := make([]node.Member, 2*maxNodes)
	for i := range many {
		many[i].Address = fmt.Sprintf("m%d:1", i)
	}
	if l.remember(many); len(l.nodes) != maxNodes {
		t.Errorf("it asks %d nodes, want %d", len(l.nodes), maxNodes)
	}
}

// A node that has lost its office disconnects its clients. If the front hears of the next leader before that, it
// passes on nevertheless what the node says, and then closes the link.
func TestLinksToAFormerLeaderCarryItsLastPackets(t *testing.T) {
	t.Parallel()
	f := &Front{o: Options{Logger: slog.New(slog.DiscardHandler)}}
	l := newLinks(f)
	here, there := net.Pipe()
	ended := make(chan error, 1)
	link := mux.New(here, mux.Options{MaxStreams: 1, Logger: f.o.Logger, Ended: func(err error) { ended <- err }})
	defer link.Close()
	atNode := make(chan *mux.Stream, 1)
	node := mux.New(there, mux.Options{MaxStreams: 1, Logger: f.o.Logger, Unread: &mux.Unread{Most: 1 << 20},
		Accept: func(s *mux.Stream, _ []byte) error { atNode <- s; return nil }})
	defer node.Close()
	client := clientOfLink{make(chan string, 1)}
	s, err := link.Open(nil, client)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AwaitTaken(); err != nil {
		t.Fatal(err)
	}
	l.open, l.to = []*mux.Link{link}, leader{1, "a:1"}

	l.replace(leader{2, "b:1"})
	if len(l.open) != 0 {
		t.Error("new clients get to the former leader")
	}
	if _, err := (<-atNode).Write([]byte("DISCONNECT")); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-client.got:
		if got != "DISCONNECT" {
			t.Errorf("the client gets %q", got)
		}
	case err := <-ended:
		t.Fatalf("the link has ended before: %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, mux.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the link stays")
	}
}

// clientOfLink is a mux.Receiver of one message.
type clientOfLink struct{ got chan string }

func (c clientOfLink) Data(p []byte) { c.got <- string(p) }
func (c clientOfLink) Ended(error)   {}
