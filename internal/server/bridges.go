package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/inside"
	"github.com/holdfast-mqtt/holdfast/internal/service"
)

// startBridges starts the bridges of the configuration.
func (s *Server) startBridges() {
	if len(s.config.Bridges) == 0 {
		return
	}
	s.inside = inside.New()
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		if err := s.broker.Serve(s.inside); err != nil {
			s.log.Error("bridges cannot connect to this broker", "error", err)
		}
	}()
	l := s.broker.Limits()
	ctx, cancel := context.WithCancel(context.Background())
	s.endBridges = cancel
	for _, c := range s.config.Bridges {
		link := bridge.NewLink(c, bridge.Options{
			Dial:           func(ctx context.Context) (net.Conn, error) { return s.inside.Dial(ctx, bridge.ClientPrefix+c.Name) },
			Self:           brokerName(s.config.DataDir),
			MaxPacket:      l.MaxPacketSize,
			ReceiveMaximum: uint16(l.ReceiveMaximum),
			Limits:         bridge.Limits{UserProperties: l.MaxUserProperties, TopicLevels: l.MaxTopicLevels},
			Reserved:       reservedForBridges,
			Own:            s.connectedFrom,
			Listens:        s.listensAt,
			EndSession:     s.broker.Sessions.EndSession,
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
	own := reserved.Topics{Handlers: service.Topics(), Servers: service.Protected()}
	return own.Handled(name) || own.Protected(name)
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

// listensAt says whether a TCP connection of this process leads to one of its listeners: both its
// addresses are those of this machine, and a listener has the second. No other process can listen there.
func (s *Server) listensAt(from, to net.Addr) bool {
	near, ok := from.(*net.TCPAddr)
	far, is := to.(*net.TCPAddr)
	if !ok || !is || !near.IP.Equal(far.IP) && !(near.IP.IsLoopback() && far.IP.IsLoopback()) {
		return false
	}
	for _, l := range s.listeners {
		at, is := l.Addr().(*net.TCPAddr)
		if is && at.Port == far.Port && (at.IP.IsUnspecified() || at.IP.Equal(far.IP)) {
			return true
		}
	}
	return false
}

// publishBridge publishes a bridge's state, where Mosquitto publishes those of its own, and why
// it is not connected.
func (s *Server) publishBridge(link *bridge.Link) {
	state, reason := "0", link.Reason().String()
	if link.Connected() {
		state = "1"
	}
	s.broker.PublishSys("broker/connection/"+link.Name()+"/state", state)
	s.broker.PublishSys("broker/connection/"+link.Name()+"/reason", reason)
}

// publishBridges publishes the bridges' states.
func (s *Server) publishBridges() {
	for _, link := range s.bridges {
		s.publishBridge(link)
	}
}
