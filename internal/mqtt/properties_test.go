package mqtt

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

var mixedBlock = packet(`26 "a" "1"  02 0000003C  23 0007  0B 8001  08 "answers"  26 "b" ""  09 "id"  01 01  26 "a" "2"  18 00000005  03 "t"`)

func TestUserProps(t *testing.T) {
	t.Parallel()
	var got []string
	for name, value := range UserProps(mixedBlock) {
		got = append(got, fmt.Sprintf("%s=%s", name, value))
	}
	if want := "a=1 b= a=2"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for name := range UserProps(mixedBlock) { // a caller may stop
		if string(name) != "a" {
			t.Errorf("first name %q, want a", name)
		}
		break
	}
	for range UserProps(nil) {
		t.Error("no block has a user property")
	}
}

func TestFindUserProp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value string
		ok          bool
	}{{"a", "1", true}, {"b", "", true}, {"c", "", false}, {"", "", false}} {
		if value, ok := FindUserProp(mixedBlock, c.name); string(value) != c.value || ok != c.ok {
			t.Errorf("FindUserProp(%q) = %q, %v, want %q, %v", c.name, value, ok, c.value, c.ok)
		}
	}
}

func TestAppendForwardProps(t *testing.T) {
	t.Parallel()
	got := AppendForwardProps([]byte("before"), mixedBlock)
	want := append([]byte("before"), packet(`26 "a" "1"  08 "answers"  26 "b" ""  09 "id"  01 01  26 "a" "2"  03 "t"`)...)
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%x, want\n%x", got, want)
	}
	if got := AppendForwardProps(nil, packet(`23 0007`)); len(got) != 0 {
		t.Errorf("got %x, want nothing", got)
	}
}

// The readers of a block expect a validated one, but must hold out against any.
func TestBlocksThatWereNeverValidated(t *testing.T) {
	t.Parallel()
	for n := range mixedBlock {
		block := mixedBlock[:n:n]
		for name, value := range UserProps(block) {
			_, _ = name, value
		}
		FindUserProp(block, "none")
		AppendForwardProps(nil, block)
		appendUserProps(nil, block)
	}
	for id := range 256 {
		FindUserProp([]byte{byte(id)}, "none")
		FindUserProp([]byte{byte(id), 0xFF, 0xFF, 0xFF, 0xFF}, "none")
	}
}

func TestAppendProps(t *testing.T) {
	t.Parallel()
	type name string
	for _, c := range []struct {
		what string
		got  []byte
		want string
	}{
		{"user property of strings", AppendUserProp(nil, "k", name("v")), `26 "k" "v"`},
		{"user property of bytes", AppendUserProp(nil, []byte("k"), []byte("v")), `26 "k" "v"`},
		{"string", AppendStringProp(nil, PropContentType, "t"), `03 "t"`},
		{"binary", AppendStringProp(nil, PropCorrelationData, []byte{0xFF}), `09 0001 FF`},
		{"byte", AppendByteProp(nil, PropPayloadFormat, 1), `01 01`},
		{"two bytes", AppendUint16Prop(nil, PropReceiveMaximum, 0x1234), `21 1234`},
		{"four bytes", AppendUint32Prop(nil, PropMessageExpiry, 0x12345678), `02 12345678`},
		{"varint", AppendVarintProp(nil, PropSubscriptionID, 128), `0B 8001`},
	} {
		if want := packet(c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s: got %x, want %x", c.what, c.got, want)
		}
	}
}

func TestTooLongStringsPanic(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("x", wire.MaxString)
	if got := AppendStringProp(nil, PropContentType, fits); len(got) != 3+wire.MaxString {
		t.Errorf("a string of wire.MaxString bytes became %d bytes", len(got))
	}
	defer func() {
		if recover() == nil {
			t.Error("a string over wire.MaxString bytes was appended")
		}
	}()
	AppendStringProp(nil, PropContentType, fits+"x")
}

func TestTooLongReasonsAreCut(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{
		strings.Repeat("x", wire.MaxString+1),
		strings.Repeat("x", wire.MaxString-1) + "é",
		strings.Repeat("x", wire.MaxString-2) + "日",
		strings.Repeat("x", wire.MaxString-3) + "🐝🐝",
	} {
		_, body := split(AppendAck(nil, V5, PUBACK, 1, QuotaExceeded, reason))
		var a Ack
		if err := a.Decode(V5, PUBACK, body); err != nil {
			t.Fatalf("a cut reason is not valid: %v", err)
		}
		if n := len(a.ReasonString); n < wire.MaxString-3 || !strings.HasPrefix(reason, string(a.ReasonString)) {
			t.Errorf("%d bytes of reason are left", n)
		}
	}
}

func TestReasonCodes(t *testing.T) {
	t.Parallel()
	names := 0
	for c := range 256 {
		code := ReasonCode(c)
		if (reasons[code].name != "") != (reasons[code].in != 0) {
			t.Errorf("0x%02X has a name or a packet, but not both", c)
		}
		if reasons[code].name != "" {
			names++
		}
	}
	if names != 43 { // rows of the table in MQTT 5, section 2.4, those of 0x00 taken as one
		t.Errorf("%d reason codes, want 43", names)
	}
	if s := ReasonCode(0x03).String(); s != "Unknown reason code" {
		t.Errorf("0x03 is %q", s)
	}
	if s := (&Error{TopicAliasInvalid, "the topic alias is 0"}).Error(); s != "mqtt: Topic Alias invalid: the topic alias is 0" {
		t.Errorf("an error reads %q", s)
	}
}

func TestTypeNames(t *testing.T) {
	t.Parallel()
	for typ, want := range map[Type]string{0: "RESERVED", CONNECT: "CONNECT", PUBREL: "PUBREL", AUTH: "AUTH", 16: "RESERVED"} {
		if typ.String() != want {
			t.Errorf("type %d is %q, want %q", byte(typ), typ, want)
		}
	}
}

// Of the user properties those that are named go, and nothing else.
func TestAppendWithoutUserProps(t *testing.T) {
	t.Parallel()
	raw := AppendUserProp(AppendStringProp(AppendUserProp(nil, "a", "1"), PropContentType, "a"), "b", "2")
	if got, want := AppendWithoutUserProps([]byte("x"), raw, "a", "c"), AppendUserProp(AppendStringProp([]byte("x"), PropContentType, "a"), "b", "2"); !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
