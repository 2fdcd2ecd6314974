package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/audit"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Who the client of a connection is. A CONNECT is judged before it claims its client ID,
// so that a client which has not proven who it is neither ends another one's connection
// nor waits for it; what it costs meanwhile is its connection and its packet.

// identify has the authenticator say who the client is.
func (c *Conn) identify(t *session.Turn, p *mqtt.Connect, ack *mqtt.Connack) (code mqtt.ReasonCode, reason string) {
	b := c.b
	if b.auth == nil {
		if p.HasAuthMethod {
			return mqtt.BadAuthenticationMethod, "the authentication method is not supported: the server does not ask clients who they are"
		}
		if b.may != nil {
			c.identity.Store(&access.Identity{ClientID: c.Client, Method: access.Anonymous})
		}
		return mqtt.Success, ""
	}
	if p.HasAuthMethod && c.sentMore() {
		return mqtt.ProtocolError, "a client that names an authentication method waits for CONNACK" // [MQTT-3.1.2-30]
	}
	t.LeaveGate() // the authenticator may let it wait
	v := b.auth.Connect(p, c.Client, c.origin, b.stop)
	if v.Code.Failed() {
		return v.Code, v.Reason
	}
	if p.HasAuthMethod { // [MQTT-4.12.0-5], [MQTT-4.12.0-6]
		v.Identity.AuthMethod = string(p.AuthMethod)
		ack.AuthMethod, ack.AuthData = v.Identity.AuthMethod, v.Data
	}
	c.identity.Store(v.Identity)
	if code, reason := c.revoked(v.Identity); code.Failed() { // EndRevoked may have looked before there was an identity
		return mqtt.NotAuthorized, reason
	}
	return mqtt.Success, ""
}

// revoked says why what the client has proven does not hold any longer, and with which code
// its connection ends: 0x87, or for a token whose key is not trusted any more 0xA0, as for
// one that has expired. A client that is given tokens may have a new one, signed with
// another key, and clients give up at 0x87. Success: it holds.
func (c *Conn) revoked(id *access.Identity) (code mqtt.ReasonCode, reason string) {
	switch holds := c.b.auth.Holds(id); {
	case !holds && id.Method == access.Token:
		return mqtt.MaximumConnectTime, "the key of the client's token is not trusted any more"
	case !holds:
		return mqtt.NotAuthorized, "the client's " + string(id.Method) + " is not valid any more"
	case !c.origin.Vouches():
		return mqtt.NotAuthorized, "the client's certificate is not valid any more"
	}
	return mqtt.Success, ""
}

// audited is the client in lines of the audit log.
func (c *Conn) audited() *audit.Client {
	a := &audit.Client{ID: c.Client, Remote: c.origin.String(), Protocol: byte(c.Protocol)}
	if c.origin.Listener != nil {
		a.Listener = c.origin.Listener.Name
	}
	if id := c.Identity(); id != nil {
		a.User, a.Owner, a.Method = id.Username, id.Owner, string(id.Method)
	}
	return a
}

// sentMore says whether the client has sent another packet than AUTH or DISCONNECT behind
// its CONNECT, which is still in the input.
func (c *Conn) sentMore() bool {
	in := c.Transport.Buffered()
	_, _, n, _, err := mqtt.Split(in, c.maxIncoming())
	if err != nil || n == 0 || n == len(in) {
		return false
	}
	typ := mqtt.Type(in[n] >> 4)
	return typ != mqtt.AUTH && typ != mqtt.DISCONNECT
}

