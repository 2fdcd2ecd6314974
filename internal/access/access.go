// Package access has the types by which the broker, the state store's service, and the
// packages of authentication and of permissions speak of clients: where a connection came
// in, who its client is, and what that client may do. It decides nothing itself.
package access

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Identity is what a client has proven to be. It doesn't change: a client that
// authenticates again gets another. Its methods are safe for concurrent use, also on nil,
// which stands for a client of a server that authenticates none.
type Identity struct {
	ClientID   string            // given by the client, or assigned
	Username   string            // empty: none was proven
	Attributes map[string]string // of its token or its certificate, of the one that Method names
	Method     Method            // how it was proven
	Owner      string            // to which a session belongs; the same for every connection of one principal; empty: to the client ID
	Rules      *Rules            `json:",omitempty"` // what it may do besides what the policy says; nil: nothing
	Expires    time.Time         // when the proof ends, by the machine's clock; zero: never
	Proof      string            `json:"-"` // by which the Authenticator sees whether it still holds; secret
	// AuthMethod is the Authentication Method of the client's CONNECT, which the broker
	// notes; empty: it had none.
	AuthMethod string `json:"-"`

	// Grants is what the Permissions have worked out for this identity. It belongs to them.
	Grants atomic.Pointer[Grants] `json:"-"`
}

// Method is how an identity was proven.
type Method string

// The methods.
const (
	Anonymous   Method = "anonymous" // not at all
	Password    Method = "password"
	Certificate Method = "certificate"
	Token       Method = "token"
	Webhook     Method = "webhook" // an HTTP server of the operator's has said so
	Inside      Method = "inside"  // the client is a part of the server
)

// Name is what logs and quotas call the client's principal: what owns its sessions, or its
// client ID.
func (id *Identity) Name() string {
	switch {
	case id == nil:
		return ""
	case id.Owner != "":
		return id.Owner
	}
	return id.ClientID
}

// OwnedBy is the Owner; empty also on nil.
func (id *Identity) OwnedBy() string {
	if id == nil {
		return ""
	}
	return id.Owner
}

// Origin is where a connection came in. It is not changed once the connection is accepted.
type Origin struct {
	Listener *Listener            // nil: of no listener that has rules of its own
	Remote   net.Addr             // the client's address; behind a balancer what that says it is
	TLS      *tls.ConnectionState // nil: the connection is not encrypted; otherwise its handshake is complete
	Fronted  bool                 // a front has the client's connection, and sees to its keep-alive
	Inside   *Identity            // of a client that is a part of the server; nil: it is none
}

// String is the client's address.
func (o *Origin) String() string {
	if o.Remote == nil {
		return ""
	}
	return o.Remote.String()
}

// Listener is what the configuration says of one listener.
type Listener struct {
	Name string // its URL, for example mqtts://0.0.0.0:8883
	// Anonymous says that a client without credentials may connect.
	Anonymous bool
	// Vouches says whether what a client has shown in its handshake is still good, after
	// the listener's certificates were read again; nil: the listener asks for nothing.
	Vouches func(*tls.ConnectionState) bool
}

// Vouches says whether the listener would still take what the client has shown in its
// handshake.
func (o *Origin) Vouches() bool {
	return o.TLS == nil || o.Listener == nil || o.Listener.Vouches == nil || o.Listener.Vouches(o.TLS)
}

// Verdict is what an Authenticator answers.
type Verdict struct {
	Identity *Identity       // who the client is, if Code is Success
	Code     mqtt.ReasonCode // Success, or the code of the refusal
	Reason   string          // of a refusal, for the client: nothing secret
	Data     []byte          // Authentication Data for the client (MQTT 5, section 4.12)
}

// Authenticator says who a client is. Its methods are called on many goroutines at once.
type Authenticator interface {
	// Connect judges a CONNECT. clientID is the client's, or the one that the server has
	// assigned. p is a view that is valid during the call. It is called on the reader of a
	// connection that no other goroutine waits for, so it may wait; it gives up when stop
	// is closed.
	Connect(p *mqtt.Connect, clientID string, from *Origin, stop <-chan struct{}) Verdict
	// Reauthenticate judges an AUTH with the reason code 0x19 of a client that is connected.
	Reauthenticate(id *Identity, p *mqtt.Auth, from *Origin, stop <-chan struct{}) Verdict
	// Holds says whether what a client has proven is still so: the Authenticator may have
	// read its files again since. It does not wait.
	Holds(id *Identity) bool
}

// Permissions say what a client may do. Their methods are called on many goroutines at
// once, for every packet concerned, with locks held; they must not block, and don't keep
// what they are given.
type Permissions interface {
	MayConnect(id *Identity) bool
	MayPublish(id *Identity, topic []byte) bool
	MaySubscribe(id *Identity, filter []byte) bool
	MayRead(id *Identity, key []byte) bool
	MayWrite(id *Identity, key []byte) bool
	// Grants are what the Permissions say of the identity at the moment; never nil, and not
	// to be changed.
	Grants(id *Identity) *Grants
}

// AllowAll are Permissions to do everything.
type AllowAll struct{}

func (AllowAll) MayConnect(*Identity) bool           { return true }
func (AllowAll) MayPublish(*Identity, []byte) bool   { return true }
func (AllowAll) MaySubscribe(*Identity, []byte) bool { return true }
func (AllowAll) MayRead(*Identity, []byte) bool      { return true }
func (AllowAll) MayWrite(*Identity, []byte) bool     { return true }
func (AllowAll) Grants(*Identity) *Grants            { return &NoGrants }

// OriginOf says where an accepted connection came in: what the connection says itself,
// or one below it, if it has a method Origin, or else its remote address.
func OriginOf(nc net.Conn) *Origin {
	for below := nc; ; {
		switch c := below.(type) {
		case interface{ Origin() *Origin }:
			return c.Origin()
		case interface{ NetConn() net.Conn }:
			below = c.NetConn()
		default:
			return &Origin{Remote: nc.RemoteAddr()}
		}
	}
}
