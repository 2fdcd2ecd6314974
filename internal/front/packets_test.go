package front

import (
	"bytes"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// The ends of packets are found wherever reads end.
func TestCursorFindsTheEndsOfPackets(t *testing.T) {
	t.Parallel()
	packets := [][]byte{
		{0xc0, 0},
		append([]byte{0x30, 0x80, 0x01}, make([]byte, 128)...),
		{0x40, 2, 0, 1},
		append([]byte{0x30, 0x80, 0x80, 0x01}, make([]byte, 16384)...),
		{0xe0, 0},
	}
	stream := bytes.Join(packets, nil)
	for _, step := range []int{1, 2, 3, 100, len(stream)} {
		var k cursor
		var ends []int
		for at := 0; at < len(stream); {
			n, whole, err := k.take(stream[at:min(len(stream), at+step)])
			if err != nil {
				t.Fatal(err)
			}
			if at += n; whole {
				ends = append(ends, at)
			}
		}
		want := 0
		for i, p := range packets {
			if want += len(p); i >= len(ends) || ends[i] != want {
				t.Errorf("steps of %d: packets end at %v", step, ends)
				break
			}
		}
	}
	if _, _, err := new(cursor).take([]byte{0x30, 0xff, 0xff, 0xff, 0xff}); err == nil {
		t.Error("a length of 5 bytes is taken")
	}
}

func TestBeginningOfConnect(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]mqtt.Version{"3.1": mqtt.V31, "3.1.1": mqtt.V311, "5": mqtt.V5} {
		p := mqtt.AppendConnect(nil, &mqtt.Connect{Version: v, KeepAlive: 77, ClientID: []byte("press"), CleanStart: true})
		for n := range p {
			c, whole, err := parseConnect(p[:n])
			if err != nil {
				t.Fatalf("%s: %d bytes: %v", name, n, err)
			}
			if whole && (c.version != v || c.keepAlive != 77) {
				t.Errorf("%s: %d bytes: %+v", name, n, c)
			}
		}
		if c, whole, err := parseConnect(p); !whole || err != nil || c.keepAlive != 77 {
			t.Errorf("%s: %+v, %v, %v", name, c, whole, err)
		}
	}
	for name, p := range map[string][]byte{
		"HTTP":                 []byte("GET / HTTP/1.1\r\n"),
		"another packet":       {0x30, 0},
		"a long length":        {0x10, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"another name":         {0x10, 12, 0, 4, 'M', 'Q', 'T', 'X', 5, 2, 0, 60, 0, 0},
		"a name of 65535 byte": {0x10, 12, 0xff, 0xff, 'M'},
	} {
		if _, _, err := parseConnect(p); err == nil {
			t.Errorf("%s begins a CONNECT", name)
		}
	}
}

func TestKeepAliveOfConnack(t *testing.T) {
	t.Parallel()
	long := make([]byte, 1000)
	for name, c := range map[string]struct {
		ack   mqtt.Connack
		v     mqtt.Version
		taken bool
		want  uint16
	}{
		"3.1.1":    {mqtt.Connack{}, mqtt.V311, true, 0},
		"refused":  {mqtt.Connack{Code: mqtt.NotAuthorized}, mqtt.V5, false, 0},
		"none":     {mqtt.Connack{}, mqtt.V5, true, 0},
		"asked":    {mqtt.Connack{HasServerKeepAlive: true, ServerKeepAlive: 9}, mqtt.V5, true, 9},
		"of zero":  {mqtt.Connack{HasServerKeepAlive: true}, mqtt.V5, true, 0},
		"and more": {mqtt.Connack{HasServerKeepAlive: true, ServerKeepAlive: 9, HasSessionExpiry: true, SessionExpiry: 1, ReceiveMaximum: 3, HasMaximumQoS: true, AssignedClientID: string(long), ReasonString: string(long)}, mqtt.V5, true, 9},
	} {
		p := mqtt.AppendConnack(nil, c.v, &c.ack)
		p = append(p, 0x30, 5, byte(mqtt.PropServerKeepAlive), 1, 1, 1, 1) // another packet
		taken, keepAlive, asked := parseConnack(p[:min(len(p), maxConnack)], c.v)
		if taken != c.taken || keepAlive != c.want || asked != (c.ack.HasServerKeepAlive && taken) {
			t.Errorf("%s: %v, %d, %v", name, taken, keepAlive, asked)
		}
	}
}

func FuzzPackets(f *testing.F) {
	f.Add([]byte{0x10, 12, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 60, 0, 0})
	f.Add([]byte{0x20, 6, 0, 0, 3, 19, 0, 9})
	f.Fuzz(func(_ *testing.T, p []byte) {
		_, _, _ = parseConnect(p)
		_, _, _ = parseConnack(p, mqtt.V5)
		var k cursor
		for len(p) > 0 {
			n, _, err := k.take(p)
			if err != nil {
				return
			}
			p = p[n:]
		}
	})
}
