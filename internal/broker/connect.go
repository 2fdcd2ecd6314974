package broker

import (
	"crypto/rand"
	"errors"
	"math"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/subscribe"
	"github.com/holdfast-mqtt/holdfast/internal/broker/will"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// connect handles CONNECT, the first packet.
func (c *Conn) connect(t *session.Turn, body []byte) error {
	p := &t.Connect
	defer func() { *p = mqtt.Connect{} }() // a turn that is kept keeps no password in sight
	p.Bounds = c.b.Limits().Packet()
	err := p.Decode(body)
	c.decoding = false
	if err != nil {
		return c.refuseMalformed(t, p, err)
	}
	c.Protocol, c.bridge = p.Version, p.Bridge
	c.MaxPacket = min(p.MaximumPacketSize, math.MaxInt32)
	ack := mqtt.Connack{}
	if len(p.ClientID) == 0 {
		ack.AssignedClientID = "holdfast-" + strings.ToLower(rand.Text())
		c.Client = ack.AssignedClientID
	}
	if code, reason := c.judge(t, p, &ack); code.Failed() {
		return c.refuse(t, code, reason)
	}
	c.Negotiate(p, &ack, c.b.Limits())
	if granted := c.b.Limits().GrantExpiry(p.SessionExpiry); granted != p.SessionExpiry && c.origin.Inside == nil {
		p.SessionExpiry = granted
		ack.HasSessionExpiry, ack.SessionExpiry = true, granted
	}
	if c.MaxPacket > 0 && len(mqtt.AppendConnack(nil, c.Protocol, &ack)) > int(c.MaxPacket) { // [MQTT-3.1.2-24]
		return c.refuse(t, mqtt.PacketTooLarge, "the CONNACK is larger than the client's Maximum Packet Size")
	}
	left := func() bool { // body is still buffered
		_, _, n, _, _ := mqtt.Split(c.Transport.Buffered(), 0)
		return len(c.Transport.Buffered()) == n && c.Transport.PeerGone()
	}
	return c.begin(t, p, &ack, left)
}

// begin gives the connection its session, and CONNACK.
func (c *Conn) begin(t *session.Turn, p *mqtt.Connect, ack *mqtt.Connack, left func() bool) error {
	var ended []*session.Subscription
	var automatic subscribe.Made
	connection := &registry.Connection{Peer: &c.Peer, Identity: c.Identity(), Connect: p, Ack: ack, Left: left, Begin: func(s *session.Session) {
		c.session = s
		c.active.Store(c.b.Now())
		ended = c.judgeSession(s, ack.SessionPresent)
		if c.origin.Inside == nil {
			automatic = c.b.subscriptions.Automatic(c.subscriber())
		}
	}}
	refused := c.b.Sessions.Attach(t, connection)
	if refused != nil {
		return c.refuse(t, refused.Code, refused.Reason)
	}
	if len(ended) > 0 {
		c.endDenied(t, ended)
	}
	c.b.subscriptions.Begin(t, c.session, automatic)
	c.b.Counters.Connects.Add(1)
	c.LogConnected(p, ack.SessionPresent, c.b.auth != nil, c.Identity())
	if c.b.audit != nil {
		c.b.audit.Connected(c.audited(), ack.SessionPresent, connection.TookOver)
	}
	return nil
}

// refuseMalformed answers a CONNECT that can't be read, where the standard has an answer.
func (c *Conn) refuseMalformed(t *session.Turn, p *mqtt.Connect, err error) error {
	var e *mqtt.Error
	if !errors.As(err, &e) {
		return err
	}
	c.Protocol = mqtt.V5
	if p.Version == mqtt.V31 || p.Version == mqtt.V311 || p.Version < mqtt.V5 && e.Code == mqtt.UnsupportedProtocolVersion {
		c.Protocol = mqtt.V311
	}
	return c.refuse(t, e.Code, e.Reason)
}

// refuse answers with a failure CONNACK; the connection ends.
func (c *Conn) refuse(t *session.Turn, code mqtt.ReasonCode, reason string) error {
	c.b.Counters.Refused.Add(1)
	if c.Protocol < mqtt.V5 && code == mqtt.QuotaExceeded {
		code = mqtt.ServerUnavailable // before version 5 no code says it better
	}
	c.b.Log.Info("refusing a connection", "client", c.Client, "remote", c.Remote(), "code", code, "reason", reason)
	if c.b.audit != nil {
		client := c.audited()
		if client.User == "" {
			client.User = string(t.Connect.Username) // claimed
		}
		c.b.audit.Refused(client, byte(code), reason)
	}
	c.TellRefused(&t.Connect, c.Identity(), code, reason)
	c.Append(reason, func(dst []byte, reason string) []byte {
		return mqtt.AppendConnack(dst, c.Protocol, &mqtt.Connack{Code: code, ReasonString: reason})
	})
	return errGone
}

// judge says whether the client may connect.
func (c *Conn) judge(t *session.Turn, p *mqtt.Connect, ack *mqtt.Connack) (code mqtt.ReasonCode, reason string) {
	if len(p.ClientID) > c.b.Limits().MaxClientID {
		return mqtt.ClientIdentifierNotValid, "the client identifier is too long"
	}
	if c.Client == "" {
		c.Client = string(p.ClientID)
	}
	if code, reason := c.identify(t, p, ack); code.Failed() {
		return code, reason
	}
	if c.b.may != nil && !c.b.may.MayConnect(c.Identity()) {
		return mqtt.NotAuthorized, "not authorized to connect"
	}
	if code, reason := c.b.JudgeQueueFull(p.Raw); code.Failed() {
		return code, reason
	}
	if p.HasWill {
		if code, reason := c.judgeWill(&p.Will); code.Failed() {
			return code, reason
		}
	}
	if refused := c.admit(); refused != "" { // last: another connection may end for this one
		return mqtt.QuotaExceeded, refused
	}
	return mqtt.Success, ""
}

func (c *Conn) judgeWill(w *mqtt.Will) (code mqtt.ReasonCode, reason string) {
	if code, reason = will.Judge(w, c.b.Limits().MaxTopicLevels); code.Failed() {
		return code, reason
	}
	if code, reason = c.b.rewrites.Rewrite(&w.Topic, &c.b.reservedTopics); code.Failed() {
		return code, reason
	}
	switch {
	case c.b.reservedTopics.Handled(w.Topic) || c.b.reservedTopics.Protected(w.Topic) || !c.b.mayPublish(c, w.Topic):
		return mqtt.NotAuthorized, "not authorized for the will's topic"
	case !c.b.mayBeAnswered(c, w.Props.ResponseTopic):
		return mqtt.NotAuthorized, "the will's response topic must be one that the client may subscribe to"
	}
	return mqtt.Success, ""
}
