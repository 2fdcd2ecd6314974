package statefuzz

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// The bounds that the server is given, and fields are tried at.
const (
	maxPacket    = 32 << 10
	maxClientID  = 64
	maxLevels    = 8
	maxFilters   = 10
	maxAlias     = 4
	maxKey       = 1 << 10
	maxReceive   = 64
	maxExpiry    = 1 // seconds
	maxPattern   = protocol.MaxPattern
	maxMessageID = protocol.MaxMessageID
	maxNodeID    = protocol.MaxNodeID
)

// clients are the names that connections of a sequence take, besides invented ones.
var clients = []string{"a", "b", "c", "d", "e"}

// generator makes packets from a seed. It belongs to one connection.
type generator struct {
	*rand.Rand
	oddity   int  // one field in so many is not as it should be; a wrong one mostly ends the connection
	version  byte // of the connection
	respond  string
	lastSent uint16
}

func newGenerator(seed, stream uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, stream)), version: 5, respond: fmt.Sprintf("answers/%d", stream%4)}
	g.oddity = pick(g, 10_000, 2_000, 300, 30)
	return g
}

// odd says whether the next field is to be wrong.
func (g *generator) odd() bool { return g.oneIn(g.oddity) }

func (g *generator) oneIn(n int) bool { return g.IntN(n) == 0 }

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

// length is that of a field with a bound.
func (g *generator) length(bound int) int {
	switch {
	case g.odd():
		return pick(g, 0, bound+1, maxPacket-200, maxPacket, 65535)
	case g.oneIn(8):
		return pick(g, 1, bound-1, bound)
	}
	return 1 + g.IntN(min(bound, 12))
}

// number is a field of this many bytes with a bound, from 1 on.
func (g *generator) number(bytes int, bound uint64) uint64 {
	if g.odd() {
		return pick(g, 0, bound+1, 1<<(8*bytes-1), 1<<(8*bytes)-1)
	}
	return pick(g, 1, bound, 1+g.Uint64N(bound))
}

func (g *generator) text(n int) string {
	alphabet := "abcdefgh"
	if g.odd() {
		alphabet = pick(g, "\x00", "\xff", "é", "/", "+", "#", "a/", "\xed\xa0\x80", "\U0010ffff", "[a*?]\\")
	}
	return strings.Repeat(alphabet, n/len(alphabet)+1)[:n]
}

// field is a text with its length, which may be a lie.
func (g *generator) field(text string) []byte {
	n := len(text)
	if g.odd() {
		n = g.IntN(1 << 16)
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(n)), text...)
}

func (g *generator) topic() string {
	switch {
	case g.odd():
		return pick(g, "", "#", "t/+", "$share/g/t/1", g.text(g.length(100)), strings.Repeat("l/", maxLevels+1)+"l", strings.Repeat("/", 60_000))
	case g.oneIn(8):
		return pick(g, "$SYS/broker/version", protocol.NotifyPrefix+"/x", protocol.Preview.Topic, strings.Repeat("l/", maxLevels-1)+"l", strings.Repeat("n", 300))
	}
	return pick(g, "t/1", "t/2", "t/3/4", "r/1", "r/2", "$delayed/"+pick(g, "0", "1", "2", "x")+"/t/1", g.respond)
}

func (g *generator) filter() string {
	switch {
	case g.odd():
		return pick(g, "$share//x", "$share/g", "t/#/x", "t+", "", "$share/g+/x", g.topic())
	case g.oneIn(4):
		return "$share/" + pick(g, "g", "h") + "/" + pick(g, "t/1", "t/+", "#")
	case g.oneIn(4):
		return pick(g, "#", "+/+", "t/#", "+", "$SYS/#", protocol.NotifyPrefix+"/#", "answers/#", strings.Repeat("+/", maxLevels-1)+"#")
	}
	return pick(g, "t/1", "t/+", "r/+", g.respond)
}

// packet frames a body; the header may be wrong.
func (g *generator) packet(typ mqtt.Type, flags byte, body []byte) []byte {
	header := byte(typ)<<4 | flags
	n := len(body)
	if g.odd() {
		switch g.IntN(5) {
		case 0:
			header = byte(g.Uint32())
		case 1:
			n = g.IntN(2*n + 2) // the next packet begins elsewhere
		case 2:
			return append([]byte{header, 0xff, 0xff, 0xff, byte(g.Uint32())}, body...)
		case 3:
			if n > 0 {
				body[g.IntN(n)] ^= 1 << g.IntN(8)
			}
		case 4:
			body = body[:g.IntN(n+1)]
			n = len(body)
		}
	}
	return append(binary.AppendUvarint([]byte{header}, uint64(n)), body...)
}

