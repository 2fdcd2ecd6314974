package trace

import (
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// What of a packet stands in a line.
const (
	maxText    = 200 // bytes of a string
	maxFilters = 8   // topic filters, reason codes, names of user properties
	maxBinary  = 16  // bytes of correlation data
	maxLine    = 4 << 10
)

const timeForm = "2006-01-02T15:04:05.000000Z"

func appendTime(line []byte, now time.Time) []byte {
	return append(now.UTC().AppendFormat(line, timeForm), ' ')
}

// appendText appends a string as one word, quoted if it would not be one.
func appendText[T wire.Text](line []byte, text T) []byte {
	s, cut := string(text), false
	if len(s) > maxText {
		s, cut = s[:maxText], true
	}
	if plain(s) {
		line = append(line, s...)
	} else {
		line = strconv.AppendQuote(line, s)
	}
	if cut {
		line = append(line, "…"...)
	}
	return line
}

func plain(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return false
		}
	}
	return s != ""
}

func appendNumber(line []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(append(append(line, ' '), name...), '='), n, 10)
}

func appendCode(line []byte, code byte) []byte {
	line = append(line, " 0x"...)
	if code < 16 {
		line = append(line, '0')
	}
	line = strconv.AppendUint(line, uint64(code), 16)
	return append(append(append(line, " ("...), mqtt.ReasonCode(code).String()...), ')')
}

// appendCommand appends the line of a command.
func appendCommand(line []byte, now time.Time, c *Command, payload int) []byte {
	line = appendText(appendTime(line, now), c.Client)
	line = append(append(append(line, ' '), c.Verb...), ' ')
	line = append(appendText(line, c.Key), ' ')
	line = append(line, c.Outcome...)
	if c.Fault != "" {
		line = append(append(append(line, " ("...), c.Fault...), ')')
	}
	if len(c.Version) > 0 {
		line = append(append(line, " version="...), c.Version...)
	}
	if c.Value != nil {
		line = appendNumber(line, "value", int64(len(c.Value)))
		line = appendPayload(line, c.Value, nil, payload)
	}
	return line
}

// appendPayload appends the first bytes of a payload that stands in two places.
func appendPayload(line, p, elsewhere []byte, most int) []byte {
	if most == 0 || len(p)+len(elsewhere) == 0 {
		return line
	}
	first := append([]byte(nil), p[:min(len(p), most)]...)
	first = append(first, elsewhere[:min(len(elsewhere), most-len(first))]...)
	return strconv.AppendQuote(append(line, ' '), string(first))
}

// connectingClient is the client ID that a CONNECT has; empty: the packet is none.
func connectingClient(packet []byte) string {
	r, header, _ := open(packet)
	if mqtt.TypeOf(header) != mqtt.CONNECT {
		return ""
	}
	r.binary()
	version := mqtt.Version(r.byte() &^ 0x80)
	r.take(3)
	if version == mqtt.V5 {
		r.take(r.varint())
	}
	return string(r.binary())
}

// open gives what follows the fixed header of a packet, as far as it is there, and the bytes
// of the whole packet.
func open(packet []byte) (r reader, header byte, size int) {
	if len(packet) == 0 {
		return reader{short: true}, 0, 0
	}
	n, length := wire.Varint(packet[1:])
	if length <= 0 {
		return reader{short: true}, packet[0], len(packet)
	}
	return reader{rest: packet[1+length:]}, packet[0], 1 + length + int(n)
}

// reader takes values from the front of a packet. Behind the end of what there is, all are
// zero, and short is set: a trace shows a malformed packet as far as it can.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.rest) {
		r.rest, r.short = nil, true
		return nil
	}
	p := r.rest[:n]
	r.rest = r.rest[n:]
	return p
}

func (r *reader) byte() byte {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) uint16() int {
	if p := r.take(2); p != nil {
		return int(p[0])<<8 | int(p[1])
	}
	return 0
}

