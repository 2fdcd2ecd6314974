package listen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
)

// proxyHeader makes a header of version 2.
func proxyHeader(command, family byte, rest []byte) []byte {
	h := append(bytes.Clone(proxySignature), command, family)
	return append(binary.BigEndian.AppendUint16(h, uint16(len(rest))), rest...)
}

// proxyFrom is the header for a client with an IPv4 or IPv6 address, with TLVs at its end.
func proxyFrom(client string, tlvs ...byte) []byte {
	a := netip.MustParseAddrPort(client)
	family, local := byte(proxyTCP4), netip.MustParseAddr("10.0.0.1")
	if a.Addr().Is6() {
		family, local = proxyTCP6, netip.MustParseAddr("fd00::1")
	}
	rest := append(a.Addr().AsSlice(), local.AsSlice()...)
	rest = binary.BigEndian.AppendUint16(rest, a.Port())
	rest = binary.BigEndian.AppendUint16(rest, 1883)
	return proxyHeader(proxyProxy, family, append(rest, tlvs...))
}

// A header says who the client is, and not one byte behind it is read.
func TestProxyHeader(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header []byte
		want   string // empty: the connection is the balancer's own
	}{
		"IPv4":                   {proxyFrom("192.0.2.7:50000"), "192.0.2.7:50000"},
		"IPv6":                   {proxyFrom("[2001:db8::7]:50000"), "[2001:db8::7]:50000"},
		"IPv4 in IPv6":           {proxyFrom("[::ffff:192.0.2.7]:50000"), "192.0.2.7:50000"},
		"TLVs":                   {proxyFrom("192.0.2.7:1", 0x03, 0, 4, 1, 2, 3, 4, 0x04, 0, 0), "192.0.2.7:1"},
		"TLVs up to the bound":   {proxyFrom("192.0.2.7:1", append([]byte{0x04, 0x0F, 0xF1}, make([]byte, maxProxy-12-3)...)...), "192.0.2.7:1"},
		"LOCAL":                  {proxyHeader(proxyLocal, 0, nil), ""},
		"LOCAL, with what it is": {proxyHeader(proxyLocal, proxyTCP4, make([]byte, 12)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := bytes.NewReader(append(test.header, "MQTT"...))
			got, err := readProxyHeader(r)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" && got.IsValid() || test.want != "" && got.String() != test.want {
				t.Errorf("the client is %v, want %q", got, test.want)
			}
			if rest, _ := io.ReadAll(r); string(rest) != "MQTT" {
				t.Errorf("%q is left to read", rest)
			}
		})
	}
}

func TestBadProxyHeaders(t *testing.T) {
	t.Parallel()
	with := func(at int, b byte) []byte {
		h := proxyFrom("192.0.2.7:1")
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
		"a Unix socket":           {proxyHeader(proxyProxy, 0x31, make([]byte, 216)), "0x31: only TCP"},
		"no family":               {proxyHeader(proxyProxy, 0, nil), "0x00: only TCP"},
		"too few for IPv4":        {proxyHeader(proxyProxy, proxyTCP4, make([]byte, 11)), "11 bytes are too few"},
		"too few for IPv6":        {proxyHeader(proxyProxy, proxyTCP6, make([]byte, 35)), "35 bytes are too few"},
		"half a TLV":              {proxyFrom("192.0.2.7:1", 3, 0), "a TLV is cut off"},
		"a TLV that is too long":  {proxyFrom("192.0.2.7:1", 3, 0, 2, 1), "a TLV is cut off"},
		"one more than the bound": {proxyFrom("192.0.2.7:1", append([]byte{0x04, 0x0F, 0xF2}, make([]byte, maxProxy-12-2)...)...), "4097 bytes, more than the 4096"},
		"a prefix that ends":      {proxySignature, "unexpected EOF"},
		"addresses that end":      {proxyFrom("192.0.2.7:1")[:20], "cut off"},
		"nothing":                 {nil, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := readProxyHeader(bytes.NewReader(test.header)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

// Whatever comes, no byte behind the header is read, and a client that is accepted has an
// address.
func FuzzProxyHeader(f *testing.F) {
	for _, seed := range [][]byte{
		proxyFrom("192.0.2.7:50000"), proxyFrom("[2001:db8::7]:1"), proxyFrom("192.0.2.7:1", 3, 0, 1, 9), proxyHeader(proxyLocal, 0, nil),
		[]byte("PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n"), proxySignature, {0x10},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		client, err := readProxyHeader(r)
		read := len(b) - r.Len()
		if read > proxyPrefix+maxProxy {
			t.Fatalf("%d bytes were read", read)
		}
		if err != nil {
			return
		}
		if want := proxyPrefix + int(binary.BigEndian.Uint16(b[14:])); read != want {
			t.Errorf("%d bytes were read of a header of %d", read, want)
		}
		if b[12] == proxyProxy && !client.IsValid() {
			t.Error("a client without an address")
		}
		if client.IsValid() && b[13] != proxyTCP4 && b[13] != proxyTCP6 {
			t.Error("an address of a family that is none")
		}
		if errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}