// properties are a block with its length; some may be repeated, or belong elsewhere.
func (g *generator) properties(of ...mqtt.PropertyID) []byte {
	if g.version != 5 {
		return nil
	}
	var block []byte
	for range g.IntN(4) {
		if len(of) == 0 {
			break
		}
		at := g.IntN(len(of))
		id := of[at]
		if of = slices.Delete(of, at, at+1); g.odd() {
			id = mqtt.PropertyID(g.IntN(44))
		}
		block = append(block, g.property(id)...)
	}
	if g.oneIn(60) { // as many as there is room for
		block = append(block, strings.Repeat("\x26\x00\x00\x00\x00", pick(g, 10, 1000, 6000))...)
	}
	return g.block(block)
}

func (g *generator) block(block []byte) []byte {
	n := len(block)
	if g.odd() {
		n = g.IntN(2*n + 2)
	}
	return append(binary.AppendUvarint(nil, uint64(n)), block...)
}

func (g *generator) property(id mqtt.PropertyID) []byte {
	p := []byte{byte(id)}
	switch id {
	case mqtt.PropPayloadFormat, mqtt.PropRequestProblemInfo, mqtt.PropRequestResponseInfo:
		return append(p, byte(pick(g, 0, g.number(1, 1))))
	case mqtt.PropServerKeepAlive, mqtt.PropReceiveMaximum:
		return binary.BigEndian.AppendUint16(p, uint16(g.number(2, maxReceive)))
	case mqtt.PropTopicAliasMaximum, mqtt.PropTopicAlias:
		return binary.BigEndian.AppendUint16(p, uint16(g.number(2, maxAlias)))
	case mqtt.PropMessageExpiry, mqtt.PropSessionExpiry, mqtt.PropWillDelayInterval:
		return binary.BigEndian.AppendUint32(p, uint32(pick(g, 0, maxExpiry+1, 1<<32-1, g.number(4, maxExpiry))))
	case mqtt.PropMaximumPacketSize:
		return binary.BigEndian.AppendUint32(p, uint32(g.number(4, maxPacket)))
	case mqtt.PropSubscriptionID:
		return binary.AppendUvarint(p, g.number(4, 268_435_455))
	case mqtt.PropResponseTopic:
		return append(p, g.field(g.topic())...)
	case mqtt.PropUser:
		if g.oneIn(3) {
			name, value := g.timed()
			return append(append(p, g.field(name)...), g.field(value)...)
		}
		p = append(p, g.field(pick(g, "k", protocol.Current.TimeProperty, protocol.Current.TokenProperty, g.text(g.length(100))))...)
		return append(p, g.field(pick(g, "v", g.stamp(), g.text(g.length(100))))...)
	}
	return append(p, g.field(g.text(g.length(100)))...)
}

// timed is a user property that has a message delivered later.
func (g *generator) timed() (name, value string) {
	switch g.IntN(4) {
	case 0:
		return delay.AtProperty, pick(g, "0", fmt.Sprint(time.Now().Add(50*time.Millisecond).UnixMilli()), "2006-01-02T15:04:05Z", "9999-12-31T23:59:59Z", "tomorrow", g.milliseconds())
	case 1:
		return delay.IDProperty, g.timerID()
	}
	return delay.AfterProperty, pick(g, "0", "1", "50", fmt.Sprint(maxDelayMs), fmt.Sprint(maxDelayMs+1), g.milliseconds())
}

func (g *generator) timerID() string {
	if g.oneIn(8) {
		return g.text(g.length(delay.MaxID))
	}
	return fmt.Sprint("timer/", g.IntN(5))
}

