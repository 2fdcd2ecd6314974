package fronts

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
)

// What a front of another release says of a client is what the files have. A certificate is in it as it is in
// the handshake, behind two bytes with its length.
func TestFormsOfAbout(t *testing.T) {
	t.Parallel()
	onTheWire := goldenfile.Exchanged("give the protocol between fronts and nodes another version (internal/mux/newest.go and greet.go), and write and read the former form on a link of the former version")
	onTheWire.Check(t, "magic", []byte(Magic))
	for name, want := range map[string]About{
		"client with IPv4": {1, "mqtts", netip.MustParseAddrPort("192.0.2.7:50000"), nil},
		"client with IPv6": {2, "ws", netip.MustParseAddrPort("[2001:db8::7]:50000"), nil},
	} {
		written, err := want.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseAbout(onTheWire.Check(t, name, written)); err != nil || !reflect.DeepEqual(got, want) {
			onTheWire.Differs(t, name, []any{got, err}, want)
		}
	}
}