func (r *reader) varint() int {
	n, size := wire.Varint(r.rest)
	if size <= 0 {
		r.rest, r.short = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return int(n)
}

func (r *reader) binary() []byte { return r.take(r.uint16()) }

// appendPacket appends the line of a packet.
func appendPacket(line []byte, now time.Time, client string, p *Packet, payload int) []byte {
	direction := " in  "
	if p.Out {
		direction = " out "
	}
	line = appendText(appendTime(line, now), client)
	r, header, size := open(p.Bytes)
	typ := mqtt.TypeOf(header)
	line = append(append(line, direction...), typ.String()...)
	l := lineOf{line: line, reader: r, version: p.Version}
	switch typ {
	case mqtt.CONNECT:
		l.connect()
	case mqtt.CONNACK:
		if l.byte()&1 != 0 {
			l.line = append(l.line, " session-present"...)
		}
		l.codeAndProperties()
	case mqtt.PUBLISH:
		l.publish(header, size, p, payload)
	case mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP:
		l.identifier()
		l.codeAndProperties()
	case mqtt.SUBSCRIBE, mqtt.UNSUBSCRIBE:
		l.identifier()
		l.properties()
		l.filters(typ == mqtt.SUBSCRIBE)
	case mqtt.SUBACK, mqtt.UNSUBACK:
		l.identifier()
		l.properties()
		l.codes()
	case mqtt.DISCONNECT, mqtt.AUTH:
		l.codeAndProperties()
	}
	if l.short {
		l.line = append(l.line, " malformed"...)
	}
	return appendNumber(l.line, "bytes", int64(size))
}

// lineOf is the line of a packet that is being read.
type lineOf struct {
	reader
	line    []byte
	version mqtt.Version
}

func (l *lineOf) number(name string, n int) { l.line = appendNumber(l.line, name, int64(n)) }

func (l *lineOf) word(name string, text []byte) {
	l.line = appendText(append(append(append(l.line, ' '), name...), '='), text)
}

func (l *lineOf) flag(name string, set bool) {
	if set {
		l.line = append(append(l.line, ' '), name...)
	}
}

func (l *lineOf) identifier() { l.number("id", l.uint16()) }

// codeAndProperties reads a reason code, or the return code of MQTT 3.1.1, and properties: an
// acknowledgement may end before either.
func (l *lineOf) codeAndProperties() {
	if len(l.rest) == 0 {
		return
	}
	code := l.byte()
	if l.version < mqtt.V5 {
		l.number("code", int(code))
		return
	}
	l.line = appendCode(l.line, code)
	if len(l.rest) > 0 {
		l.properties()
	}
}

func (l *lineOf) codes() {
	for i := 0; len(l.rest) > 0; i++ {
		if i == maxFilters {
			l.number("more", len(l.rest))
			return
		}
		code := l.byte()
		l.line = appendCode(l.line, code)
	}
}

func (l *lineOf) connect() {
	l.binary()
	l.version = mqtt.Version(l.byte() &^ 0x80)
	l.line = append(append(l.line, " v"...), l.version.String()...)
	flags := l.byte()
	l.flag("clean-start", flags&0x02 != 0)
	l.number("keep-alive", l.uint16())
	l.properties()
	l.binary() // the client ID, with which the line begins
	if flags&0x04 != 0 {
		l.line = append(l.line, " will:"...)
		l.properties()
		l.word("topic", l.binary())
		l.number("qos", int(flags>>3&3))
		l.flag("retain", flags&0x20 != 0)
		l.number("payload", len(l.binary()))
		l.line = append(l.line, ';')
	}
	l.flag("user-name", flags&0x80 != 0)
	l.flag("password", flags&0x40 != 0)
	l.rest = nil
}

// publish shows a PUBLISH of size bytes.
func (l *lineOf) publish(header byte, size int, p *Packet, payload int) {
	topic := l.binary()
	qos := int(header >> 1 & 3)
	if qos > 0 {
		l.identifier()
	}
	l.number("qos", qos)
	l.flag("dup", header&0x08 != 0)
	l.flag("retain", header&0x01 != 0)
	if len(topic) > 0 {
		l.word("topic", topic)
	}
	alias := l.properties()
	if len(topic) == 0 && alias != 0 && p.Topic != nil {
		if name := p.Topic(alias); name != "" {
			l.word("topic", []byte(name))
		}
	}
	if l.short {
		return
	}
	l.number("payload", size-(len(p.Bytes)-len(l.rest)))
	l.line = appendPayload(l.line, l.rest, p.Elsewhere, payload)
	l.rest = nil
}

func (l *lineOf) filters(options bool) {
	for i := 0; len(l.rest) > 0; i++ {
		filter, option := l.binary(), byte(0)
		if options {
			option = l.byte()
		}
		if i == maxFilters {
			l.line = append(l.line, " …"...)
			l.rest = nil
			return
		}
		l.word("filter", filter)
		if options {
			l.number("qos", int(option&3))
			l.flag("no-local", option&0x04 != 0)
			l.flag("retain-as-published", option&0x08 != 0)
			if handling := int(option >> 4 & 3); handling != 0 {
				l.number("retain-handling", handling)
			}
		}
	}
}

// property says how a property is shown.
type property struct {
	name string
	form byte // 1, 2, 4: a number of as many bytes; v: of variable length; s: a string; b: binary; u: a user property; x: never shown
}

var properties = [64]property{
	mqtt.PropPayloadFormat: {"payload-format", 1}, mqtt.PropMessageExpiry: {"expiry", 4}, mqtt.PropContentType: {"content-type", 's'},
	mqtt.PropResponseTopic: {"response-topic", 's'}, mqtt.PropCorrelationData: {"correlation", 'b'}, mqtt.PropSubscriptionID: {"subscription", 'v'},
	mqtt.PropSessionExpiry: {"session-expiry", 4}, mqtt.PropAssignedClientID: {"assigned-client", 's'}, mqtt.PropServerKeepAlive: {"server-keep-alive", 2},
	mqtt.PropAuthMethod: {"auth-method", 's'}, mqtt.PropAuthData: {"auth-data", 'x'}, mqtt.PropRequestProblemInfo: {"request-problem-info", 1},
	mqtt.PropWillDelayInterval: {"delay", 4}, mqtt.PropRequestResponseInfo: {"request-response-info", 1}, mqtt.PropResponseInformation: {"response-information", 's'},
	mqtt.PropServerReference: {"server-reference", 's'}, mqtt.PropReasonString: {"reason", 's'}, mqtt.PropReceiveMaximum: {"receive-maximum", 2},
	mqtt.PropTopicAliasMaximum: {"topic-alias-maximum", 2}, mqtt.PropTopicAlias: {"alias", 2}, mqtt.PropMaximumQoS: {"maximum-qos", 1},
	mqtt.PropRetainAvailable: {"retain-available", 1}, mqtt.PropUser: {"user", 'u'}, mqtt.PropMaximumPacketSize: {"maximum-packet-size", 4},
	mqtt.PropWildcardSubscriptionAvailable: {"wildcards-available", 1}, mqtt.PropSubscriptionIDsAvailable: {"subscription-ids-available", 1},
	mqtt.PropSharedSubscriptionAvailable: {"shared-available", 1},
}

// properties shows the properties of a packet of MQTT 5, and returns its Topic Alias, 0: none.
func (l *lineOf) properties() (alias uint16) {
	if l.version < mqtt.V5 {
		return 0
	}
	inside := reader{rest: l.take(l.varint())}
	users := 0
	for len(inside.rest) > 0 && !inside.short && len(l.line) < maxLine {
		id := mqtt.PropertyID(inside.byte())
		if id >= 64 || properties[id].name == "" {
			inside.short = true
			break
		}
		p := properties[id]
		switch p.form {
		case 1, 2, 4:
			n := int64(0)
			for _, b := range inside.take(int(p.form)) {
				n = n<<8 | int64(b)
			}
			l.line = appendNumber(l.line, p.name, n)
			if id == mqtt.PropTopicAlias {
				alias = uint16(n)
			}
		case 'v':
			l.number(p.name, inside.varint())
		case 's':
			l.word(p.name, inside.binary())
		case 'b':
			l.binaryData(p.name, inside.binary())
		case 'x':
			l.number(p.name+"-bytes", len(inside.binary()))
		case 'u':
			name := inside.binary()
			inside.binary()
			if users++; users <= maxFilters {
				l.word(p.name, name)
			}
		}
	}
	if users > maxFilters {
		l.number("more-user", users-maxFilters)
	}
	l.short = l.short || inside.short
	return alias
}

func (l *lineOf) binaryData(name string, p []byte) {
	l.line = append(append(append(l.line, ' '), name...), '=')
	for _, b := range p[:min(len(p), maxBinary)] {
		const digits = "0123456789abcdef"
		l.line = append(l.line, digits[b>>4], digits[b&15])
	}
	if len(p) > maxBinary {
		l.line = append(l.line, "…"...)
	}
}