func (g *generator) connect() []byte {
	g.version = pick(g, byte(5), 5, 5, 5, 4, 4, 3)
	name, level := "MQTT", g.version
	switch {
	case g.version == 3:
		name = "MQIsdp"
	case g.odd():
		level = pick(g, byte(0), 6, 0x84, 0x83, 0xff)
	}
	flags := byte(0)
	if !g.oneIn(3) {
		flags |= 0x02 // clean start
	}
	will, user := g.oneIn(3), g.oneIn(8)
	password := user && g.oneIn(2)
	if will {
		flags |= 0x04 | byte(g.IntN(3))<<3 | byte(g.IntN(2))<<5
	}
	if user {
		flags |= 0x80
	}
	if password {
		flags |= 0x40
	}
	if g.odd() {
		flags = byte(g.Uint32())
	}
	body := append(g.field(name), level, flags)
	body = binary.BigEndian.AppendUint16(body, uint16(g.number(2, 60)))
	body = append(body, g.properties(mqtt.PropSessionExpiry, mqtt.PropReceiveMaximum, mqtt.PropMaximumPacketSize, mqtt.PropTopicAliasMaximum, mqtt.PropRequestProblemInfo, mqtt.PropUser)...)
	id := pick(g, clients...)
	if g.oneIn(10) {
		id = g.text(g.length(maxClientID))
	}
	body = append(body, g.field(id)...)
	if will {
		body = append(body, g.properties(mqtt.PropWillDelayInterval, mqtt.PropPayloadFormat, mqtt.PropMessageExpiry, mqtt.PropContentType, mqtt.PropResponseTopic, mqtt.PropCorrelationData, mqtt.PropUser)...)
		body = append(body, g.field(g.topic())...)
		body = append(body, g.field(g.text(g.length(1000)))...)
	}
	if user {
		body = append(body, g.field(g.text(g.length(50)))...)
	}
	if password {
		body = append(body, g.field(g.text(g.length(50)))...)
	}
	return g.packet(mqtt.CONNECT, 0, body)
}

func (g *generator) id() uint16 {
	if g.odd() {
		return uint16(g.number(2, 32768))
	}
	g.lastSent++
	return g.lastSent
}

func (g *generator) publish() []byte {
	flags := byte(g.IntN(3))<<1 | byte(g.IntN(2))
	if g.odd() {
		flags = byte(g.IntN(16))
	}
	payload := g.text(g.length(500))
	return g.publishTo(flags, g.topic(), g.properties(mqtt.PropPayloadFormat, mqtt.PropMessageExpiry, mqtt.PropContentType, mqtt.PropResponseTopic, mqtt.PropCorrelationData, mqtt.PropTopicAlias, mqtt.PropUser), payload)
}

func (g *generator) publishTo(flags byte, topic string, properties []byte, payload string) []byte {
	body := g.field(topic)
	if flags&6 != 0 {
		body = binary.BigEndian.AppendUint16(body, g.id())
	}
	return g.packet(mqtt.PUBLISH, flags, append(append(body, properties...), payload...))
}

func (g *generator) stamp() string {
	wall := time.Now().UnixMilli()
	switch g.IntN(10) {
	case 0:
		wall += int64(pick(g, time.Minute, time.Minute+time.Second, -time.Hour, 30*time.Second) / time.Millisecond)
	case 1:
		return pick(g, "", "0:0:n", "x", "-1:0:n", "18446744073709551615:18446744073709551615:n", "1:2", g.text(g.length(maxNodeID)))
	}
	node := pick(g, "a", "b", "c:d")
	if g.oneIn(10) {
		node = g.text(g.length(maxNodeID))
	}
	return fmt.Sprintf("%015d:%05d:%s", wall, g.number(2, 1000), node)
}

func (g *generator) key() string {
	if g.oneIn(8) {
		return g.text(g.length(maxKey))
	}
	return fmt.Sprint("k/", g.IntN(20))
}

func (g *generator) message() string {
	if g.oneIn(8) {
		return g.text(g.length(maxMessageID))
	}
	return fmt.Sprint("m/", g.IntN(5))
}

func (g *generator) milliseconds() string {
	return pick(g, "0", "1", "10", "1000", "3600000", "9223372036854775807", "9223372036854775808", "-1", "1.5", "x", "")
}

func (g *generator) pattern() string {
	if g.oneIn(6) {
		return strings.Repeat(pick(g, "[ab]", "*", "?", "a*", "[", "\\"), g.length(maxPattern)/4)
	}
	return pick(g, "*", "k/*", "k/1?", "[a-z]*", "\xff*", "")
}

