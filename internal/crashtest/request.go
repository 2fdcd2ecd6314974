package crashtest

import (
	"fmt"
	"strconv"

	"holdfast/hlc"
	"holdfast/internal/mqtt"
	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

// request is one command to the store, and when it was sent.
type request struct {
	verb      statestore.Verb
	condition statestore.Condition
	compare   bool // NEX has an operand
	key       string
	value     string
	operand   string // of NEX
	px        int64  // milliseconds; 0: none
	ver       statestore.VersionCheck
	token     hlc.Timestamp // zero: none

	client string
	order  uint64 // among the client's requests
	call   int64
}

// fate says how much is known of what became of a request.
type fate uint8

const (
	lost     fate = iota // the broker died first: it was carried out, or never will be
	executed             // it was acknowledged, so it was carried out; the reply is lost
	answered
)

// answer is what came back, and when; for a request whose reply is lost, when
// the broker had died.
type answer struct {
	fate    fate
	kind    statestore.ReplyKind
	fault   statestore.Fault
	count   int64
	value   string
	context string // of LOAD
	version hlc.Timestamp
	ret     int64
}

func (r request) String() string {
	words := fmt.Sprintf("%s#%d %v %s", r.client, r.order, r.verb, r.key)
	if r.verb == statestore.Set || r.verb == statestore.VDel {
		words += " " + r.value
	}
	switch {
	case r.condition == statestore.IfAbsent:
		words += " NX"
	case r.condition == statestore.IfAbsentOrEqual && r.compare:
		words += " NEX " + r.operand
	case r.condition == statestore.IfAbsentOrEqual:
		words += " NEX"
	}
	if r.px > 0 {
		words += fmt.Sprintf(" PX %d", r.px)
	}
	if r.ver.Given {
		words += " VER " + r.ver.At.String()
	}
	if !r.token.IsZero() {
		words += " ft=" + r.token.String()
	}
	return fmt.Sprintf("[%.3f ms] %s", float64(r.call)/1e6, words)
}

func (a answer) String() string {
	at := fmt.Sprintf("[%.3f ms] ", float64(a.ret)/1e6)
	switch {
	case a.fate == lost:
		return at + "unknown"
	case a.fate == executed:
		return at + "acknowledged, no reply"
	case a.kind == statestore.Error:
		return at + "-ERR " + a.fault.Error()
	case a.kind == statestore.Value:
		return at + fmt.Sprintf("%q ts=%v", a.value, a.version)
	}
	return at + fmt.Sprintf("%s count=%d ts=%v", replyNames[a.kind], a.count, a.version)
}

var replyNames = map[statestore.ReplyKind]string{
	statestore.OK: "OK", statestore.NotApplied: "not applied", statestore.Nil: "nil", statestore.Count: "count",
	statestore.Loaded: "loaded",
}

// payload is the request on the wire.
func (r *request) payload() []byte {
	args := [][]byte{[]byte(r.verb.String()), []byte(r.key)}
	if r.verb == statestore.Set || r.verb == statestore.VDel {
		args = append(args, []byte(r.value))
	}
	switch {
	case r.condition == statestore.IfAbsent:
		args = append(args, []byte("NX"))
	case r.condition == statestore.IfAbsentOrEqual:
		args = append(args, []byte("NEX"))
		if r.compare {
			args = append(args, []byte(r.operand))
		}
	}
	if r.px > 0 {
		args = append(args, []byte("PX"), strconv.AppendInt(nil, r.px, 10))
	}
	if r.ver.Given {
		args = append(args, []byte("VER"), r.ver.At.Append(nil))
	}
	return protocol.AppendCommand(nil, args...)
}

// storeLink is a connection that asks the store. Its session ends with it, so
// no answer of an earlier life can reach a later one.
type storeLink struct {
	*link
	client  string
	clock   *hlc.Clock
	lastID  uint16
	waiting map[string]*pending // by correlation data
	byID    map[uint16]*pending
	event   func(statestore.Event, hlc.Timestamp) // notifications, if wanted
}

// pending is a request under way.
type pending struct {
	request
	answer
	puback bool // the PUBACK has come
	watch  bool // a KEYNOTIFY, of which only the answer's being good counts
}

func dialStore(l *life, client string, clock *hlc.Clock) (*storeLink, error) {
	k, _, err := dial(l.addr, mqtt.Connect{CleanStart: true, ClientID: []byte(client)})
	if err != nil {
		return nil, err
	}
	s := &storeLink{link: k, client: client, clock: clock, waiting: map[string]*pending{}, byID: map[uint16]*pending{}}
	if _, err := k.subscribe(s.replyTopic(), 1, func(packet) error { return nil }); err != nil {
		k.close()
		return nil, err
	}
	return s, nil
}

func (s *storeLink) replyTopic() string { return "crashtest/replies/" + s.client }

// send queues a request. It counts as sent from here, which is earlier than it is.
func (s *storeLink) send(r request) *pending {
	p := &pending{request: r}
	p.client, p.call = s.client, now()
	s.publish(p, p.payload())
	return p
}

// watch queues a KEYNOTIFY.
func (s *storeLink) watch(key string) {
	p := &pending{request: request{key: key, client: s.client, call: now()}, watch: true}
	s.publish(p, protocol.AppendCommand(nil, []byte("KEYNOTIFY"), []byte(key)))
}

func (s *storeLink) publish(p *pending, payload []byte) {
	s.lastID++
	if s.lastID == 0 {
		s.lastID = 1
	}
	correlation := strconv.FormatUint(uint64(s.lastID), 16)
	props := mqtt.PublishProps{
		HasResponseTopic: true, ResponseTopic: []byte(s.replyTopic()),
		HasCorrelationData: true, CorrelationData: []byte(correlation),
		Raw: mqtt.AppendUserProp(nil, protocol.TimeProperty, s.clock.Now().String()),
	}
	if !p.token.IsZero() {
		props.Raw = mqtt.AppendUserProp(props.Raw, protocol.TokenProperty, p.token.String())
	}
	s.out = mqtt.AppendPublish(s.out, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: s.lastID, Topic: []byte(protocol.InvokeTopic), Payload: payload, Props: props,
	})
	s.waiting[correlation], s.byID[s.lastID] = p, p
}

