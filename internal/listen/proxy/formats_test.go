package proxy

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// A node of another release says of a client that it passes on what the files have.
func TestFormsOfHeaders(t *testing.T) {
	t.Parallel()
	onTheWire := goldenfile.Exchanged("write the former header, with the new bytes in a TLV of another type, which the program of before skips, or give connections with the new form another magic (package replica/clients), take both, and begin them with the former one until the cluster has a format level, which you raise (internal/replica/members/level.go), that says that all nodes know the other")
	for _, test := range []struct{ name, client, server string }{
		{"header of a client with IPv4", "192.0.2.7:50000", "192.0.2.1:7001"},
		{"header of a client with IPv6", "[2001:db8::7]:50000", "192.0.2.1:7001"},
	} {
		want := Header{netip.MustParseAddrPort(test.client), 2}
		written := onTheWire.Check(t, test.name, Append(nil, want, netip.MustParseAddrPort(test.server)))
		if got, err := Read(bytes.NewReader(written)); err != nil || got != want {
			onTheWire.Differs(t, test.name, []any{got, err}, want)
		}
	}
}
