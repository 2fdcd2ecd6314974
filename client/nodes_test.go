package client_test

import (
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest/wire"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// nodes are proxies to one server, as the nodes of a cluster are to the leader.
func nodes(t *testing.T, n int) (all []*proxy, addresses string) {
	t.Helper()
	var list []string
	for range n {
		p := startProxy(t, testserver.Shared().Addr)
		all, list = append(all, p), append(list, p.addr)
	}
	return all, strings.Join(list, ",")
}

// Of the nodes of a cluster, a client takes the first that answers its CONNECT.
func TestFirstNodeThatAnswers(t *testing.T) {
	t.Parallel()
	all, addresses := nodes(t, 4)
	all[0].refuse(true) // closes each connection
	all[1].hold()       // takes it, and says nothing
	c := dial(t, addresses, client.WithTimeout(8*time.Second))
	mustSet(t, c, key(t, "k"), "v")
	if a, b := all[2].connections(), all[3].connections(); a != 1 || b != 0 {
		t.Errorf("the third node has %d connections, the fourth %d; want 1 and 0", a, b)
	}

	// A session does the same.
	s, err := client.DialSession(within(t, patience), addresses, client.WithTimeout(8*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := all[2].connections(); n != 2 {
		t.Errorf("the third node has %d connections, want 2", n)
	}
}

// When the connection is lost the client goes on at the next node, and after the last at the first.
func TestLostConnectionAndTheNextNode(t *testing.T) {
	t.Parallel()
	all, addresses := nodes(t, 2)
	c := dial(t, addresses, fastRetry())
	for i, p := range []*proxy{all[0], all[1], all[0]} {
		mustSet(t, c, key(t, "k"), "v")
		if n := p.connections(); n != i/2+1 {
			t.Errorf("after %d connections were lost the node has had %d, want %d", i, n, i/2+1)
		}
		p.cut()
		eventually(t, "the client has connected again", func() bool {
			return all[0].connections()+all[1].connections() == i+2
		})
	}
}

// refusing answers each CONNECT with a reason code, and counts them.
func refusing(t *testing.T, code mqtt.ReasonCode) (address string, connects *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	connects = new(atomic.Int64)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := wire.New(nc, 1<<20).Next(time.Now().Add(patience)); err == nil {
				connects.Add(1)
				_, _ = nc.Write(mqtt.AppendConnack(nil, mqtt.V5, &mqtt.Connack{Code: code}))
			}
			_ = nc.Close()
		}
	}()
	return l.Addr().String(), connects
}

// A refusal that is about the node sends the client to the next one; a wrong password is wrong at
// all of them.
func TestRefusalsAndTheNextNode(t *testing.T) {
	t.Parallel()
	for code, another := range map[mqtt.ReasonCode]bool{
		mqtt.ServerUnavailable: true, mqtt.ServerBusy: true, mqtt.QuotaExceeded: true, mqtt.UseAnotherServer: true,
		mqtt.BadUserNameOrPassword: false, mqtt.NotAuthorized: false, mqtt.ClientIdentifierNotValid: false, mqtt.Banned: false,
	} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			address, _ := refusing(t, code)
			next, addresses := nodes(t, 1)
			c, err := client.Dial(within(t, patience), address+","+addresses)
			if another {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				mustSet(t, c, key(t, "k"), "v")
				return
			}
			var refused *client.ConnectError
			if !errors.As(err, &refused) || refused.Code != client.ReasonCode(code) || !strings.Contains(err.Error(), address) {
				t.Errorf("%v", err)
			}
			if n := next[0].connections(); n != 0 {
				t.Errorf("the next node has had %d connections", n)
			}
		})
	}
}

// If all nodes refuse, Dial fails after one attempt at each.
func TestAllNodesRefuse(t *testing.T) {
	t.Parallel()
	a, connectsA := refusing(t, mqtt.ServerUnavailable)
	b, connectsB := refusing(t, mqtt.ServerBusy)
	_, err := client.Dial(within(t, patience), a+","+b)
	var refused *client.ConnectError
	if !errors.As(err, &refused) || refused.Code != client.ReasonServerBusy {
		t.Errorf("%v", err)
	}
	if connectsA.Load() != 1 || connectsB.Load() != 1 {
		t.Errorf("%d and %d connections, want one each", connectsA.Load(), connectsB.Load())
	}
}
