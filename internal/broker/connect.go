package broker

import (
	"crypto/rand"
	"errors"
	"math"
	"net"
	"strings"
	"time"

	"holdfast/internal/failstop"
	"holdfast/internal/journal"
	"holdfast/internal/lockrank"
	"holdfast/internal/mqtt"
	"holdfast/internal/topic"
)

// connect handles CONNECT, the first packet.
func (c *Conn) connect(t *Turn, body []byte) error {
	p := &t.connect
	defer func() { *p = mqtt.Connect{} }() // a turn that is kept keeps no password in sight
	p.Bounds = c.b.bounds
	err := p.Decode(body)
	c.decoding = false
	if err != nil {
		return c.refuseMalformed(t, p, err)
	}
	c.version, c.bridge = p.Version, p.Bridge
	c.maxPacket = int(p.MaximumPacketSize)
	if code, reason := c.judge(p); code.Failed() {
		return c.refuse(t, code, reason)
	}
	ack := mqtt.Connack{}
	if len(p.ClientID) == 0 {
		ack.AssignedClientID = "holdfast-" + strings.ToLower(rand.Text())
		c.clientID = ack.AssignedClientID
	} else {
		c.clientID = string(p.ClientID)
	}
	c.negotiate(p, &ack)
	if c.maxPacket > 0 && len(mqtt.AppendConnack(nil, c.version, &ack)) > c.maxPacket { // [MQTT-3.1.2-24]
		return c.refuse(t, mqtt.PacketTooLarge, "the CONNACK is larger than the client's Maximum Packet Size")
	}
	return c.b.attach(t, c, p, &ack)
}

// refuseMalformed answers a CONNECT that can't be read, where the standard has an answer.
func (c *Conn) refuseMalformed(t *Turn, p *mqtt.Connect, err error) error {
	var e *mqtt.Error
	if !errors.As(err, &e) {
		return err
	}
	c.version = mqtt.V5
	if p.Version == mqtt.V31 || p.Version == mqtt.V311 || p.Version < mqtt.V5 && e.Code == mqtt.UnsupportedProtocolVersion {
		c.version = mqtt.V311
	}
	return c.refuse(t, e.Code, e.Reason)
}

// refuse answers with a failure CONNACK; the connection ends.
func (c *Conn) refuse(t *Turn, code mqtt.ReasonCode, reason string) error {
	c.b.stats.Refused.Add(1)
	if c.version < mqtt.V5 && code == mqtt.QuotaExceeded {
		code = mqtt.ServerUnavailable // before version 5 no code says it better
	}
	c.b.log.Info("refusing a connection", "client", c.clientID, "remote", c.remote(), "code", code, "reason", reason)
	c.append(reason, func(dst []byte, reason string) []byte {
		return mqtt.AppendConnack(dst, c.version, &mqtt.Connack{Code: code, ReasonString: reason})
	})
	return errGone
}

// judge says whether the client may connect.
func (c *Conn) judge(p *mqtt.Connect) (code mqtt.ReasonCode, reason string) {
	if p.HasAuthMethod {
		return mqtt.BadAuthenticationMethod, "extended authentication is not supported"
	}
	if len(p.ClientID) > c.b.limits.MaxClientID {
		return mqtt.ClientIdentifierNotValid, "the client identifier is too long"
	}
	if c.b.auth != nil {
		if c.identity, code, reason = c.b.auth.Connect(p, c.tr.RemoteAddr()); code.Failed() {
			return code, reason
		}
	}
	if !c.b.mayStay(c) {
		return mqtt.QuotaExceeded, "the server has as many connections as it may"
	}
	if code, reason := c.b.judgeQueueFull(p.Raw); code.Failed() {
		return code, reason
	}
	if p.HasWill {
		return c.judgeWill(&p.Will)
	}
	return mqtt.Success, ""
}

func (c *Conn) judgeWill(w *mqtt.Will) (code mqtt.ReasonCode, reason string) {
	switch {
	case !topic.ValidName(w.Topic) || topic.Levels(string(w.Topic)) > c.b.limits.MaxTopicLevels:
		return mqtt.TopicNameInvalid, "the will's topic name is invalid"
	case c.b.handled(w.Topic) || c.b.protected(w.Topic) || !c.b.mayPublish(c, w.Topic):
		return mqtt.NotAuthorized, "not authorized for the will's topic"
	case namesNoResponseTopic(&w.Props):
		return mqtt.ProtocolError, "the will's response topic is empty"
	case c.TooManyLevels(w.Props.ResponseTopic):
		return mqtt.TopicNameInvalid, "the will's response topic has too many levels"
	case notAsFormatted(&w.Props, w.Payload):
		return mqtt.PayloadFormatInvalid, "the will's Payload Format Indicator promises UTF-8 and its payload is not"
	}
	return mqtt.Success, ""
}

