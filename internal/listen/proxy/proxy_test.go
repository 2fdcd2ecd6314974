package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
)

// headerOf makes a header of version 2.
func headerOf(command, family byte, rest []byte) []byte {
	h := append(bytes.Clone(signature), command, family)
	return append(binary.BigEndian.AppendUint16(h, uint16(len(rest))), rest...)
}

// headerFrom is the header for a client with an IPv4 or IPv6 address, with TLVs at its end.
func headerFrom(client string, tlvs ...byte) []byte {
	a := netip.MustParseAddrPort(client)
	family, local := byte(tcp4), netip.MustParseAddr("10.0.0.1")
	if a.Addr().Is6() {
		family, local = tcp6, netip.MustParseAddr("fd00::1")
	}
	rest := append(a.Addr().AsSlice(), local.AsSlice()...)
	rest = binary.BigEndian.AppendUint16(rest, a.Port())
	rest = binary.BigEndian.AppendUint16(rest, 1883)
	return headerOf(commandProxy, family, append(rest, tlvs...))
}

// A header says who the client is, and not one byte behind it is read.
func TestHeader(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header []byte
		want   string // empty: the connection is the balancer's own
	}{
		"IPv4":                   {headerFrom("192.0.2.7:50000"), "192.0.2.7:50000"},
		"IPv6":                   {headerFrom("[2001:db8::7]:50000"), "[2001:db8::7]:50000"},
		"IPv4 in IPv6":           {headerFrom("[::ffff:192.0.2.7]:50000"), "192.0.2.7:50000"},
		"TLVs":                   {headerFrom("192.0.2.7:1", 0x03, 0, 4, 1, 2, 3, 4, 0x04, 0, 0), "192.0.2.7:1"},
		"TLVs up to the bound":   {headerFrom("192.0.2.7:1", append([]byte{0x04, 0x0F, 0xF1}, make([]byte, maxRest-12-3)...)...), "192.0.2.7:1"},
		"LOCAL":                  {headerOf(commandLocal, 0, nil), ""},
		"LOCAL, with what it is": {headerOf(commandLocal, tcp4, make([]byte, 12)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := bytes.NewReader(append(test.header, "MQTT"...))
			got, err := Read(r)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" && got.Client.IsValid() || test.want != "" && got.Client.String() != test.want {
				t.Errorf("the client is %v, want %q", got.Client, test.want)
			}
			if rest, _ := io.ReadAll(r); string(rest) != "MQTT" {
				t.Errorf("%q is left to read", rest)
			}
		})
	}
}

func TestBadHeaders(t *testing.T) {
	t.Parallel()
	with := func(at int, b byte) []byte {
		h := headerFrom("192.0.2.7:1")
		h[at] = b
		return h
	}
	for name, test := range map[string]struct {
		header []byte
		want   string
	}{
		"CONNECT":                 {[]byte("\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc"), "does not begin with a header"},
		"a short CONNECT":         {[]byte("\x10\x03"), "does not begin with a header"},
		"version 1":               {[]byte("PROXY TCP4 192.0.2.7 10.0.0.1 1 2\r\n"), "version 1; have the balancer send version 2"},
		"version 3":               {with(12, 0x31), "version 3"},
		"an unknown command":      {with(12, 0x22), "unknown command 2"},
		"UDP":                     {with(13, 0x12), "0x12: only TCP"},
		"a Unix socket":           {headerOf(commandProxy, 0x31, make([]byte, 216)), "0x31: only TCP"},
		"no family":               {headerOf(commandProxy, 0, nil), "0x00: only TCP"},
		"too few for IPv4":        {headerOf(commandProxy, tcp4, make([]byte, 11)), "11 bytes are too few"},
		"too few for IPv6":        {headerOf(commandProxy, tcp6, make([]byte, 35)), "35 bytes are too few"},
		"half a TLV":              {headerFrom("192.0.2.7:1", 3, 0), "a TLV is cut off"},
		"a TLV that is too long":  {headerFrom("192.0.2.7:1", 3, 0, 2, 1), "a TLV is cut off"},
		"one more than the bound": {headerFrom("192.0.2.7:1", append([]byte{0x04, 0x0F, 0xF2}, make([]byte, maxRest-12-2)...)...), "4097 bytes, more than the 4096"},
		"a prefix that ends":      {signature, "unexpected EOF"},
		"addresses that end":      {headerFrom("192.0.2.7:1")[:20], "cut off"},
		"nothing":                 {nil, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Read(bytes.NewReader(test.header)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

// Whatever comes, no byte behind the header is read, and a client that is accepted has an
// address.
func FuzzHeader(f *testing.F) {
	for _, seed := range [][]byte{
		headerFrom("192.0.2.7:50000"), headerFrom("[2001:db8::7]:1"), headerFrom("192.0.2.7:1", 3, 0, 1, 9), headerOf(commandLocal, 0, nil),
		[]byte("PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n"), signature, {0x10},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := Read(r)
		read := len(b) - r.Len()
		if read > prefix+maxRest {
			t.Fatalf("%d bytes were read", read)
		}
		if err != nil {
			return
		}
		if want := prefix + int(binary.BigEndian.Uint16(b[14:])); read != want {
			t.Errorf("%d bytes were read of a header of %d", read, want)
		}
		if b[12] == commandProxy && !h.Client.IsValid() {
			t.Error("a client without an address")
		}
		if h.Client.IsValid() && b[13] != tcp4 && b[13] != tcp6 {
			t.Error("an address of a family that is none")
		}
		if errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// What a node writes, another one reads.
func TestAppended(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		client, server string
		listener       int
	}{
		{"192.0.2.7:50000", "10.0.0.1:7001", 0},
		{"192.0.2.7:50000", "10.0.0.1:7001", NoListener},
		{"[2001:db8::7]:1", "[fd00::1]:7001", MaxListener},
		{"192.0.2.7:50000", "[fd00::1]:7001", 3},
		{"[fe80::1%eth0]:50000", "10.0.0.1:7001", 3},
	} {
		h := Header{netip.MustParseAddrPort(test.client), test.listener}
		r := bytes.NewReader(append(Append(nil, h, netip.MustParseAddrPort(test.server)), "MQTT"...))
		got, err := Read(r)
		want := Header{netip.AddrPortFrom(h.Client.Addr().WithZone(""), h.Client.Port()), test.listener}
		if err != nil || got != want {
			t.Errorf("%s at %s: read %v, %v", test.client, test.server, got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "MQTT" {
			t.Errorf("%s at %s: %q is left to read", test.client, test.server, rest)
		}
	}
}
