package events

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Kind is what has happened to a client: the last level of the topic.
type Kind string

// The kinds.
const (
	Connected    Kind = "connected"
	Disconnected Kind = "disconnected"
	Refused      Kind = "refused"
	TakenOver    Kind = "takenover" // besides Disconnected
)

// Prefix begins the topics of all events.
const Prefix = "$SYS/brokers/holdfast/clients/"

// Bounds.
const (
	maxWaiting = 1024 // events that wait to be published, of some 2 KiB at most
	maxText    = 256  // bytes of a text of a client's in an event; a client ID may be longer in the topic
	maxSpace   = 4096 // bytes of the space for a topic that is kept
)

// Options of New. All are needed.
type Options struct {
	PerSecond int                         // events that are published in a second at most, above 0
	Wanted    func(topic []byte) bool     // whether a subscription matches; it must not keep the topic
	Publish   func(topic, payload []byte) // called on the goroutine of Serve
}

// Publisher publishes events. Its methods are safe for concurrent use. A nil Publisher
// publishes none.
type Publisher struct {
	o       Options
	waiting chan event
	spaces  sync.Pool    // of *[]byte: topics that are being looked at
	dropped atomic.Int64 // in all
	sent    atomic.Int64
}

type event struct {
	topic  []byte
	fields fields
}

// New makes a Publisher, whose events wait for Serve.
func New(o Options) *Publisher { return &Publisher{o: o, waiting: make(chan event, maxWaiting)} }

// Sent is how many events were published.
func (p *Publisher) Sent() int64 {
	if p == nil {
		return 0
	}
	return p.sent.Load()
}

// Dropped is how many events were not published because there were too many.
func (p *Publisher) Dropped() int64 {
	if p == nil {
		return 0
	}
	return p.dropped.Load()
}

// Client is what the broker knows of a client.
type Client struct {
	ID         string
	Username   []byte           // as the client claims, where it is not asked for a proof; Identity has the proven one
	Identity   *access.Identity // nil: the server does not ask clients who they are
	Remote     net.Addr
	Protocol   mqtt.Version
	KeepAlive  uint16 // seconds
	CleanStart bool
	Since      int64 // when it connected, ms since the Unix epoch; 0: it has not
}

// fields are the JSON of an event. Times are in ms since the Unix epoch.
type fields struct {
	ClientID       string `json:"clientid"`
	Username       string `json:"username,omitempty"`  // proven, or claimed where clients are not asked for a proof
	Principal      string `json:"principal,omitempty"` // empty: the client has not proven who it is
	Address        string `json:"ipaddress"`
	Port           int    `json:"port,omitempty"` // the client's
	ProtocolName   string `json:"proto_name"`
	Protocol       int    `json:"proto_ver"`
	KeepAlive      *int   `json:"keepalive,omitempty"` // seconds; 0: none
	CleanStart     *bool  `json:"clean_start,omitempty"`
	SessionPresent *bool  `json:"session_present,omitempty"`
	Expiry         *int64 `json:"expiry_interval,omitempty"` // seconds
	ConnectedAt    int64  `json:"connected_at,omitempty"`
	DisconnectedAt int64  `json:"disconnected_at,omitempty"`
	By             string `json:"by,omitempty"` // client, server or network
	Reason         string `json:"reason,omitempty"`
	ReasonCode     *int   `json:"reason_code,omitempty"`
	ReasonString   string `json:"reason_string,omitempty"`
	At             int64  `json:"ts"`
	Dropped        int64  `json:"dropped,omitempty"` // events that were dropped since the start of the server
}

// Connected says that a client has connected. expiry is its session's, in seconds.
func (p *Publisher) Connected(c *Client, present bool, expiry uint32) {
	if !p.wanted(Connected, c.ID) {
		return
	}
	f := c.fields()
	f.SessionPresent, f.Expiry, f.ReasonCode = ref(present), ref(int64(expiry)), ref(0)
	p.put(Connected, c, f)
}

// Refused says that a client was refused.
func (p *Publisher) Refused(c *Client, code mqtt.ReasonCode, reason string) {
	if !p.wanted(Refused, c.ID) {
		return
	}
	f := c.fields()
	f.Reason, f.ReasonCode, f.ReasonString = word(code), ref(int(code)), cut(reason)
	p.put(Refused, c, f)
}

