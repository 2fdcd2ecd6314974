package mqtt

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// Each packet has its fuzz target: no body makes Decode panic, what it finds are views of the body, an error
// is an *Error with a reason, and what it accepts comes back the same from Append and Decode. The seeds are the
// vectors of the type, and what earlier runs found (testdata/fuzz).

func FuzzConnect(f *testing.F)     { fuzzPacket(f, CONNECT) }
func FuzzConnack(f *testing.F)     { fuzzPacket(f, CONNACK) }
func FuzzPublish(f *testing.F)     { fuzzPacket(f, PUBLISH) }
func FuzzAck(f *testing.F)         { fuzzPacket(f, PUBACK, PUBREC, PUBREL, PUBCOMP) }
func FuzzSubscribe(f *testing.F)   { fuzzPacket(f, SUBSCRIBE) }
func FuzzSuback(f *testing.F)      { fuzzPacket(f, SUBACK) }
func FuzzUnsubscribe(f *testing.F) { fuzzPacket(f, UNSUBSCRIBE) }
func FuzzUnsuback(f *testing.F)    { fuzzPacket(f, UNSUBACK) }
func FuzzDisconnect(f *testing.F)  { fuzzPacket(f, DISCONNECT) }
func FuzzAuth(f *testing.F)        { fuzzPacket(f, AUTH) }

func fuzzPacket(f *testing.F, types ...Type) {
	for _, b := range vectors() {
		if header, body, _, _, err := Split(b, 0); err == nil && slices.Contains(types, TypeOf(header)) {
			f.Add(header, body, true, false)
			f.Add(header, body, false, true)
		}
	}
	f.Fuzz(func(t *testing.T, header byte, body []byte, v5, fromServer bool) {
		if !slices.Contains(types, TypeOf(header)) {
			header = header&0x0F | byte(types[int(header>>4)%len(types)])<<4
		}
		if headerError(header) != nil { // Split has refused it
			header = TypeOf(header).header()
		}
		v := V311
		if v5 {
			v = V5
		}
		decoded, err := decodePacket(v, side(fromServer), header, slices.Clip(body))
		if err != nil {
			var refused *Error
			if !errors.As(err, &refused) || !refused.Code.Failed() || refused.Reason == "" {
				t.Errorf("error %v is no *Error with a failure and a reason", err)
			}
			return
		}
		requireViews(t, decoded, body)
		requireSame(t, v, side(fromServer), sendable(decoded), appendPacket(nil, v, decoded))
		if p, ok := decoded.(*Publish); ok {
			requireDelivered(t, v, p)
		}
	})
}

// sendable returns what can be appended of decoded: this program puts no user properties into acknowledgements.
func sendable(decoded any) any {
	switch p := decoded.(type) {
	case *typedAck:
		return &typedAck{p.Type, Ack{PacketID: p.PacketID, Code: p.Code, ReasonString: p.ReasonString}}
	case *Suback:
		return &Suback{PacketID: p.PacketID, Codes: p.Codes, ReasonString: p.ReasonString}
	case *Unsuback:
		return &Unsuback{PacketID: p.PacketID, Codes: p.Codes, ReasonString: p.ReasonString}
	}
	return decoded
}

// requireDelivered fails unless p arrives by AppendDelivery as it came, in its announced size.
func requireDelivered(t *testing.T, v Version, p *Publish) {
	t.Helper()
	d := Delivery{
		QoS: p.QoS, Dup: p.Dup, Retain: p.Retain, PacketID: p.PacketID, Topic: p.Topic, Payload: p.Payload,
		Alias: p.Props.TopicAlias, Expiry: p.Props.MessageExpiry, HasExpiry: p.Props.HasMessageExpiry,
		SubscriptionIDs: p.Props.SubscriptionIDs, Props: AppendForwardProps(nil, p.Props.Raw),
	}
	b := AppendDelivery(nil, v, &d)
	if n := DeliverySize(v, &d); n != len(b) {
		t.Errorf("DeliverySize %d, but AppendDelivery made %d bytes", n, len(b))
	}
	requireSame(t, v, server, p, b)
}

// vectors returns the bytes of all vectors, valid and invalid.
func vectors() (all [][]byte) {
	for _, c := range validPackets {
		all = append(all, packet(c.bytes))
	}
	for _, c := range invalidPackets {
		all = append(all, packet(c.bytes))
	}
	return all
}

func FuzzSplit(f *testing.F) {
	for _, b := range vectors() {
		f.Add(b, 0)
		f.Add(b, len(b)-1)
	}
	f.Fuzz(func(t *testing.T, b []byte, maxPacket int) {
		header, body, n, need, err := Split(b, maxPacket)
		switch {
		case err != nil:
			var refused *Error
			if !errors.As(err, &refused) || n != 0 || body != nil {
				t.Errorf("n %d, body %x with error %v", n, body, err)
			}
		case n == 0:
			if body != nil || need != 0 && need <= len(b) || maxPacket > 0 && need > maxPacket {
				t.Errorf("body %x, need %d of %d bytes, at most %d", body, need, len(b), maxPacket)
			}
		default:
			again := wire.AppendVarint([]byte{header}, uint32(len(body)))
			if n > len(b) || maxPacket > 0 && n > maxPacket || !bytes.Equal(append(again, body...), b[:n]) {
				t.Errorf("n %d, header %#x, body %x of %x", n, header, body, b)
			}
			// Every prefix of a whole packet asks for more, and never errs.
			for i := range min(n, 64) {
				if _, _, n, need, err := Split(b[:i], maxPacket); n != 0 || err != nil || need != 0 && need != len(again)+len(body) {
					t.Errorf("the first %d bytes: n %d, need %d, error %v", i, n, need, err)
				}
			}
		}
	})
}

// FuzzBlock gives the readers of property blocks what was never validated.
func FuzzBlock(f *testing.F) {
	f.Add(mixedBlock)
	f.Fuzz(func(t *testing.T, raw []byte) {
		pairs := 0
		for name, value := range UserProps(raw) {
			if pairs++; len(name)+len(value) > len(raw) {
				t.Errorf("name %q and value %q out of %d bytes", name, value, len(raw))
			}
			if _, ok := FindUserProp(raw, string(name)); !ok {
				t.Errorf("user property %q is not found", name)
			}
		}
		if kept := appendUserProps(nil, raw); (len(kept) == 0) != (pairs == 0) {
			t.Errorf("%d user properties in %x, kept %x", pairs, raw, kept)
		}
		if n := len(AppendForwardProps(nil, raw)); n > len(raw) {
			t.Errorf("%d bytes forwarded of %d", n, len(raw))
		}
	})
}
