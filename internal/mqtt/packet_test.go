package mqtt

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// The tests write packets as the standard's figures show them. In
//
//	32 { "a/b" 000A { 01 01 } 'hello' }
//
// hex digits are bytes, "…" is a string with its two-byte length, '…' is bytes as they are, and {…} is anything
// with its length before it as a variable byte integer.
func packet(notation string) []byte {
	b, rest := parseNotation(notation)
	if rest != "" {
		panic("unbalanced braces in " + notation)
	}
	return b
}

func parseNotation(s string) (b []byte, rest string) {
	for s != "" {
		switch c := s[0]; c {
		case ' ', '\n', '\t':
			s = s[1:]
		case '"', '\'':
			end := 1 + strings.IndexByte(s[1:], c)
			if c == '"' {
				b = append(b, byte((end-1)>>8), byte(end-1))
			}
			b = append(b, s[1:end]...)
			s = s[end+1:]
		case '{':
			var inner []byte
			inner, s = parseNotation(s[1:])
			n := len(inner)
			for ; n > 127; n /= 128 {
				b = append(b, byte(n%128+128))
			}
			b = append(append(b, byte(n)), inner...)
			if s == "" {
				panic("missing }")
			}
			s = s[1:]
		case '}':
			return b, s
		default:
			octet, err := hex.DecodeString(s[:2])
			if err != nil {
				panic(err)
			}
			b = append(b, octet...)
			s = s[2:]
		}
	}
	return b, ""
}

// side says who sent a packet: only a server's PUBLISH may carry subscription identifiers.
type side bool

const (
	client side = false
	server side = true
)

// typedAck is an Ack and which of the four it is.
type typedAck struct {
	Type
	Ack
}

type ping struct{ Type }

// decodePacket decodes the body of any packet into a pointer to its struct.
func decodePacket(v Version, from side, header byte, body []byte) (any, error) {
	switch t := TypeOf(header); t {
	case CONNECT:
		p := new(Connect)
		return p, p.Decode(body)
	case CONNACK:
		p := new(Connack)
		return p, p.Decode(v, body)
	case PUBLISH:
		p := new(Publish)
		if from == server {
			return p, p.DecodeDelivery(v, header, body)
		}
		return p, p.Decode(v, header, body)
	case PUBACK, PUBREC, PUBREL, PUBCOMP:
		p := &typedAck{Type: t}
		return p, p.Decode(v, t, body)
	case SUBSCRIBE:
		p := new(Subscribe)
		return p, p.Decode(v, body)
	case SUBACK:
		p := new(Suback)
		return p, p.Decode(v, body)
	case UNSUBSCRIBE:
		p := new(Unsubscribe)
		return p, p.Decode(v, body)
	case UNSUBACK:
		p := new(Unsuback)
		return p, p.Decode(v, body)
	case DISCONNECT:
		p := new(Disconnect)
		return p, p.Decode(v, body)
	case AUTH:
		p := new(Auth)
		return p, p.Decode(v, body)
	default:
		return &ping{t}, nil
	}
}

// appendPacket appends what decodePacket has decoded.
func appendPacket(dst []byte, v Version, decoded any) []byte {
	switch p := decoded.(type) {
	case *Connect:
		return AppendConnect(dst, p)
	case *Connack:
		return AppendConnack(dst, v, p)
	case *Publish:
		return AppendPublish(dst, v, p)
	case *typedAck:
		return AppendAck(dst, v, p.Type, p.PacketID, p.Code, string(p.ReasonString))
	case *Subscribe:
		return AppendSubscribe(dst, v, p)
	case *Suback:
		return AppendSuback(dst, v, p.PacketID, p.Codes, string(p.ReasonString))
	case *Unsubscribe:
		return AppendUnsubscribe(dst, v, p)
	case *Unsuback:
		return AppendUnsuback(dst, v, p.PacketID, p.Codes, string(p.ReasonString))
	case *Disconnect:
		return AppendDisconnect(dst, v, p)
	case *Auth:
		return AppendAuth(dst, p)
	case *ping:
		if p.Type == PINGREQ {
			return AppendPingreq(dst)
		}
		return AppendPingresp(dst)
	}
	panic(fmt.Sprintf("no packet: %T", decoded))
}

// show writes a decoded packet so that two can be compared: nil and empty slices look alike, and of a property
// block only the user properties count, since the order of the others means nothing.
func show(decoded any) string {
	var blocks []string
	walkBytes(reflect.ValueOf(decoded).Elem(), "", func(path string, b []byte) {
		if strings.HasSuffix(path, ".Raw") {
			for name, value := range UserProps(b) {
				blocks = append(blocks, fmt.Sprintf("%s %q=%q", path, name, value))
			}
		}
	})
	clone := reflect.New(reflect.TypeOf(decoded).Elem()).Elem()
	clone.Set(reflect.ValueOf(decoded).Elem())
	clearRaw(clone)
	return fmt.Sprintf("%+v %v", clone.Interface(), blocks)
}

func clearRaw(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Name == "Raw" {
			v.Field(i).SetZero()
			continue
		}
		clearRaw(v.Field(i))
	}
}

// walkBytes calls fn for every []byte in v.
func walkBytes(v reflect.Value, path string, fn func(path string, b []byte)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			walkBytes(v.Field(i), path+"."+v.Type().Field(i).Name, fn)
		}
	case reflect.Slice:
		if v.Type().Elem() == reflect.TypeFor[byte]() {
			fn(path, v.Bytes())
			return
		}
		for i := range v.Len() {
			walkBytes(v.Index(i), path, fn)
		}
	}
}

// requireViews fails if a []byte of decoded is not a view of body, or can be appended to over its end.
func requireViews(t *testing.T, decoded any, body []byte) {
	t.Helper()
	if _, copies := decoded.(*Connack); copies {
		return
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(body)))
	walkBytes(reflect.ValueOf(decoded).Elem(), "", func(path string, b []byte) {
		if cap(b) == 0 {
			return
		}
		start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if start < from || start+uintptr(cap(b)) > from+uintptr(len(body)) {
			t.Errorf("%T%s is not a view of the body", decoded, path)
		}
	})
}

func TestNotation(t *testing.T) {
	got := packet(`32 { "a/b" 000A { 01 01 } 'hello' }`)
	want := "\x32\x0f\x00\x03a/b\x00\x0a\x02\x01\x01hello"
	if string(got) != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