// negotiate settles the connection's properties and announces every limit.
func (c *Conn) negotiate(p *mqtt.Connect, ack *mqtt.Connack) {
	l := &c.b.limits
	c.problemInfo = p.RequestProblemInfo
	c.receiveMax = min(int(p.ReceiveMaximum), l.MaxInflight)
	if p.Version < mqtt.V5 {
		c.receiveMax = min(c.receiveMax, l.MaxInflightV3)
	}
	c.aliasOutMax = min(int(p.TopicAliasMaximum), l.TopicAliasMaximum)
	c.keepAlive = time.Duration(p.KeepAlive) * time.Second
	if l.MaxKeepAlive > 0 && (c.keepAlive == 0 || c.keepAlive > l.MaxKeepAlive) && p.Version == mqtt.V5 {
		c.keepAlive = l.MaxKeepAlive
		ack.HasServerKeepAlive = true
		ack.ServerKeepAlive = uint16(l.MaxKeepAlive / time.Second)
	}
	if granted := c.b.grantExpiry(p.SessionExpiry); granted != p.SessionExpiry {
		p.SessionExpiry = granted
		ack.HasSessionExpiry, ack.SessionExpiry = true, granted
	}
	ack.ReceiveMaximum = uint16(l.ReceiveMaximum)
	ack.MaximumPacketSize = uint32(l.MaxPacketSize)
	ack.TopicAliasMaximum = uint16(l.TopicAliasMaximum)
}

// grantExpiry bounds a Session Expiry Interval.
func (b *Broker) grantExpiry(asked uint32) uint32 {
	return min(asked, uint32(min(b.limits.MaxSessionExpiry/time.Second, math.MaxUint32)))
}

// claims lets one CONNECT at a time deal with a client ID.
type claims struct {
	mu   lockrank.Mutex[lockrank.Claims]
	held map[string]chan struct{} // client IDs claimed; the channel, if somebody waits for it, is closed at the release
}

// take claims a client ID, once nobody else does.
func (cs *claims) take(id string) {
	for {
		cs.mu.Lock()
		released, busy := cs.held[id]
		if !busy {
			cs.held[id] = nil
			cs.mu.Unlock()
			return
		}
		if released == nil {
			released = make(chan struct{})
			cs.held[id] = released
		}
		cs.mu.Unlock()
		<-released
	}
}

func (cs *claims) release(id string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if released := cs.held[id]; released != nil {
		close(released)
	}
	delete(cs.held, id)
}

// attach gives the connection its session: a new one, or the one that the client
// had. A connection that the client still has is closed first, and its reader
// awaited, so that the client's packets take effect in the order sent.
func (b *Broker) attach(t *Turn, c *Conn, p *mqtt.Connect, ack *mqtt.Connack) error {
	b.claims.take(c.clientID)
	defer b.claims.release(c.clientID)
	var s *Session
	for s == nil {
		if s = b.find(t, c, p.CleanStart, ack); s == nil {
			return c.refuse(t, mqtt.QuotaExceeded, "the server holds as many sessions as it may")
		}
		switch err := b.begin(t, s, c, p, ack); {
		case errors.Is(err, errSessionEnded): // meanwhile: its queue overflowed
			s = nil
		case err != nil:
			if !ack.SessionPresent {
				b.endSession(t, s) // it has never begun
			}
			return c.refuse(t, mqtt.QuotaExceeded, err.Error())
		}
	}
	b.goOn(t, s)
	s.mu.Lock()
	shared := s.sharedSubscriptions()
	s.mu.Unlock()
	for _, sub := range shared {
		sub.group.dispatch(t)
	}
	b.stats.Connects.Add(1)
	c.logConnected(p, ack.SessionPresent)
	return nil
}

// find gives the session for a CONNECT, or nil if there may be no more. The
// client's claim is held.
func (b *Broker) find(t *Turn, c *Conn, clean bool, ack *mqtt.Connack) *Session {
	s := b.takeOver(c.clientID)
	if s != nil && clean {
		b.endSession(t, s)
		s = nil
	}
	ack.SessionPresent = s != nil
	if s == nil {
		return b.newSession(t, c)
	}
	b.moveTo(s, c.host())
	return s
}

// Why a session can't begin, or go on, with a connection.
var (
	errSessionEnded = errors.New("the session has ended")
	errWillMemory   = errors.New("the server has no memory for the will at the moment")
)

