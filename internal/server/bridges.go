package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/service"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// startBridges starts the bridges of the configuration.
func (s *Server) startBridges() {
	if len(s.config.Bridges) == 0 {
		return
	}
	s.inside = newInside()
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		if err := s.broker.Serve(s.inside); err != nil {
			s.log.Error("bridges cannot connect to this broker", "error", err)
		}
	}()
	l := &s.broker.Limits
	ctx, cancel := context.WithCancel(context.Background())
	s.endBridges = cancel
	for _, c := range s.config.Bridges {
		link := bridge.NewLink(c, bridge.Options{
			Dial:           func(ctx context.Context) (net.Conn, error) { return s.inside.dial(ctx, bridge.ClientPrefix+c.Name) },
			Self:           brokerName(s.config.DataDir),
			MaxPacket:      l.MaxPacketSize,
			ReceiveMaximum: uint16(l.ReceiveMaximum),
			Limits:         bridge.Limits{UserProperties: s.broker.Bounds.UserProps, TopicLevels: l.MaxTopicLevels},
			Reserved:       reservedForBridges,
			Own:            s.connectedFrom,
			ChooseQueue:    !l.KeepQueueFull,
			Changed:        s.publishBridge,
			Logger:         s.log,
		})
		s.bridges = append(s.bridges, link)
		s.serving.Add(1)
		go func() {
			defer failstop.End(s.log, "a bridge")
			link.Run(ctx)
			s.serving.Done()
		}()
	}
}

// brokerName is what bridges call this broker: another one for each machine and data
// directory, and the same after a restart.
func brokerName(dataDir string) string {
	host, _ := os.Hostname()
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		dir = dataDir
	}
	sum := sha256.Sum256([]byte(host + "\x00" + dir))
	return hex.EncodeToString(sum[:8])
}

// reservedForBridges says whether a bridge must not publish to a topic here: a request to the
// state store is a client's own, and $SYS and the store's topics are the server's.
func reservedForBridges(name []byte) bool {
	return topic.OwnSys(name) || slices.Contains(service.Topics(), string(name)) || slices.ContainsFunc(service.Protected(), func(prefix string) bool {
		return string(name) == prefix || len(name) > len(prefix) && string(name[:len(prefix)+1]) == prefix+"/"
	})
}

// connectedFrom says whether a client of this ID has connected to this server since then; if
// the address from which a bridge has connected is one of TCP, from that address.
func (s *Server) connectedFrom(clientID string, from net.Addr, since time.Time) bool {
	info, ok := s.broker.Sessions.Info(clientID)
	if !ok || !info.Connected {
		return false
	}
	if _, tcp := from.(*net.TCPAddr); tcp {
		return info.Address == from.String()
	}
	return !info.Since.Before(since.Truncate(time.Millisecond))
}

// publishBridge publishes a bridge's state, where Mosquitto publishes those of its own.
func (s *Server) publishBridge(name string, connected bool) {
	state := "0"
	if connected {
		state = "1"
	}
	s.broker.PublishSys("broker/connection/"+name+"/state", state)
}

// publishBridges publishes the bridges' states.
func (s *Server) publishBridges() {
	for _, link := range s.bridges {
		s.publishBridge(link.Name(), link.Connected())
	}
}

// inside is a listener for clients that are a part of the server. Its connections are TCP's, over
// loopback, but no other process can connect to it.
type inside struct {
	ready  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func newInside() *inside {
	closed, cancel := context.WithCancel(context.Background())
	return &inside{make(chan net.Conn), closed, cancel}
}

func (l *inside) Accept() (net.Conn, error) {
	select {
	case nc := <-l.ready:
		return nc, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

func (l *inside) Close() error {
	l.close()
	return nil
}

func (l *inside) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// dial makes a connection, which the server takes for one of this user.
func (l *inside) dial(ctx context.Context, user string) (net.Conn, error) {
	client, server, err := loopbackPair(ctx)
	if err != nil {
		return nil, err
	}
	origin := &access.Origin{Remote: server.RemoteAddr(), Inside: &access.Identity{ClientID: user, Username: user, Method: access.Inside, Owner: user}}
	select {
	case l.ready <- &insideConn{server, origin}:
		return client, nil
	case <-l.closed.Done():
		err = net.ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = client.Close(), server.Close()
	return nil, err
}

// insideConn is the server's end of such a connection.
type insideConn struct {
	*net.TCPConn
	origin *access.Origin
}

func (c *insideConn) Origin() *access.Origin { return c.origin }

// loopbackPair makes a TCP connection and gives both its ends.
func loopbackPair(ctx context.Context) (client net.Conn, server *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var d net.Dialer
	if client, err = d.DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = l.SetDeadline(deadline)
	}
	for {
		server, err := l.AcceptTCP()
		if err != nil {
			return nil, nil, fmt.Errorf("%w, %w", err, client.Close())
		}
		if server.RemoteAddr().String() == client.LocalAddr().String() {
			return client, server, nil
		}
		_ = server.Close() // another process's
	}
}

// alsoInside adds the clients that are a part of the server to those that an authenticator
// knows; nil stays nil: then the broker asks no client who it is.
func alsoInside(a access.Authenticator) access.Authenticator {
	if a == nil {
		return nil
	}
	return withInside{a}
}

// withInside is an authenticator that knows clients which are a part of the server, and asks
// another one about all others.
type withInside struct{ access.Authenticator }

func (a withInside) Connect(p *mqtt.Connect, clientID string, from *access.Origin, stop <-chan struct{}) access.Verdict {
	if from.Inside != nil {
		return access.Verdict{Identity: from.Inside}
	}
	return a.Authenticator.Connect(p, clientID, from, stop)
}

func (a withInside) Holds(id *access.Identity) bool {
	return id != nil && id.Method == access.Inside || a.Authenticator.Holds(id)
}
