package client

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/delay"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

// Timer is a message that the server delivers later (protocol, section 14).
type Timer struct {
	ID    string
	Due   time.Time // with milliseconds
	Topic string
}

// After returns the message with the request to deliver it after d, from when the server reads
// it; milliseconds count, and a negative d is 0. It replaces what an earlier After or At has
// asked for. The acknowledgement of the server says that the timer is on disk.
func (m Message) After(d time.Duration) Message {
	return m.timed(delay.AfterProperty, strconv.FormatInt(max(0, d.Milliseconds()), 10))
}

// At returns the message with the request to deliver it at a time; one that has passed is now.
// It replaces what an earlier After or At has asked for.
func (m Message) At(t time.Time) Message {
	ms := max(0, t.UnixMilli())
	if t.Unix() > math.MaxInt64/1000 { // no 64 bits have room for it: the server says how far off a time may be
		ms = math.MaxInt64
	}
	return m.timed(delay.AtProperty, strconv.FormatInt(ms, 10))
}

// WithTimerID returns the message with an ID of 1 to 256 bytes, by which [Client.CancelTimer]
// finds the timer. A message with the ID of a timer that waits takes its place: so one can be
// published again without being delivered twice.
func (m Message) WithTimerID(id string) Message {
	return m.with(UserProperty{delay.IDProperty, id}, delay.IDProperty)
}

func (m Message) timed(name, value string) Message {
	return m.with(UserProperty{name, value}, delay.AfterProperty, delay.AtProperty)
}

// with replaces properties by one.
func (m Message) with(p UserProperty, instead ...string) Message {
	others := slices.DeleteFunc(slices.Clone(m.UserProperties), func(old UserProperty) bool { return slices.Contains(instead, old.Name) })
	m.UserProperties = append(others, p)
	return m
}

// Timers lists the timers of the client's principal whose IDs begin with prefix, in the order
// of their IDs: messages that are to be delivered later. A timer that is set or ends meanwhile
// may or may not come. An error comes last. The client's timeout applies to each page if ctx
// has no deadline. An extension of Holdfast (protocol, section 14).
func (c *Client) Timers(ctx context.Context, prefix string) iter.Seq2[Timer, error] {
	return func(yield func(Timer, error) bool) {
		args := [][]byte{[]byte("TIMERS"), []byte(prefix)}
		for {
			r := newRequest("timers", prefix, args...)
			answer, err := c.do(ctx, r)
			var page []Timer
			var last []byte
			if err == nil {
				var ok bool
				if page, last, ok = timerPage(&answer); !ok {
					err = r.unexpected(&answer)
				}
			}
			if err != nil {
				yield(Timer{}, err)
				return
			}
			for _, t := range page {
				if !yield(t, nil) {
					return
				}
			}
			if last == nil {
				return
			}
			args = [][]byte{[]byte("TIMERS"), []byte(prefix), last}
		}
	}
}

// timerPage takes *1 *n timers and *2 *n timers $id apart; last is nil after the last page.
func timerPage(a *reply) (page []Timer, last []byte, ok bool) {
	if a.Kind != protocol.Array || len(a.Array) < 1 || len(a.Array) > 2 || a.Array[0].Kind != protocol.Array {
		return nil, nil, false
	}
	for i := range a.Array[0].Array {
		one := &a.Array[0].Array[i]
		if one.Kind != protocol.Array || len(one.Array) < 3 {
			return nil, nil, false
		}
		ms, err := strconv.ParseInt(string(one.Array[1].Blob), 10, 64)
		if err != nil {
			return nil, nil, false
		}
		page = append(page, Timer{ID: string(one.Array[0].Blob), Due: time.UnixMilli(ms), Topic: string(one.Array[2].Blob)})
	}
	if len(a.Array) == 2 {
		last = a.Array[1].Blob
		return page, last, last != nil
	}
	return page, nil, true
}

// CancelTimer cancels the timer of the client's principal with this ID. found is false if there
// is none: its message was delivered, or it was never set. A timer is either cancelled or
// delivered. An error that is [ErrUnknownOutcome] means that it may have been cancelled; to
// cancel it again is safe. An extension of Holdfast (protocol, section 14).
func (c *Client) CancelTimer(ctx context.Context, id string) (found bool, err error) {
	r := newRequest("cancel", id, []byte("CANCEL"), []byte(id))
	r.write = true
	if len(id) == 0 || len(id) > delay.MaxID {
		return false, r.fail(fmt.Errorf("%w: the ID of a timer has from 1 to %d bytes", ErrInvalidOption, delay.MaxID), false)
	}
	answer, err := c.do(ctx, r)
	if err != nil {
		return false, err
	}
	if answer.Kind != protocol.Int || answer.Int < 0 || answer.Int > 1 {
		return false, r.unexpected(&answer)
	}
	return answer.Int == 1, nil
}
