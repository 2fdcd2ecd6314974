package mqtt

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
)

// Subscription is one topic filter of a SUBSCRIBE with its options.
type Subscription struct {
	Filter            []byte
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte // 0: send retained messages, 1: only for a new subscription, 2: never
}

// Subscribe is a SUBSCRIBE packet. Its slices are views of the body; Subscriptions' array is reused by the next
// Decode.
type Subscribe struct {
	PacketID       uint16
	SubscriptionID uint32 // 0: none
	Subscriptions  []Subscription
	Raw            []byte // the property block
	Bounds         Bounds
}

// Decode decodes a SUBSCRIBE. It overwrites all of s but its Bounds. Filters are well-formed strings, but whether they are
// valid filters is the caller's to judge, because the answer is given for each of them.
func (s *Subscribe) Decode(v Version, body []byte) error {
	return asError(s.decode(v, body))
}

func (s *Subscribe) decode(v Version, body []byte) *Error {
	*s = Subscribe{Subscriptions: s.Subscriptions[:0], Bounds: s.Bounds}
	id, rest, err := cutPacketID(body)
	if err != nil {
		return err
	}
	s.PacketID = id
	if v >= V5 {
		if s.Raw, rest, err = cutBlock(rest); err != nil {
			return err
		}
		r := propReader{rest: s.Raw, allowed: subscribeProps, userLeft: s.Bounds.userPropsLeft()}
		for r.next() {
			if r.id == PropSubscriptionID {
				s.SubscriptionID = r.num
			}
		}
		if r.err != nil {
			return r.err
		}
	}
	if len(rest) == 0 { // [MQTT-3.8.3-2]
		return errNoFilters
	}
	n, err := s.Bounds.countFilters(rest, 1)
	if err != nil {
		return err
	}
	s.Subscriptions = slices.Grow(s.Subscriptions, n)
	for len(rest) > 0 {
		var sub Subscription
		if sub.Filter, rest, err = cutString(rest); err != nil {
			return err
		}
		if len(rest) == 0 {
			return errShort
		}
		if err = sub.setOptions(v, rest[0]); err != nil {
			return err
		}
		rest = rest[1:]
		s.Subscriptions = append(s.Subscriptions, sub)
	}
	return nil
}

func (s *Subscription) setOptions(v Version, options byte) *Error {
	s.QoS = options & 0x03
	s.NoLocal = options&0x04 != 0
	s.RetainAsPublished = options&0x08 != 0
	s.RetainHandling = options >> 4 & 0x03
	switch {
	case v < V5 && (options&0xFC != 0 || s.QoS == 3): // MQTT 3.1.1 [MQTT-3.8.3-4]
		return errSubscribeReserved
	case options&0xC0 != 0: // [MQTT-3.8.3-5]
		return errSubscribeReserved
	case s.QoS == 3:
		return errSubscribeQoS
	case s.RetainHandling == 3:
		return errRetainHandling
	case s.NoLocal && isShared(s.Filter): // [MQTT-3.8.3-4]
		return errNoLocalShared
	}
	return nil
}

func isShared(filter []byte) bool {
	const prefix = "$share/"
	return len(filter) >= len(prefix) && string(filter[:len(prefix)]) == prefix
}

func (s *Subscription) options(v Version) byte {
	if v < V5 {
		return s.QoS
	}
	options := s.QoS | s.RetainHandling<<4
	if s.NoLocal {
		options |= 0x04
	}
	if s.RetainAsPublished {
		options |= 0x08
	}
	return options
}

// AppendSubscribe appends s.
func AppendSubscribe(dst []byte, v Version, s *Subscribe) []byte {
	dst = append(dst, SUBSCRIBE.header())
	dst, packet := wire.OpenLength(dst)
	dst = wire.AppendUint16(dst, s.PacketID)
	if v >= V5 {
		var block int
		dst, block = wire.OpenLength(dst)
		if s.SubscriptionID != 0 {
			dst = AppendVarintProp(dst, PropSubscriptionID, s.SubscriptionID)
		}
		dst = appendUserProps(dst, s.Raw)
		dst = wire.CloseLength(dst, block)
	}
	for i := range s.Subscriptions {
		sub := &s.Subscriptions[i]
		dst = wire.AppendText(dst, sub.Filter)
		dst = append(dst, sub.options(v))
	}
	return wire.CloseLength(dst, packet)
}

// Unsubscribe is an UNSUBSCRIBE packet. Its slices are views of the body; Filters' array is reused by the next
// Decode.
type Unsubscribe struct {
	PacketID uint16
	Filters  [][]byte
	Raw      []byte // the property block
	Bounds   Bounds
}

// Decode decodes an UNSUBSCRIBE. It overwrites all of u but its Bounds. As in SUBSCRIBE, whether the filters are valid is the
// caller's to judge.
func (u *Unsubscribe) Decode(v Version, body []byte) error {
	return asError(u.decode(v, body))
}

func (u *Unsubscribe) decode(v Version, body []byte) *Error {
	*u = Unsubscribe{Filters: u.Filters[:0], Bounds: u.Bounds}
	id, rest, err := cutPacketID(body)
	if err != nil {
		return err
	}
	u.PacketID = id
	if v >= V5 {
		if u.Raw, rest, err = cutBlock(rest); err != nil {
			return err
		}
		r := propReader{rest: u.Raw, allowed: userPropsOnly, userLeft: u.Bounds.userPropsLeft()}
		for r.next() { // only to validate
			continue
		}
		if r.err != nil {
			return r.err
		}
	}
	if len(rest) == 0 { // [MQTT-3.10.3-2]
		return errNoFilters
	}
	n, err := u.Bounds.countFilters(rest, 0)
	if err != nil {
		return err
	}
	u.Filters = slices.Grow(u.Filters, n)
	for len(rest) > 0 {
		var filter []byte
		if filter, rest, err = cutString(rest); err != nil {
			return err
		}
		u.Filters = append(u.Filters, filter)
	}
	return nil
}

// AppendUnsubscribe appends u.
func AppendUnsubscribe(dst []byte, v Version, u *Unsubscribe) []byte {
	dst = append(dst, UNSUBSCRIBE.header())
	dst, packet := wire.OpenLength(dst)
	dst = wire.AppendUint16(dst, u.PacketID)
	if v >= V5 {
		var block int
		dst, block = wire.OpenLength(dst)
		dst = appendUserProps(dst, u.Raw)
		dst = wire.CloseLength(dst, block)
	}
	for _, filter := range u.Filters {
		dst = wire.AppendText(dst, filter)
	}
	return wire.CloseLength(dst, packet)
}
