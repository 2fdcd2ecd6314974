package peer

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/events"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/stats"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/trace"
	"github.com/holdfast-mqtt/holdfast/internal/transport"
	"github.com/holdfast-mqtt/holdfast/internal/transport/sockets"
)

// Peer is the client at the other end of a connection, as the broker writes to it: what
// it has said in CONNECT that it takes, its output, and how the connection ends. What is
// set by CONNECT doesn't change once the connection has a session.
type Peer struct {
	Env       *Env
	Transport *transport.Conn

	Client     string                 // identifier
	Since      int64                  // when CONNECT was accepted, on the wall clock in ms
	MaxPacket  uint32                 // largest packet the client takes; 0: any
	ReceiveMax int32                  // how many deliveries may be inflight
	Reader     sync.WaitGroup         // until the reader is gone and the session detached
	ended      atomic.Pointer[Ending] // nil: not known yet

	aliasOut      map[string]uint16 // topic aliases given to the client; guarded by the output lock, as aliasOutBytes and AliasOutMax
	aliasOutBytes int32             // of the topics in aliasOut

	Connected   atomic.Bool // CONNECT was accepted: session and all that it settled are set
	Replaced    atomic.Bool // the client has another connection now: this one ends with what has come
	Stopping    atomic.Bool // Disconnect was called
	Protocol    mqtt.Version
	ProblemInfo bool   // Reason Strings are wanted on other packets than CONNACK and DISCONNECT
	Requests    bool   // the client has said that it will send requests
	TakesMore   bool   // the client's Receive Maximum is above MaxInflight
	KeepAlive   uint16 // seconds; 0: none
	AliasOutMax uint16
}

// Env is what the peers of a broker share.
type Env struct {
	Memory   *memory.Pool
	Accounts *message.Accounts
	Stats    *stats.Counters
	Log      *slog.Logger
	Tracer   *trace.Tracer     // nil: nothing is ever traced
	Events   *events.Publisher // nil: none are published

	MaxAliasBytes int           // see Limits
	TakeoverWait  time.Duration // see Limits
}

// Deliver appends one PUBLISH to the output, or says false because the client
// doesn't take packets that large [MQTT-3.1.2-24]. m is the message that d.Payload
// belongs to, or nil: a large one is referred to and not copied.
func (p *Peer) Deliver(d *mqtt.Delivery, m *message.Message) bool {
	shared := m != nil && (m.LentValue() != nil || len(d.Payload) >= ShareFrom)
	var payload []byte
	switch {
	case !shared:
	case m.LentValue() != nil:
		d.Rest = len(m.LentValue()) + len(m.Rest())
	default:
		d.Rest, payload, d.Payload = len(d.Payload), d.Payload, nil
	}
	topic := d.Topic
	p.Transport.Lock()
	if p.AliasOutMax > 0 {
		p.alias(d)
	}
	if p.MaxPacket > 0 && mqtt.DeliverySize(p.Protocol, d) > int(p.MaxPacket) {
		p.Transport.Unlock()
		p.Env.Stats.TooLarge.Add(1)
		return false
	}
	if n := len(d.Topic) + len(d.Props) + len(d.Payload); n > sureRoom {
		p.Transport.Grow(n + maxOverhead + 5*len(d.SubscriptionIDs))
	}
	out := p.Transport.Out()
	before := len(out)
	out = mqtt.AppendDelivery(out, p.Protocol, d)
	if traces := p.Env.Tracer.Packets(); traces != nil {
		p.traceDelivery(traces, out[before:], topic, payload, m)
	}
	p.Transport.SetOut(out)
	if shared {
		m.Keep()
		p.Env.Accounts.Charge(m, memory.Output)
		if payload != nil {
			p.Transport.AppendShared(payload, m)
		} else {
			rest := m.Rest() // m may be gone after the next call
			p.Transport.AppendShared(m.LentValue(), m)
			p.Transport.Append(rest)
		}
	}
	p.Transport.Unlock()
	return true
}

// ShareFrom is how many bytes a payload has at least that outputs refer to in place
// of copying it.
const ShareFrom = 16 << 10

// An output has room for 512 bytes without being asked for more.
const (
	maxOverhead = 32 // bytes of a PUBLISH besides topic, properties, subscription identifiers and payload
	sureRoom    = 512 - maxOverhead - 32
)

