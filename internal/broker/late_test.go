package broker

import (
	"net"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// lateAuth judges the CONNECTs of users "late" when it is told to.
type lateAuth struct {
	access.Authenticator
	came, judge chan struct{}
}

func (a lateAuth) Connect(p *mqtt.Connect, clientID string, from *access.Origin, stop <-chan struct{}) access.Verdict {
	if string(p.Username) == "late" {
		a.came <- struct{}{}
		<-a.judge
	}
	return access.Verdict{Identity: &access.Identity{}}
}

func (a lateAuth) Holds(*access.Identity) bool { return true }

// accepted gives the connections of a listener to a test, too.
type accepted struct {
	net.Listener
	conns chan net.Conn
}

func (l accepted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns <- c
	}
	return c, err
}

// A client gives up a connection whose CONNECT is not answered, and gets its session with
// another one. When the server comes to the first CONNECT, the client keeps what it has.
// But what a client had sent behind CONNECT before it closed is still taken.
func TestAConnectThatComesLateTakesNothingOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		behind []byte
		keeps  bool
	}{
		"nothing behind CONNECT":   {nil, true},
		"a publish behind CONNECT": {mqtt.AppendPublish(nil, mqtt.V5, &mqtt.Publish{Topic: []byte("said"), Payload: []byte("late")}), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			auth := lateAuth{came: make(chan struct{}), judge: make(chan struct{})}
			n := run(t, vfs.NewMem(), Limits{}, func(_ *journal.Options, o *Options) { o.Auth = auth })
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := accepted{tcp, make(chan net.Conn, 1)}
			go n.broker.Serve(l)
			reader := mqtttest.Connect(t, n.addr)
			reader.Subscribe("said", 0)

			late := mqtttest.Dial(t, tcp.Addr().String())
			late.Write(append(late.EncodeConnect(mqtttest.Persistent("c"), mqtttest.Credentials("late", "")), c.behind...))
			here := <-l.conns
			<-auth.came
			current := mqtttest.Connect(t, n.addr, mqtttest.Persistent("c"))
			late.HalfClose()
			until(t, "the server's system knows that the client has closed", func() bool { return sockets.Gone(here) })
			close(auth.judge)

			if !c.keeps {
				current.ExpectDisconnect(mqtt.SessionTakenOver)
				if got := reader.Receive(); got.Payload != "late" {
					t.Errorf("%v came, want what was sent behind CONNECT", got)
				}
				return
			}
			late.ExpectRefused(mqtt.UnspecifiedError)
			current.Ping()
			if n.broker.Counters.Takeovers.Load() != 0 {
				t.Error("the connection that the client has was taken over")
			}
		})
	}
}