// begin makes c the session's connection: CONNACK leaves when the session is on
// disk, and before anything else. After an error the session is as it was.
func (b *Broker) begin(t *Turn, s *Session, c *Conn, p *mqtt.Connect, ack *mqtt.Connack) error {
	saved, err := b.saveBegin(s, p)
	if err != nil {
		return err
	}
	if saved != 0 {
		t.flush()
		b.waitDurable(saved)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errSessionEnded
	}
	s.durableTo = max(s.durableTo, saved) // although the journal may still be at it
	c.session, c.since = s, time.Now()
	c.tr.Connected()
	c.active.Store(b.Now())
	c.connected.Store(true)
	c.tr.Lock()
	c.tr.SetOut(mqtt.AppendConnack(c.tr.Out(), c.version, ack))
	c.tr.Unlock()
	s.resume(t, c)
	return nil
}

// saveBegin stops the clocks of a session whose client is back, gives it what the
// CONNECT says, and journals that.
func (b *Broker) saveBegin(s *Session, p *mqtt.Connect) (saved journal.Seq, err error) {
	s.leaving.Lock()
	defer s.leaving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, errSessionEnded
	}
	if !b.changeWill(s, p) {
		return 0, errWillMemory
	}
	b.timers.remove(s.expireAt)
	b.timers.remove(s.willAt)
	s.expireAt, s.willAt = nil, nil
	s.expiry, s.away = p.SessionExpiry, 0
	asked, _ := askedQueueFull(p.Raw)
	s.ask(asked)
	return b.saveSession(s), nil
}

// takeOver closes the connection that a client has, if any, waits until its reader
// is done, and gives its session, if it outlived that. The client's claim is held.
func (b *Broker) takeOver(id string) *Session {
	s := b.lookup(id)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	old, leaving := s.conn, s.detaching
	s.mu.Unlock()
	switch {
	case old != nil:
		b.stats.Takeovers.Add(1)
		old.takeOver()
	case leaving != nil:
		// Its client has gone, but its will may not have been published yet, nor the
		// session have ended that was to end with it [MQTT-3.2.2-2].
		leaving.reader.Wait()
	default:
		return s
	}
	return b.lookup(id)
}

// detach ends the connection's part in its session.
func (b *Broker) detach(t *Turn, c *Conn) {
	s := c.session
	s.mu.Lock()
	if s.conn != c {
		s.mu.Unlock()
		return
	}
	s.conn, s.detaching = nil, c
	s.away, s.awayByWall = b.wallMs(), false
	var now *will
	switch {
	case s.will == nil:
	case c.graceful: // [MQTT-3.1.2-10]
		b.withdrawWill(s)
	case s.will.delay == 0 || !s.durable():
		now, s.will = s.will, nil
	default:
		s.will.due = s.away + int64(s.will.delay)*1000
		b.scheduleWill(s)
	}
	ends := !s.durable()
	if !ends {
		b.saveAway(s, now != nil)
		b.scheduleExpiry(s)
	}
	s.rest()
	shared := s.sharedSubscriptions()
	s.mu.Unlock()

	if now != nil {
		b.publishWill(t, now)
	}
	if ends {
		b.endSession(t, s)
		return
	}
	for _, sub := range shared {
		sub.group.takeBack(t, sub)
	}
}

// detached says that the connection's reader is done with the session.
func (b *Broker) detached(c *Conn) {
	s := c.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detaching == c {
		s.detaching = nil
	}
}

// scheduleExpiry ends the session after its expiry interval; s.mu is held.
func (b *Broker) scheduleExpiry(s *Session) {
	if s.expiry == math.MaxUint32 {
		return // only if that is what MaxSessionExpiry allows
	}
	interval := int64(s.expiry) * 1000
	left := interval - max(0, b.wallMs()-s.away) // not more than all of it, whatever the clock says
	var due *timer
	due = b.timers.add(b.Now()+max(0, left), func() {
		b.work(func(t *Turn) {
			// The client may have come back meanwhile, and even have left again.
			if b.endSessionIf(t, s, func() bool { return s.expireAt == due }) {
				b.stats.SessionsExpired.Add(1)
			}
		})
	})
	s.expireAt = due
}

// scheduleWill publishes the will after its delay; s.mu is held.
func (b *Broker) scheduleWill(s *Session) {
	w := s.will
	left := min(w.due-b.wallMs(), int64(w.delay)*1000)
	s.willAt = b.timers.add(b.Now()+max(0, left), func() {
		b.work(func(t *Turn) { b.publishDelayed(t, s, w) })
	})
}

