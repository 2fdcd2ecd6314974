package rows

import (
	"encoding/binary"
	"fmt"
)

// Visitor takes the broker's rows, one at a time. An error says that a row makes no
// sense. What it is given are views that are valid during the call.
type Visitor interface {
	Session(client string, s Session) error
	Subscription(sid uint64, s Subscription) error
	Group(group string, sid uint64) error
	Payload(n uint64, m Message) error
	Queued(sid, seq uint64, q *Queued) error
	Received(sid uint64, id uint16) error
	Owed(sid, n uint64, o Owed) error
	Retained(topic string, r *Retained) error
	Will(n uint64, w *Will) error
}

// Iterate calls visit with each row from a key up to another, in the order of keys,
// until it says false. It is a method of the journal.
type Iterate func(from, to []byte, visit func(key, value []byte) bool) error

// Visit gives all rows to v, owners before what they own. It calls bad for each that
// can't be decoded or makes no sense, and stops if that says false. The errors that it
// gives are of reading; the rows of other kinds are visited all the same.
func Visit(v Visitor, iterate Iterate, bad func(key []byte, what string) bool) (errs []error) {
	stopped := false
	for _, part := range []struct {
		kind  Kind
		what  string
		visit func(key, value []byte) error // key without the kind
	}{
		{SessionKind, "session", func(key, value []byte) error {
			s, err := decodeSession(value)
			if err != nil {
				return err
			}
			return v.Session(string(key), s)
		}},
		{SubscriptionKind, "subscription", func(key, value []byte) error {
			sid, s, err := decodeSubscription(key, value)
			if err != nil {
				return err
			}
			return v.Subscription(sid, s)
		}},
		{GroupKind, "shared subscription", func(key, value []byte) error {
			sid, err := decodeGroup(value)
			if err != nil {
				return err
			}
			return v.Group(string(key), sid)
		}},
		{PayloadKind, "message", func(key, value []byte) error {
			m, err := DecodePayload(value)
			if err != nil || len(key) != 8 {
				return errRow
			}
			return v.Payload(number(key), m)
		}},
		{QueuedKind, "queued message", func(key, value []byte) error {
			q, err := DecodeQueued(value)
			if err != nil || len(key) != 16 {
				return errRow
			}
			return v.Queued(number(key), number(key[8:]), &q)
		}},
		{ReceivedKind, "received packet identifier", func(key, _ []byte) error {
			if len(key) != 10 {
				return errRow
			}
			return v.Received(number(key), binary.BigEndian.Uint16(key[8:]))
		}},
		{OwedKind, "retained messages owed", func(key, value []byte) error {
			sid, n, o, err := decodeOwed(key, value)
			if err != nil {
				return err
			}
			return v.Owed(sid, n, o)
		}},
		{RetainedKind, "retained message", func(key, value []byte) error {
			r, err := decodeRetained(value)
			if err != nil {
				return err
			}
			return v.Retained(string(key), &r)
		}},
		{WillKind, "will", func(key, value []byte) error {
			n, w, err := decodeWill(key, value)
			if err != nil {
				return err
			}
			return v.Will(n, &w)
		}},
	} {
		err := iterate([]byte{byte(part.kind), '|'}, []byte{byte(part.kind), '|' + 1}, func(key, value []byte) bool {
			if err := part.visit(key[2:], value); err != nil {
				stopped = !bad(key, fmt.Sprintf("%s with key %q: %v", part.what, key[2:], err))
			}
			return !stopped
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%ss: %w", part.what, err))
		}
		if stopped {
			break
		}
	}
	return errs
}