// receive reads and handles one packet. It gives the request that it answers, if any.
func (s *storeLink) receive() (*pending, error) {
	p, err := s.read()
	if err != nil {
		return nil, err
	}
	switch p.Type {
	case mqtt.PUBACK:
		return nil, s.puback(p.Body)
	case mqtt.PUBLISH:
		return s.message(p)
	}
	return nil, fmt.Errorf("%w: unexpected %v", errBroken, p.Type)
}

func (s *storeLink) puback(body []byte) error {
	var ack mqtt.Ack
	if err := ack.Decode(mqtt.V5, mqtt.PUBACK, body); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	p := s.byID[ack.PacketID]
	if p == nil {
		return fmt.Errorf("%w: PUBACK for packet identifier %d, which is not under way", errBroken, ack.PacketID)
	}
	if ack.Code != mqtt.Success {
		return fmt.Errorf("%w: %v was refused: %v %s", errBroken, p.request, ack.Code, ack.ReasonString)
	}
	p.puback = true
	delete(s.byID, ack.PacketID)
	return nil
}

func (s *storeLink) message(in packet) (*pending, error) {
	var m mqtt.Publish
	if err := m.DecodeDelivery(mqtt.V5, in.Header, in.Body); err != nil {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	if m.QoS > 0 {
		s.ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
	}
	var version hlc.Timestamp
	if text, ok := mqtt.FindUserProp(m.Props.Raw, protocol.TimeProperty); ok {
		v, err := hlc.ParseBytes(text)
		if err != nil {
			return nil, fmt.Errorf("%w: version %q: %w", errBroken, text, err)
		}
		version = v.Clone()
	}
	if !m.Props.HasCorrelationData {
		return nil, s.notified(&m, version)
	}
	p := s.waiting[string(m.Props.CorrelationData)]
	if p == nil {
		return nil, fmt.Errorf("%w: an answer to nothing asked on this connection: %q", errBroken, m.Payload)
	}
	delete(s.waiting, string(m.Props.CorrelationData))
	return p, p.take(m.Payload, version)
}

func (s *storeLink) notified(m *mqtt.Publish, version hlc.Timestamp) error {
	_, key, ok := protocol.ParseNotifyTopic(string(m.Topic))
	if !ok || s.event == nil {
		return fmt.Errorf("%w: unexpected message on %q", errBroken, m.Topic)
	}
	e, err := protocol.ParseEvent(m.Payload)
	if err != nil {
		return fmt.Errorf("%w: notification: %w", errBroken, err)
	}
	e.Key = key
	s.event(e, version)
	return nil
}

// take reads the reply.
func (p *pending) take(payload []byte, version hlc.Timestamp) error {
	p.fate, p.ret, p.version = answered, now(), version
	r, err := protocol.ParseReply(payload)
	if err != nil {
		return fmt.Errorf("%w: reply to %v: %w", errBroken, p.request, err)
	}
	switch r.Kind {
	case protocol.Simple:
		p.kind = statestore.OK
	case protocol.Nil:
		p.kind = statestore.Nil
	case protocol.Blob:
		p.kind, p.answer.value = statestore.Value, string(r.Blob)
	case protocol.Int:
		p.kind, p.count = statestore.Count, r.Int
		if r.NotApplied() {
			p.kind, p.count = statestore.NotApplied, 0
		}
	case protocol.Array:
		if p.verb != statestore.Load || len(r.Array) != 3 {
			return fmt.Errorf("%w: reply to %v: %q", errBroken, p.request, payload)
		}
		p.kind, p.count = statestore.Loaded, r.Array[0].Int
		p.answer.value, p.context = string(r.Array[1].Blob), string(r.Array[2].Blob)
	case protocol.Error:
		fault, ok := r.Fault()
		if !ok {
			return fmt.Errorf("%w: %v got the unknown error %q", errBroken, p.request, r.Text)
		}
		p.kind, p.fault = statestore.Error, fault
	default:
		return fmt.Errorf("%w: reply to %v: %q", errBroken, p.request, payload)
	}
	if p.watch && p.kind != statestore.OK {
		return fmt.Errorf("%w: KEYNOTIFY %s got %q", errBroken, p.key, payload)
	}
	return nil
}

// abandon gives the requests whose reply the broker's death has swallowed.
func (s *storeLink) abandon(diedAt int64) []*pending {
	var open []*pending
	for _, p := range s.waiting {
		if p.watch || p.verb == statestore.Get || p.call > diedAt {
			continue // saw nothing, or came too late to be carried out
		}
		p.fate, p.ret = lost, diedAt
		if p.puback {
			p.fate = executed
		}
		open = append(open, p)
	}
	return open
}
