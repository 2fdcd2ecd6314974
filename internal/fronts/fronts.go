package fronts

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
)

// MaxLinks bounds the links of a node.
const MaxLinks = 256

// farewell is how long the links stay after their server has begun to end, so that its clients
// get their last packets.
const farewell = 2 * time.Second

// Options of New.
type Options struct {
	MaxStreams int          // of a link; needed
	MaxUnread  int64        // bytes of the buffers with what clients have sent and the server has not read yet, of all links; needed
	Logger     *slog.Logger // needed
}

// Figures are what the package counts.
type Figures struct {
	Links, Clients    int
	Unread, MaxUnread int64 // bytes of buffers
}

// Fronts has the links of a node. Its methods are safe for concurrent use. It outlives the servers
// of the node.
type Fronts struct {
	o      Options
	unread mux.Unread

	mu     lockrank.Mutex[lockrank.Fronts]
	office *office               // mu: of the server that serves clients; nil: none does
	links  map[*mux.Link]*office // mu
	coming int                   // mu: connections that are being greeted
}

// New makes one without links.
func New(o Options) *Fronts {
	return &Fronts{o: o, unread: mux.Unread{Most: o.MaxUnread}, links: map[*mux.Link]*office{}}
}

// Figures are those of now.
func (f *Fronts) Figures() (n Figures) {
	n.Unread, n.MaxUnread = f.unread.Held(), f.unread.Most
	f.mu.Lock()
	links := make([]*mux.Link, 0, len(f.links))
	for l := range f.links {
		links = append(links, l)
	}
	f.mu.Unlock()
	n.Links = len(links)
	for _, l := range links {
		n.Clients += l.Streams()
	}
	return n
}

// Serve gives a listener with the clients of fronts to a server that serves clients from now on,
// and has these listeners. The server closes it when it begins to end.
func (f *Fronts) Serve(listeners []*listen.Listener) net.Listener {
	o := &office{fronts: f, listeners: listeners, ready: make(chan net.Conn), ended: make(chan struct{})}
	f.mu.Lock()
	f.office = o
	f.mu.Unlock()
	return o
}

// Receive carries a link, until it ends. conn begins with what follows Magic.
func (f *Fronts) Receive(conn net.Conn) {
	f.mu.Lock()
	o := f.office
	take := o != nil && len(f.links)+f.coming < MaxLinks
	f.coming++
	f.mu.Unlock()
	version, err := mux.Own.Welcome(conn, take)
	f.mu.Lock()
	f.coming--
	f.mu.Unlock()
	if err != nil {
		if !errors.Is(err, mux.ErrRefused) {
			f.o.Logger.Warn("the link of a front was not taken", "front", conn.RemoteAddr().String(), "error", err)
		}
		_ = conn.Close()
		return
	}
	over := make(chan error, 1)
	f.mu.Lock()
	if f.office != o {
		f.mu.Unlock()
		_ = conn.Close()
		return
	}
	l := mux.New(conn, mux.Options{
		Accept: o.accept, MaxStreams: f.o.MaxStreams, Unread: &f.unread, Logger: f.o.Logger,
		Ended: func(err error) { over <- err },
	})
	f.links[l] = o // before another goroutine closes o, which then tells the front
	f.mu.Unlock()
	f.o.Logger.Info("a front has connected", "front", conn.RemoteAddr().String(), "version", version)
	err = <-over
	l.Close()
	f.mu.Lock()
	delete(f.links, l)
	f.mu.Unlock()
	f.o.Logger.Info("the link of a front has ended", "front", conn.RemoteAddr().String(), "reason", err)
}

// office is the listener of one server.
type office struct {
	fronts    *Fronts
	listeners []*listen.Listener
	ready     chan net.Conn
	ended     chan struct{}
	once      sync.Once
}

var errEnding = errors.New("this node does not serve clients any more")

// accept gives the server a client. It is mux.Options.Accept.
func (o *office) accept(s *mux.Stream, about []byte) error {
	select {
	case <-o.ended: // ready may take it nevertheless
		return errEnding
	default:
	}
	a, err := ParseAbout(about)
	if err != nil {
		return err
	}
	if a.Place >= len(o.listeners) {
		return fmt.Errorf("the front has a listener number %d, and the node has %d: give fronts and nodes the same listeners in the same order", a.Place+1, len(o.listeners))
	}
	c, err := o.listeners[a.Place].Front(s, a.Scheme, a.Client, a.Chain)
	if err != nil {
		o.fronts.o.Logger.Info("a client of a front was refused", "front", s.RemoteAddr().String(), "remote", a.Client, "reason", err)
		return err
	}
	select {
	case o.ready <- c:
		return nil
	case <-o.ended:
		_ = c.CloseNow()
		return errEnding
	}
}

// Accept implements net.Listener.
func (o *office) Accept() (net.Conn, error) {
	select {
	case c := <-o.ready:
		return c, nil
	case <-o.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The fronts hear that the server takes no more clients before it
// refuses the first one, and keep new ones until another node leads.
func (o *office) Close() error {
	o.once.Do(func() {
		f := o.fronts
		f.mu.Lock()
		if f.office == o {
			f.office = nil
		}
		var links []*mux.Link
		for l, of := range f.links {
			if of == o {
				links = append(links, l)
			}
		}
		f.mu.Unlock()
		for _, l := range links {
			l.Leave()
		}
		close(o.ended)
		time.AfterFunc(farewell, func() {
			defer failstop.End(f.o.Logger, "the links of a server that has ended")
			for _, l := range links {
				l.Close()
			}
		})
	})
	return nil
}

// Addr implements net.Listener.
func (o *office) Addr() net.Addr { return nowhere{} }

type nowhere struct{}

func (nowhere) Network() string { return "front" }
func (nowhere) String() string  { return "fronts" }
