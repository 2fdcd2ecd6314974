package mqtt

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// emptyUserProps is a property block of n user properties that are as short as they can be.
func emptyUserProps(n int) []byte { return bytes.Repeat([]byte{byte(PropUser), 0, 0, 0, 0}, n) }

// decodeBounded decodes a client's packet under bounds.
func decodeBounded(packet []byte, bounds Bounds) error {
	header, body := split(packet)
	switch t := TypeOf(header); t {
	case CONNECT:
		return (&Connect{Bounds: bounds}).Decode(body)
	case PUBLISH:
		return (&Publish{Bounds: bounds}).Decode(V5, header, body)
	case SUBSCRIBE:
		return (&Subscribe{Bounds: bounds}).Decode(V5, body)
	case UNSUBSCRIBE:
		return (&Unsubscribe{Bounds: bounds}).Decode(V5, body)
	case DISCONNECT:
		return (&Disconnect{Bounds: bounds}).Decode(V5, body)
	case AUTH:
		return (&Auth{Bounds: bounds}).Decode(V5, body)
	default:
		return (&Ack{Bounds: bounds}).Decode(V5, t, body)
	}
}

func wantQuota(t *testing.T, what string, err error) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != QuotaExceeded {
		t.Errorf("%s: got error %v, want %v", what, err, QuotaExceeded)
	}
}

// carriers are the packets from a client that may have user properties, each with n of them.
var carriers = map[string]func(n int) []byte{
	"CONNECT": func(n int) []byte {
		return AppendConnect(nil, &Connect{Version: V5, CleanStart: true, RequestProblemInfo: true, Raw: emptyUserProps(n)})
	},
	"will": func(n int) []byte {
		will := Will{Topic: []byte("t"), Props: PublishProps{Raw: emptyUserProps(n)}}
		return AppendConnect(nil, &Connect{Version: V5, CleanStart: true, RequestProblemInfo: true, HasWill: true, Will: will})
	},
	"CONNECT and will": func(n int) []byte {
		will := Will{Topic: []byte("t"), Props: PublishProps{Raw: emptyUserProps(n / 2)}}
		return AppendConnect(nil, &Connect{Version: V5, CleanStart: true, RequestProblemInfo: true, HasWill: true, Will: will, Raw: emptyUserProps(n - n/2)})
	},
	"PUBLISH": func(n int) []byte {
		return AppendPublish(nil, V5, &Publish{Topic: []byte("t"), Props: PublishProps{Raw: emptyUserProps(n)}})
	},
	"SUBSCRIBE": func(n int) []byte {
		return AppendSubscribe(nil, V5, &Subscribe{PacketID: 1, Subscriptions: []Subscription{{Filter: []byte("t")}}, Raw: emptyUserProps(n)})
	},
	"UNSUBSCRIBE": func(n int) []byte {
		return AppendUnsubscribe(nil, V5, &Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("t")}, Raw: emptyUserProps(n)})
	},
	"DISCONNECT": func(n int) []byte { return AppendDisconnect(nil, V5, &Disconnect{Raw: emptyUserProps(n)}) },
	"AUTH": func(n int) []byte {
		return AppendAuth(nil, &Auth{HasAuthMethod: true, AuthMethod: []byte("m"), Raw: emptyUserProps(n)})
	},
	"PUBACK": func(n int) []byte { return ackWith(PUBACK, n) },
	"PUBREC": func(n int) []byte { return ackWith(PUBREC, n) },
	"PUBREL": func(n int) []byte { return ackWith(PUBREL, n) },
	"PUBCOMP": func(n int) []byte {
		return ackWith(PUBCOMP, n)
	},
}

func ackWith(typ Type, userProps int) []byte {
	dst, packet := wire.OpenLength([]byte{typ.header()})
	dst = append(dst, 0, 1, byte(Success))
	dst, block := wire.OpenLength(dst)
	dst = append(dst, emptyUserProps(userProps)...)
	return wire.CloseLength(wire.CloseLength(dst, block), packet)
}

func TestUserPropertiesOfOnePacketAreBounded(t *testing.T) {
	t.Parallel()
	for name, with := range carriers {
		for _, bound := range []int{1, 1000} {
			if err := decodeBounded(with(bound), Bounds{UserProps: bound}); err != nil {
				t.Errorf("%s with %d user properties, as many as it may have: %v", name, bound, err)
			}
			wantQuota(t, name+" with one more than "+strconv.Itoa(bound), decodeBounded(with(bound+1), Bounds{UserProps: bound}))
		}
		if err := decodeBounded(with(2000), Bounds{}); err != nil {
			t.Errorf("%s without a bound: %v", name, err)
		}
	}
}

func filters(n int) (s Subscribe, u Unsubscribe) {
	s.PacketID, u.PacketID = 1, 1
	for i := range n {
		filter := strconv.AppendInt(nil, int64(i), 36)
		s.Subscriptions = append(s.Subscriptions, Subscription{Filter: filter})
		u.Filters = append(u.Filters, filter)
	}
	return s, u
}

func TestFiltersOfOnePacketAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 100
	s, u := filters(bound)
	for what, packet := range map[string][]byte{"SUBSCRIBE": AppendSubscribe(nil, V5, &s), "UNSUBSCRIBE": AppendUnsubscribe(nil, V5, &u)} {
		if err := decodeBounded(packet, Bounds{Filters: bound}); err != nil {
			t.Errorf("%s of as many filters as it may have: %v", what, err)
		}
		wantQuota(t, what+" of one more", decodeBounded(packet, Bounds{Filters: bound - 1}))
		if err := decodeBounded(packet, Bounds{}); err != nil {
			t.Errorf("%s without a bound: %v", what, err)
		}
	}
}

// A packet as large as it may be is refused at the bound: what follows isn't looked at, or its last byte, which is
// wrong, would be noticed; and nothing is allocated.
func TestRefusingTheLargestPacketCostsNothing(t *testing.T) {
	s, u := filters(478_374)
	packets := map[string][]byte{
		"PUBLISH":     carriers["PUBLISH"](838_840),
		"SUBSCRIBE":   AppendSubscribe(nil, V5, &s),
		"UNSUBSCRIBE": AppendUnsubscribe(nil, V5, &u),
	}
	for name, packet := range packets {
		packet[len(packet)-1] = 0xFF
		bounds := Bounds{UserProps: 1000, Filters: 20_000}
		header, body := split(packet)
		publish, subscribe, unsubscribe := Publish{Bounds: bounds}, Subscribe{Bounds: bounds}, Unsubscribe{Bounds: bounds}
		allocations := testing.AllocsPerRun(10, func() {
			var err error
			switch TypeOf(header) {
			case PUBLISH:
				err = publish.Decode(V5, header, body)
			case SUBSCRIBE:
				err = subscribe.Decode(V5, body)
			case UNSUBSCRIBE:
				err = unsubscribe.Decode(V5, body)
			}
			wantQuota(t, name, err)
		})
		if allocations > 1 { // by the test's errors.As
			t.Errorf("%s: %v allocations", name, allocations)
		}
		if n := cap(subscribe.Subscriptions) + cap(unsubscribe.Filters); n > 0 {
			t.Errorf("%s: room was made for %d filters", name, n)
		}
	}
}