// command is the payload of a request.
func (g *generator) command() string {
	var args []string
	switch g.IntN(15) {
	case 0, 1:
		args = []string{"GET", g.key()}
	case 2, 3:
		args = []string{"SET", g.key(), g.text(g.length(4000))}
		for range g.IntN(3) {
			args = append(args, pick(g, []string{"NX"}, []string{"NEX"}, []string{"PX", g.milliseconds()}, []string{"EX"})...)
		}
	case 4:
		args = []string{"DEL", g.key()}
	case 5:
		args = []string{"VDEL", g.key(), g.text(g.length(4000))}
	case 6:
		args = []string{"KEYNOTIFY", g.key()}
		if g.oneIn(3) {
			args = append(args, "STOP")
		}
	case 7:
		args = []string{"SCAN", g.pattern()}
		if g.oneIn(4) {
			args = append(args, g.text(g.length(maxKey)))
		}
		for range g.IntN(3) {
			args = append(args, pick(g, "VALUES", "BINARY"))
		}
	case 8:
		args = []string{"LOAD", g.key(), g.message()}
	case 9:
		args = []string{"STORE", g.key(), g.text(g.length(4000)), g.message(), pick(g, "-", "-", g.stamp())}
		for range g.IntN(3) {
			args = append(args, pick(g, []string{"CTX", g.text(g.length(4000))}, []string{"KEEP", g.milliseconds()}, []string{"PX", g.milliseconds()})...)
		}
	case 10:
		args = []string{"DONE", g.key(), g.message()}
	case 11, 12:
		args = []string{"TXN"}
		for range g.length(8) {
			args = append(args, g.operation()...)
		}
	case 13:
		args = []string{"TIMERS", pick(g, "", "timer/", g.timerID())}
		if g.oneIn(2) {
			args = append(args, g.timerID())
		}
	case 14:
		args = []string{"CANCEL", g.timerID()}
	}
	if g.oneIn(15) {
		args = append(args, g.text(g.length(10)))
	}
	if g.oneIn(20) {
		args = args[:g.IntN(len(args))]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args)+pick(g, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1))
	for _, a := range args {
		n := len(a)
		if g.oneIn(100) {
			n = pick(g, 0, n+1, maxPacket, 1<<31-1)
		}
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", n, a)
	}
	return b.String()
}

// operation is one of a TXN.
func (g *generator) operation() (args []string) {
	switch g.IntN(8) {
	case 0:
		return append([]string{"IF", g.key()}, pick(g, []string{"EXISTS"}, []string{"ABSENT"}, []string{"VALUE", g.text(g.length(10))}, []string{"VER", pick(g, "-", "^"+g.message(), g.stamp())})...)
	case 1, 2:
		args = []string{"SET", g.key(), g.text(g.length(4000))}
		for range g.IntN(2) {
			args = append(args, pick(g, []string{"PX", g.milliseconds()}, []string{"FT", g.stamp()})...)
		}
		return args
	case 3:
		return []string{"DEL", g.key()}
	case 4:
		args = []string{"ONCE", g.key(), g.message()}
		if g.oneIn(2) {
			args = append(args, "KEEP", g.milliseconds())
		}
		if g.oneIn(2) {
			args = append(args, "DIGEST", g.text(g.length(70)))
		}
		return args
	case 5:
		return []string{"SETTLE", pick(g, fmt.Sprint(g.IntN(20)), fmt.Sprint(g.IntN(20)), "65535", "65536", "-1", "x")}
	}
	if g.oneIn(8) {
		return []string{"CANCEL", g.timerID()}
	}
	args = []string{"PUBLISH", g.topic(), g.text(g.length(500))}
	if g.oneIn(4) {
		name, value := g.timed()
		args = append(args, "USER", name, value)
	}
	for range g.IntN(4) {
		args = append(args, pick(g, []string{"QOS", pick(g, "0", "1", "2", "3")}, []string{"RETAIN"}, []string{"EXPIRY", g.milliseconds()}, []string{"FORMAT", pick(g, "0", "1", "2")},
			[]string{"TYPE", g.text(g.length(10))}, []string{"RESPONSE", g.topic()}, []string{"CORRELATION", g.text(g.length(10))}, []string{"USER", g.text(g.length(10)), g.text(g.length(10))})...)
	}
	return args
}

