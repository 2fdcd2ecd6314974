package mqtt

import (
	"bytes"
	"errors"
	"testing"
)

func TestValidPackets(t *testing.T) {
	t.Parallel()
	for _, c := range validPackets {
		for _, v := range versions(c.version) {
			b := packet(c.bytes)
			t.Run(TypeOf(b[0]).String()+" "+v.String()+" "+c.name, func(t *testing.T) {
				// When the packet is split off and decoded,
				header, body, n, _, err := Split(b, len(b))
				if err != nil || n != len(b) {
					t.Fatalf("Split: n %d of %d, %v", n, len(b), err)
				}
				got, err := decodePacket(v, c.from, header, body)
				if err != nil {
					t.Fatalf("Decode: %v", err)
				}
				// then it is what was expected, in views of the packet,
				requireViews(t, got, body)
				if c.want != nil && show(got) != show(c.want) {
					t.Errorf("decoded\n%s, want\n%s", show(got), show(c.want))
				}
				// and appending it gives the same bytes, or at least the same packet.
				again := appendPacket([]byte("before"), v, got)[len("before"):]
				if !c.loose && !bytes.Equal(again, b) {
					t.Errorf("appended\n%x, want\n%x", again, b)
				}
				requireSame(t, v, c.from, got, again)
			})
		}
	}
}

// requireSame fails unless b decodes to what want is.
func requireSame(t *testing.T, v Version, from side, want any, b []byte) {
	t.Helper()
	header, body, n, _, err := Split(b, 0)
	if err != nil || n != len(b) {
		t.Fatalf("Split of what was appended: n %d of %d, %v; %x", n, len(b), err, b)
	}
	got, err := decodePacket(v, from, header, body)
	if err != nil {
		t.Fatalf("Decode of what was appended: %v; %x", err, b)
	}
	if show(got) != show(want) {
		t.Errorf("after a round trip\n%s, want\n%s", show(got), show(want))
	}
}

func TestInvalidPackets(t *testing.T) {
	t.Parallel()
	for _, c := range invalidPackets {
		for _, v := range versions(c.version) {
			b := packet(c.bytes)
			t.Run(TypeOf(b[0]).String()+" "+v.String()+" "+c.name, func(t *testing.T) {
				header, body, n, _, err := Split(b, 0)
				if err == nil {
					if n != len(b) {
						t.Fatalf("the vector is not one packet: n %d of %d", n, len(b))
					}
					_, err = decodePacket(v, c.from, header, body)
				}
				var refused *Error
				if !errors.As(err, &refused) {
					t.Fatalf("got error %v, want %v", err, c.code)
				}
				if refused.Code != c.code {
					t.Errorf("refused with %v, want %v", err, c.code)
				}
			})
		}
	}
}

// A connection can break anywhere, and a peer can claim any length. No prefix of a body may be taken for a
// whole one unless the standard allows the shorter form.
func TestCutBodiesNeverPanic(t *testing.T) {
	t.Parallel()
	for _, c := range validPackets {
		for _, v := range versions(c.version) {
			header, body := split(packet(c.bytes))
			for n := range body {
				got, err := decodePacket(v, c.from, header, body[:n:n])
				if err == nil {
					requireViews(t, got, body[:n:n])
					continue
				}
				var refused *Error
				if !errors.As(err, &refused) || refused.Reason == "" {
					t.Errorf("%s cut to %d bytes: error %v is no *Error with a reason", c.name, n, err)
				}
			}
		}
	}
}