// alias puts a topic alias in place of the topic, or gives one while there are
// some left; the output lock is held.
func (p *Peer) alias(d *mqtt.Delivery) {
	if a, known := p.aliasOut[string(d.Topic)]; known {
		d.Alias, d.Topic = a, nil
		return
	}
	if len(p.aliasOut) >= int(p.AliasOutMax) || int(p.aliasOutBytes)+len(d.Topic) > p.Env.MaxAliasBytes ||
		!p.Env.Memory.Take(memory.Subscriptions, int64(len(d.Topic))) {
		return
	}
	p.aliasOutBytes += int32(len(d.Topic))
	d.Alias = uint16(len(p.aliasOut) + 1)
	if p.MaxPacket > 0 && mqtt.DeliverySize(p.Protocol, d) > int(p.MaxPacket) {
		d.Alias = 0 // the client would never see it
		p.aliasOutBytes -= int32(len(d.Topic))
		p.Env.Memory.Credit(memory.Subscriptions, int64(len(d.Topic)))
		return
	}
	if p.aliasOut == nil {
		p.aliasOut = make(map[string]uint16)
	}
	p.aliasOut[string(d.Topic)] = d.Alias
}

// Fits says whether a message of a handler's is within the client's Maximum Packet Size.
func (p *Peer) Fits(m *message.Message) bool {
	if p.MaxPacket == 0 {
		return true
	}
	d := mqtt.Delivery{QoS: 1, PacketID: 1, Topic: m.Topic(), Props: m.Props(), Payload: m.Payload(), Rest: len(m.LentValue()) + len(m.Rest()), HasExpiry: m.ExpiresAt != 0}
	return mqtt.DeliverySize(p.Protocol, &d) <= int(p.MaxPacket)
}

// WriteAck appends an acknowledgement that needs no order.
func (p *Peer) WriteAck(typ mqtt.Type, id uint16, code mqtt.ReasonCode, reason string) {
	p.Append(reason, func(dst []byte, reason string) []byte {
		return mqtt.AppendAck(dst, p.Protocol, typ, id, code, reason)
	})
}

// Append appends a packet to the output, without its Reason String if the packet
// would be larger than the client takes [MQTT-3.4.2-2 and its kin].
func (p *Peer) Append(reason string, encode func(dst []byte, reason string) []byte) {
	p.Transport.Lock()
	defer p.Transport.Unlock()
	out := p.Transport.Out()
	before := len(out)
	out = encode(out, reason)
	if reason != "" && p.MaxPacket > 0 && len(out)-before > int(p.MaxPacket) {
		out = encode(out[:before], "")
	}
	if p.MaxPacket > 0 && len(out)-before > int(p.MaxPacket) {
		out = out[:before] // the refusal of a CONNECT whose client takes next to nothing
	}
	if traces := p.Env.Tracer.Packets(); traces != nil && len(out) > before {
		p.traceOut(traces, out[before:])
	}
	p.Transport.SetOut(out)
}

// DropAliases lets go of the topic aliases given to the client, when the reader ends.
func (p *Peer) DropAliases() {
	p.Transport.Lock()
	defer p.Transport.Unlock()
	p.Env.Memory.Credit(memory.Subscriptions, int64(p.aliasOutBytes))
	p.aliasOut, p.aliasOutBytes = nil, 0
	p.AliasOutMax = 0 // what is still delivered goes nowhere
}

// Disconnect tells the client why (MQTT 5), closes the connection and makes its
// reader stop. The first call counts; from any goroutine.
func (p *Peer) Disconnect(code mqtt.ReasonCode, reason string) {
	if p.Stopping.Swap(true) {
		return
	}
	p.NoteEnding(Ending{By: byServer, Code: code, Reason: reason})
	if p.Connected.Load() && p.Protocol == mqtt.V5 {
		p.Append(reason, func(dst []byte, reason string) []byte {
			return mqtt.AppendDisconnect(dst, p.Protocol, &mqtt.Disconnect{Code: code, ReasonString: []byte(reason)})
		})
	}
	p.Shut()
}

// GraceToWrite is how long a connection that is to be closed may take to have
// its last packets written.
const GraceToWrite = 2 * time.Second

// Shut closes the connection once its last packets have been written.
func (p *Peer) Shut() { p.Transport.Shut(GraceToWrite) }

// TakeOver ends the connection because its client has another one, and waits until
// its reader has gone. What the client had sent before that takes effect first, a
// DISCONNECT that withdraws its will most of all [MQTT-3.14.4-3], unless it takes
// longer than Limits.TakeoverWait.
func (p *Peer) TakeOver() {
	p.Replaced.Store(true)
	p.Transport.Interrupt()
	patience := time.AfterFunc(p.Env.TakeoverWait, p.TakenOver)
	defer patience.Stop()
	p.Reader.Wait()
}

func (p *Peer) TakenOver() {
	p.Disconnect(mqtt.SessionTakenOver, "another connection uses this client identifier")
}

// Loopback says whether the client is on this machine.
func (p *Peer) Loopback() bool { return sockets.IsLoopback(p.Transport.RemoteAddr()) }

func (p *Peer) Remote() slog.Value { return slog.StringValue(p.Transport.RemoteAddr().String()) }

// Host is the address that the client comes from, without its port.
func (p *Peer) Host() string {
	addr := p.Transport.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}

// Gone says whether the connection is closing or has failed: nothing more can be told
// to the client on it.
func (p *Peer) Gone() bool { return p.Transport.Gone() }