// reauthenticate handles the client's AUTH (MQTT 5, section 4.12.1). Until it is answered
// the client is who it was.
func (c *Conn) reauthenticate(t *session.Turn, body []byte) error {
	p := mqtt.Auth{Bounds: c.b.Limits().Packet()}
	if err := p.Decode(c.Protocol, body); err != nil {
		return err
	}
	c.decoding = false
	id := c.Identity()
	switch {
	case id == nil || id.AuthMethod == "":
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "AUTH without an authentication method in CONNECT"} // [MQTT-4.12.0-7]
	case p.Code != mqtt.Reauthenticate:
		return &mqtt.Error{Code: mqtt.ProtocolError, Reason: "AUTH does not continue anything: to authenticate again its reason code is 0x19"}
	case string(p.AuthMethod) != id.AuthMethod: // [MQTT-4.12.1-1]
		return &mqtt.Error{Code: mqtt.BadAuthenticationMethod, Reason: "the authentication method is not that of CONNECT"}
	}
	began := time.Now()
	v := c.b.auth.Reauthenticate(id, &p, c.origin, c.b.stop)
	t.Worked += int(time.Since(began) / time.Microsecond) // signatures: a client that sends one AUTH after the other takes turns
	switch {
	case v.Code.Failed() && !v.Code.ValidIn(mqtt.DISCONNECT):
		v.Code = mqtt.NotAuthorized
	case v.Code.Failed():
	case v.Identity.Owner != id.Owner: // its session would be another principal's
		v.Code, v.Reason = mqtt.NotAuthorized, "the client is another one than before"
	case c.b.may != nil && !c.b.may.MayConnect(v.Identity):
		v.Code, v.Reason = mqtt.NotAuthorized, "not authorized to connect"
	}
	if v.Code.Failed() { // [MQTT-4.12.1-2]
		c.b.audit.Reauthenticated(c.audited(), v.Reason)
		return &mqtt.Error{Code: v.Code, Reason: v.Reason}
	}
	v.Identity.AuthMethod = id.AuthMethod
	c.identity.Store(v.Identity)
	if code, reason := c.revoked(v.Identity); code.Failed() { // EndRevoked may have looked before this identity was there
		c.b.audit.Reauthenticated(c.audited(), reason)
		return &mqtt.Error{Code: code, Reason: reason}
	}
	c.b.Counters.Reauthenticated.Add(1)
	c.b.audit.Reauthenticated(c.audited(), "")
	c.Append("", func(dst []byte, _ string) []byte {
		return mqtt.AppendAuth(dst, &mqtt.Auth{
			AuthMethod: []byte(id.AuthMethod), HasAuthMethod: true, AuthData: v.Data, HasAuthData: v.Data != nil,
		})
	})
	if c.b.may != nil && !id.SameClaims(v.Identity) {
		c.b.Sessions.LeaveWillAs(c.session, &c.Peer, v.Identity)
		if ended := c.recheck(); len(ended) > 0 {
			c.endDenied(t, ended)
		}
		c.b.recheckHandler()
	}
	return nil
}

// checkExpiry closes the connection if what its client has proven does not hold any
// longer. The reason is 0xA0, the specification's "Maximum connect time: the maximum
// connection time authorized for this connection has been exceeded", and not 0x87: the
// client may come again with a new token, and clients give up at 0x87. The sweep's.
func (c *Conn) checkExpiry(now time.Time) {
	id := c.identity.Load()
	if id == nil || id.Expires.IsZero() || now.Before(id.Expires) || !c.Connected.Load() {
		return
	}
	reason := "the client's " + string(id.Method) + " has expired"
	if !c.Stopping.Load() {
		c.b.Counters.IdentitiesExpired.Add(1)
		c.b.audit.Ended(c.audited(), reason)
	}
	c.Disconnect(mqtt.MaximumConnectTime, reason)
}

// EndRevoked disconnects the clients whose identity does not hold any longer, after the
// authenticator or a listener has read its files again. Their sessions stay.
func (b *Broker) EndRevoked() {
	if b.auth == nil {
		return
	}
	b.mu.Lock()
	conns := slices.Collect(maps.Keys(b.conns))
	b.mu.Unlock()
	for _, c := range conns {
		id := c.Identity()
		if id == nil {
			continue // it has not been judged yet
		}
		if code, reason := c.revoked(id); code.Failed() {
			b.Counters.IdentitiesRevoked.Add(1)
			b.audit.Ended(c.audited(), reason)
			c.Disconnect(code, reason)
		}
	}
}