// Disconnected says that the connection of a client has ended: by the client, the server or the
// network, the code of the DISCONNECT and its reason.
func (p *Publisher) Disconnected(c *Client, by string, code mqtt.ReasonCode, reason string) {
	p.disconnected(Disconnected, c, by, code, reason)
	if code == mqtt.SessionTakenOver {
		p.disconnected(TakenOver, c, by, code, reason)
	}
}

func (p *Publisher) disconnected(kind Kind, c *Client, by string, code mqtt.ReasonCode, reason string) {
	if !p.wanted(kind, c.ID) {
		return
	}
	f := c.fields()
	f.KeepAlive, f.CleanStart = nil, nil
	f.By, f.ReasonString, f.DisconnectedAt = by, cut(reason), f.At
	if by == "network" { // there was no DISCONNECT
		f.Reason = "tcp_closed"
	} else {
		f.Reason, f.ReasonCode = word(code), ref(int(code))
	}
	p.put(kind, c, f)
}

// wanted says whether a client has subscribed to the event.
func (p *Publisher) wanted(kind Kind, id string) bool {
	if p == nil {
		return false
	}
	space, _ := p.spaces.Get().(*[]byte)
	if space == nil {
		space = new([]byte)
	}
	*space = appendTopic((*space)[:0], kind, id)
	wanted := p.o.Wanted(*space)
	if cap(*space) <= maxSpace {
		p.spaces.Put(space)
	}
	return wanted
}

func (p *Publisher) put(kind Kind, c *Client, f fields) {
	select {
	case p.waiting <- event{topic: appendTopic(nil, kind, c.ID), fields: f}:
	default:
		p.dropped.Add(1)
	}
}

// Serve publishes events until stop is closed.
func (p *Publisher) Serve(stop <-chan struct{}) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	p.serve(second.C, stop)
}

func (p *Publisher) serve(second <-chan time.Time, stop <-chan struct{}) {
	left := p.o.PerSecond
	for {
		select {
		case e := <-p.waiting:
			if left == 0 {
				p.dropped.Add(1)
				continue
			}
			left--
			e.fields.Dropped = p.dropped.Load()
			payload, err := json.Marshal(&e.fields)
			if err != nil { // no field can be such
				continue
			}
			p.o.Publish(e.topic, payload)
			p.sent.Add(1)
		case <-second:
			left = p.o.PerSecond
		case <-stop:
			return
		}
	}
}

// ref gives a copy of a value that is on the heap, unlike the parameter of a caller whose
// event no client wants.
func ref[T any](v T) *T { return &v }

// fields are what all events of a client have.
func (c *Client) fields() fields {
	f := fields{
		ClientID: cut(c.ID), Username: cut(string(c.Username)), ProtocolName: "MQTT", Protocol: int(c.Protocol),
		KeepAlive: ref(int(c.KeepAlive)), CleanStart: ref(c.CleanStart), ConnectedAt: c.Since, At: time.Now().UnixMilli(),
	}
	if c.Protocol == mqtt.V31 {
		f.ProtocolName = "MQIsdp"
	}
	if id := c.Identity; id != nil {
		f.Username, f.Principal = cut(id.Username), cut(id.Owner)
	}
	if c.Remote != nil {
		host, port, err := net.SplitHostPort(c.Remote.String())
		if err != nil {
			host = c.Remote.String()
		}
		f.Address = host
		f.Port, _ = strconv.Atoi(port)
	}
	return f
}

// cut bounds a text of a client's.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	end := maxText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// word is the reason code as EMQX calls it, where it has a word of its own.
func word(code mqtt.ReasonCode) string {
	switch code {
	case mqtt.NormalDisconnection:
		return "normal"
	case mqtt.SessionTakenOver:
		return "takenover"
	case mqtt.AdministrativeAction:
		return "kicked"
	}
	return strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(code.String()), " ", "_"), "-", "_")
}

// appendTopic appends the topic of an event. Of the client ID, characters that would make more
// than one level of it, or no topic name, are percent-encoded, and so is %.
func appendTopic(dst []byte, kind Kind, id string) []byte {
	dst = append(dst, Prefix...)
	for i := 0; i < len(id); i++ {
		switch c := id[i]; c {
		case '/', '+', '#', '%', 0:
			const hex = "0123456789ABCDEF"
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	dst = append(dst, '/')
	return append(dst, kind...)
}