// request is a publish to the state store.
func (g *generator) request() []byte {
	var block []byte
	if !g.oneIn(20) {
		block = append(append(block, 0x08), g.field(pick(g, g.respond, g.respond, g.respond, g.topic()))...)
	}
	if !g.oneIn(20) {
		block = append(append(block, 0x09), g.field(g.text(1+g.length(20)))...)
	}
	if g.oneIn(15) {
		block = binary.BigEndian.AppendUint32(append(block, 0x02), uint32(g.number(4, 1)))
	}
	if !g.oneIn(6) {
		block = append(append(append(block, 0x26), g.field(protocol.Current.TimeProperty)...), g.field(g.stamp())...)
	}
	if g.oneIn(3) {
		block = append(append(append(block, 0x26), g.field(protocol.Current.TokenProperty)...), g.field(g.stamp())...)
	}
	flags := byte(2)
	if g.oneIn(20) {
		flags = byte(g.IntN(6))
	}
	var properties []byte
	if g.version == 5 {
		properties = g.block(block)
	}
	return g.publishTo(flags, pick(g, protocol.Current.Topic, protocol.Current.Topic, protocol.Current.Topic, protocol.Preview.Topic), properties, g.command())
}

func (g *generator) subscribe() []byte {
	body := binary.BigEndian.AppendUint16(nil, g.id())
	body = append(body, g.properties(mqtt.PropSubscriptionID, mqtt.PropUser)...)
	for range g.filters() {
		options := byte(g.IntN(3))
		filter := g.filter()
		if g.version == 5 {
			options |= byte(g.IntN(3))<<4 | byte(g.IntN(2))<<3
			if !strings.HasPrefix(filter, "$share/") {
				options |= byte(g.IntN(2)) << 2
			}
		}
		if g.odd() {
			options = byte(g.Uint32())
		}
		body = append(append(body, g.field(filter)...), options)
	}
	return g.packet(mqtt.SUBSCRIBE, 2, body)
}

func (g *generator) filters() int {
	if g.oneIn(12) {
		return pick(g, 1, maxFilters, maxFilters+1, 1000)
	}
	if g.odd() {
		return 0
	}
	return 1 + g.IntN(3)
}

func (g *generator) unsubscribe() []byte {
	body := binary.BigEndian.AppendUint16(nil, g.id())
	body = append(body, g.properties(mqtt.PropUser)...)
	for range g.filters() {
		body = append(body, g.field(g.filter())...)
	}
	return g.packet(mqtt.UNSUBSCRIBE, 2, body)
}

// ack is an acknowledgement of any kind, of anything.
func (g *generator) ack(typ mqtt.Type, id uint16) []byte {
	body := binary.BigEndian.AppendUint16(nil, id)
	if g.version == 5 && g.oneIn(3) {
		code := pick(g, byte(0), 0, 0x80, 0x97)
		if typ == mqtt.PUBREL || typ == mqtt.PUBCOMP {
			code = pick(g, byte(0), 0x92)
		}
		if g.odd() {
			code = byte(g.Uint32())
		}
		body = append(body, code)
		if g.oneIn(2) {
			body = append(body, g.properties(mqtt.PropReasonString, mqtt.PropUser)...)
		}
	}
	flags := byte(0)
	if typ == mqtt.PUBREL {
		flags = 2
	}
	return g.packet(typ, flags, body)
}

// next is any packet.
func (g *generator) next() []byte {
	switch n := g.IntN(36); {
	case g.odd():
		return g.packet(pick(g, mqtt.CONNECT, mqtt.AUTH, mqtt.CONNACK, mqtt.SUBACK, mqtt.UNSUBACK, mqtt.PINGRESP, mqtt.Type(0)), 0, []byte(g.text(g.length(20))))
	case g.oneIn(200):
		return g.disconnect()
	case n == 0:
		return g.packet(mqtt.PINGREQ, 0, nil)
	case n < 5:
		return g.subscribe()
	case n < 6:
		return g.unsubscribe()
	case n < 8:
		return g.ack(pick(g, mqtt.PUBACK, mqtt.PUBREC, mqtt.PUBREL, mqtt.PUBCOMP), uint16(g.number(2, 32768)))
	case n < 12:
		return g.ack(mqtt.PUBREL, max(1, g.lastSent-uint16(g.IntN(3))))
	case n < 22:
		return g.publish()
	}
	return g.request()
}

func (g *generator) disconnect() []byte {
	var body []byte
	if g.version == 5 && g.oneIn(2) {
		body = append(body, pick(g, byte(0), 0, 4, 0x81))
		if g.odd() {
			body[0] = byte(g.Uint32())
		}
		body = append(body, g.properties(mqtt.PropSessionExpiry, mqtt.PropReasonString, mqtt.PropUser)...)
	}
	return g.packet(mqtt.DISCONNECT, 0, body)
}
