package store

import (
	"bytes"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// storeLink is a connection that asks the store. Its session ends with it, so
// no answer of an earlier life can reach a later one. In a cluster answers to what was asked over an
// earlier connection may come in the same life, and are dropped.
type storeLink struct {
	*lives.Link
	client  string
	number  string // of the connection, with which its correlation data begin
	clock   *hlc.Clock
	lastID  uint16
	waiting map[string]*pending // by correlation data
	byID    map[uint16]*pending
	event   func(statestore.Event, hlc.Timestamp) // notifications, if wanted
}

// pending is a request under way.
type pending struct {
	history.Request
	history.Answer
	puback bool // the PUBACK has come
	watch  bool // a KEYNOTIFY, of which only the answer's being good counts
}

// connections is how many storeLinks have been made.
var connections atomic.Uint64

func dialStore(l *lives.Life, client string, clock *hlc.Clock) (*storeLink, error) {
	k, _, err := lives.Dial(l, mqtt.Connect{CleanStart: true, ClientID: []byte(client)})
	if err != nil {
		return nil, err
	}
	number := strconv.FormatUint(connections.Add(1), 16) + "/"
	s := &storeLink{Link: k, client: client, number: number, clock: clock, waiting: map[string]*pending{}, byID: map[uint16]*pending{}}
	if _, err := k.Subscribe(s.replyTopic(), 1, func(lives.Packet) error { return nil }); err != nil {
		k.Close()
		return nil, err
	}
	return s, nil
}

func (s *storeLink) replyTopic() string { return "crashtest/replies/" + s.client }

// send queues a request. It counts as sent from here, which is earlier than it is.
func (s *storeLink) send(r history.Request) *pending {
	p := &pending{Request: r}
	p.Client, p.Call = s.client, lives.Now()
	s.publish(p, p.Payload())
	return p
}

// watch queues a KEYNOTIFY.
func (s *storeLink) watch(key string) {
	p := &pending{Request: history.Request{Key: key, Client: s.client, Call: lives.Now()}, watch: true}
	s.publish(p, protocol.AppendCommand(nil, []byte("KEYNOTIFY"), []byte(key)))
}

func (s *storeLink) publish(p *pending, payload []byte) {
	s.lastID++
	if s.lastID == 0 {
		s.lastID = 1
	}
	correlation := s.number + strconv.FormatUint(uint64(s.lastID), 16)
	props := mqtt.PublishProps{
		HasResponseTopic: true, ResponseTopic: []byte(s.replyTopic()),
		HasCorrelationData: true, CorrelationData: []byte(correlation),
		Raw: mqtt.AppendUserProp(nil, protocol.TimeProperty, s.clock.Now().String()),
	}
	if !p.Token.IsZero() {
		props.Raw = mqtt.AppendUserProp(props.Raw, protocol.TokenProperty, p.Token.String())
	}
	s.Out = mqtt.AppendPublish(s.Out, mqtt.V5, &mqtt.Publish{
		QoS: 1, PacketID: s.lastID, Topic: []byte(protocol.InvokeTopic), Payload: payload, Props: props,
	})
	s.waiting[correlation], s.byID[s.lastID] = p, p
}

// receive reads and handles one packet. It gives the request that it answers, if any.
func (s *storeLink) receive() (*pending, error) {
	p, err := s.Read()
	if err != nil {
		return nil, err
	}
	switch p.Type {
	case mqtt.PUBACK:
		return nil, s.puback(p.Body)
	case mqtt.PUBLISH:
		return s.message(p)
	}
	return nil, fmt.Errorf("%w: unexpected %v", lives.ErrBroken, p.Type)
}

func (s *storeLink) puback(body []byte) error {
	var ack mqtt.Ack
	if err := ack.Decode(mqtt.V5, mqtt.PUBACK, body); err != nil {
		return fmt.Errorf("%w: %w", lives.ErrBroken, err)
	}
	p := s.byID[ack.PacketID]
	if p == nil {
		return fmt.Errorf("%w: PUBACK for packet identifier %d, which is not under way", lives.ErrBroken, ack.PacketID)
	}
	if ack.Code != mqtt.Success {
		return fmt.Errorf("%w: %v was refused: %v %s", lives.ErrBroken, p.Request, ack.Code, ack.ReasonString)
	}
	p.puback = true
	delete(s.byID, ack.PacketID)
	return nil
}

func (s *storeLink) message(in lives.Packet) (*pending, error) {
	var m mqtt.Publish
	if err := m.DecodeDelivery(mqtt.V5, in.Header, in.Body); err != nil {
		return nil, fmt.Errorf("%w: %w", lives.ErrBroken, err)
	}
	if m.QoS > 0 {
		s.Ack(mqtt.PUBACK, m.PacketID, mqtt.Success)
	}
	var version hlc.Timestamp
	if text, ok := mqtt.FindUserProp(m.Props.Raw, protocol.TimeProperty); ok {
		v, err := hlc.ParseBytes(text)
		if err != nil {
			return nil, fmt.Errorf("%w: version %q: %w", lives.ErrBroken, text, err)
		}
		version = v.Clone()
	}
	if !m.Props.HasCorrelationData {
		return nil, s.notified(&m, version)
	}
	p := s.waiting[string(m.Props.CorrelationData)]
	if p == nil && !bytes.HasPrefix(m.Props.CorrelationData, []byte(s.number)) && s.InCluster() {
		return nil, nil
	}
	if p == nil {
		return nil, fmt.Errorf("%w: an answer to nothing asked on this connection: %q", lives.ErrBroken, m.Payload)
	}
	delete(s.waiting, string(m.Props.CorrelationData))
	return p, p.take(m.Payload, version)
}

func (s *storeLink) notified(m *mqtt.Publish, version hlc.Timestamp) error {
	_, key, ok := protocol.ParseNotifyTopic(string(m.Topic))
	if !ok || s.event == nil {
		return fmt.Errorf("%w: unexpected message on %q", lives.ErrBroken, m.Topic)
	}
	e, err := protocol.ParseEvent(m.Payload)
	if err != nil {
		return fmt.Errorf("%w: notification: %w", lives.ErrBroken, err)
	}
	e.Key = key
	s.event(e, version)
	return nil
}

// take reads the reply.
func (p *pending) take(payload []byte, version hlc.Timestamp) error {
	p.Fate, p.Ret, p.Version = history.Answered, lives.Now(), version
	r, err := protocol.ParseReply(payload)
	if err != nil {
		return fmt.Errorf("%w: reply to %v: %w", lives.ErrBroken, p.Request, err)
	}
	switch r.Kind {
	case protocol.Simple:
		p.Kind = statestore.OK
	case protocol.Nil:
		p.Kind = statestore.Nil
	case protocol.Blob:
		p.Kind, p.Answer.Value = statestore.Value, string(r.Blob)
	case protocol.Int:
		p.Kind, p.Count = statestore.Count, r.Int
		if r.NotApplied() {
			p.Kind, p.Count = statestore.NotApplied, 0
		}
	case protocol.Array:
		if p.Txn != nil {
			if !p.ReadTransacted(&r) {
				return fmt.Errorf("%w: reply to %v: %q", lives.ErrBroken, p.Request, payload)
			}
			break
		}
		if p.Verb != statestore.Load || len(r.Array) != 3 {
			return fmt.Errorf("%w: reply to %v: %q", lives.ErrBroken, p.Request, payload)
		}
		p.Kind, p.Count = statestore.Loaded, r.Array[0].Int
		p.Answer.Value, p.Context = string(r.Array[1].Blob), string(r.Array[2].Blob)
	case protocol.Error:
		op, text := protocol.SplitOperation(string(r.Text))
		fault, ok := statestore.FaultOf(text)
		if p.Op = op; !ok {
			return fmt.Errorf("%w: %v got the unknown error %q", lives.ErrBroken, p.Request, r.Text)
		}
		p.Kind, p.Fault = statestore.Error, fault
	default:
		return fmt.Errorf("%w: reply to %v: %q", lives.ErrBroken, p.Request, payload)
	}
	if p.watch && p.Kind != statestore.OK {
		return fmt.Errorf("%w: KEYNOTIFY %s got %q", lives.ErrBroken, p.Key, payload)
	}
	return nil
}
