package conformance

import (
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// roles is an Authenticator for tests: the data of a client's authentication method are its
// role.
type roles struct{ trusting }

func (roles) Connect(p *mqtt.Connect, clientID string, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	return withRole(clientID, p.AuthData)
}

func (roles) Reauthenticate(id *access.Identity, p *mqtt.Auth, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	return withRole(id.ClientID, p.AuthData)
}

func withRole(clientID string, role []byte) access.Verdict {
	return access.Verdict{Identity: &access.Identity{ClientID: clientID, Attributes: map[string]string{"role": string(role)}, Method: access.Token}}
}

func role(r string) mqtttest.Option {
	return mqtttest.Raw(func(c *mqtt.Connect) {
		c.AuthMethod, c.HasAuthMethod, c.AuthData, c.HasAuthData = []byte("JWT"), true, []byte(r), true
	})
}

// A will is judged by what its client was when it was there last, and not by what it was
// when it connected; also after a restart.
func TestWillOfAClientThatLostItsRole(t *testing.T) {
	t.Parallel()
	n := startGoverned(t, `rules:
- brokerResources: [{method: Connect}, {method: Subscribe, topics: ["#"]}]
- principals: {attributes: [{role: operator}]}
  brokerResources: [{method: Publish, topics: ["#"]}]`, func(c *server.Config) { c.Auth = roles{} })
	listener := n.connect(role("listener"))
	listener.Subscribe("#", 1)
	lose := func(id string, delay uint32) *client {
		c := n.connect(role("operator"), mqtttest.Persistent(id), mqtttest.Will(message{Topic: "wills/" + id, QoS: 1}, delay))
		c.Write(mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.Reauthenticate, AuthMethod: []byte("JWT"), HasAuthMethod: true, AuthData: []byte("none"), HasAuthData: true}))
		c.Expect(mqtt.AUTH)
		return c
	}
	lose("now", 0).Drop()
	lose("soon", 1).Drop()
	n.connect(role("operator"), mqtttest.Persistent("kept"), mqtttest.Will(message{Topic: "wills/kept", QoS: 1}, 1)).Drop()
	if got := listener.Receive(); got.Topic != "wills/kept" {
		t.Errorf("got %v, want the will of the client that kept its role", got)
	}
	listener.Quiet()
}