// publishDelayed publishes a delayed will, unless the client has come back.
func (b *Broker) publishDelayed(t *Turn, s *Session, w *will) {
	s.leaving.Lock() // or the row of the client's next will could go with this one's
	defer s.leaving.Unlock()
	s.mu.Lock()
	due := s.will == w && s.conn == nil
	if due {
		s.will = nil
	}
	s.mu.Unlock()
	if due {
		b.publishWill(t, w)
	}
}

// endSession removes a session that has no connection, or loses it now, with all
// that belongs to it. Its will, if it is delayed, is published now. When it
// returns the session is gone, whoever has ended it.
func (b *Broker) endSession(t *Turn, s *Session) { b.endSessionIf(t, s, func() bool { return true }) }

// endSessionIf ends the session if that is still due, which it asks with the
// session's lock held, and says whether it did.
func (b *Broker) endSessionIf(t *Turn, s *Session, due func() bool) bool {
	s.leaving.Lock()
	defer s.leaving.Unlock()
	s.mu.Lock()
	if s.ended || !due() {
		s.mu.Unlock()
		return false
	}
	s.ended = true
	s.ask(0)
	c := s.conn
	s.conn = nil
	w := s.will
	s.will = nil
	b.timers.remove(s.expireAt)
	b.timers.remove(s.willAt)
	subs := make([]*subscription, 0, len(s.subs))
	for _, sub := range s.subs {
		subs = append(subs, sub)
	}
	s.replays = nil
	s.mu.Unlock()

	// A shared group takes back what it can use, and has that on disk before the
	// session's own rows go, or a crash between the two would lose it.
	for _, sub := range subs {
		b.remove(t, sub)
	}
	s.mu.Lock()
	for _, sub := range subs {
		sub.gone = true
	}
	clear(s.subs)
	// A will's row stays until the will is published.
	b.deleteSession(s, w != nil)
	s.discard()
	s.creditReceived()
	s.mu.Unlock()
	b.forget(s) // from here on there may be a new session of this name
	if w != nil {
		b.publishWill(t, w)
	}
	if c != nil {
		c.Disconnect(mqtt.QuotaExceeded, "the session's queue is full; the session has ended")
	}
	return true
}

// endOverflowed ends a session whose queue passed its bound: a hole in what a
// subscriber gets must never be silent.
func (b *Broker) endOverflowed(t *Turn, s *Session) {
	s.mu.Lock()
	queued, bytes, ended := s.routed.messages, s.routed.bytes, s.ended
	s.mu.Unlock()
	if ended {
		return
	}
	b.stats.SessionsOverflowed.Add(1)
	b.log.Warn("ending a session because its queue is full", "client", s.id, "messages", queued, "bytes", bytes)
	b.endSession(t, s)
}

// sharedSubscriptions gives the session's memberships; s.mu is held.
func (s *Session) sharedSubscriptions() (shared []*subscription) {
	for _, sub := range s.subs {
		if sub.group != nil {
			shared = append(shared, sub)
		}
	}
	return shared
}

// Serve accepts connections until the listener is closed, which Close does.
func (b *Broker) Serve(l net.Listener) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return net.ErrClosed
	}
	b.listeners = append(b.listeners, l)
	b.mu.Unlock()
	var failing acceptFailures
	for {
		nc, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			// Out of file descriptors or of memory, most likely: it passes.
			pause := failing.next()
			if n, said := failing.worthALine(time.Now()); said {
				b.log.Warn("cannot accept connections", "listener", l.Addr(), "error", err, "failures", n, "retry_in", pause)
			}
			select {
			case <-time.After(pause):
			case <-b.stop:
			}
			continue
		}
		failing.pause = 0
		if !b.addReader() {
			_ = nc.Close()
			continue
		}
		go func() {
			defer failstop.End(b.log, "beginning of a connection")
			b.serve(nc)
			b.readers.Done()
		}()
	}
}

// acceptFailures paces a listener that cannot accept, and what is said of it.
type acceptFailures struct {
	pause  time.Duration // before the next attempt
	since  int           // failures since the last line in the log
	logged time.Time     // when that was
}

const (
	shortestAcceptPause = 5 * time.Millisecond
	longestAcceptPause  = time.Second
	// acceptLogPause is how often failures are worth a line in the log.
	acceptLogPause = 10 * time.Second
)

// next is how long to wait after one more failure.
func (f *acceptFailures) next() time.Duration {
	f.since++
	f.pause = min(max(2*f.pause, shortestAcceptPause), longestAcceptPause)
	return f.pause
}

// worthALine says whether a line is due, and how many failures it tells of.
func (f *acceptFailures) worthALine(now time.Time) (failures int, due bool) {
	if !f.logged.IsZero() && now.Sub(f.logged) < acceptLogPause {
		return 0, false
	}
	failures, f.since, f.logged = f.since, 0, now
	return failures, true
}
