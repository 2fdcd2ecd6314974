package faultrun

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

// The timers of the shift (protocol, section 14). Each message orders three:
//
//   - a reminder, which is delivered soon: one more output;
//   - one that would say, much later, that the ledger has not booked the message: the ledger cancels
//     it;
//   - one that would say that the key is idle. It takes the place of that of the key's message
//     before, and its topic says how many those were.
//
// So at the end a timer of the last kind waits for each key, and no other. A message that is a
// dead letter may have set its timers or not, and may lack the ledger's cancel.
const (
	reminders = "reminders/" // begins topics
	overdue   = "overdue/"   // begins topics and IDs
	idle      = "idle/"      // begins topics and IDs

	longestReminder = 300 * time.Millisecond
	longTimer       = 24 * time.Hour
)

// timers are the timers that a message orders whose other outputs are like r.
func timers(rng *rand.Rand, r result) []consistent.Message {
	r.Which = 3
	reminder := consistent.JSON(reminders+r.Key, r)
	if in := rng.Int64N(int64(longestReminder)); rng.IntN(8) > 0 {
		reminder = consistent.After(time.Duration(in), reminder)
	} else {
		reminder = consistent.At(time.UnixMilli(1), reminder) // has passed: now
	}
	return []consistent.Message{
		reminder,
		consistent.After(longTimer, consistent.JSON(overdue+r.Key, r.ID)).WithTimerID(overdue + r.ID),
		consistent.After(longTimer, consistent.JSON(fmt.Sprint(idle, r.Key, "/", r.N), r.ID)).WithTimerID(idle + r.Key),
	}
}

// waiting awaits that every reminder was delivered, and lists the timers that wait.
func waiting(ctx context.Context, c *client.Client) (left []client.Timer, err error) {
	soon := 0
	err = poll(ctx, func() (bool, error) {
		left, soon = nil, 0
		for t, err := range c.Timers(ctx, "") {
			if err != nil {
				return false, err
			}
			if left = append(left, t); time.Until(t.Due) < longTimer/2 {
				soon++
			}
		}
		return soon == 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil // checkTimers says which
	}
	return left, err
}

// checkTimers checks which timers wait at the end.
func (e *evidence) checkTimers(dead map[string]bool, say func(string, ...any)) {
	last := make(map[string]string) // topics of the timers of keys
	for _, t := range e.timers {
		if id, is := strings.CutPrefix(t.ID, overdue); is {
			if !dead[id] {
				say("8: the ledger has cancelled the timer of message %s, and it waits", id)
			}
		} else if key, is := strings.CutPrefix(t.ID, idle); is {
			last[key] = t.Topic
		} else {
			say("8: a timer waits that was due at %v, with the topic %s and the ID %s", t.Due, t.Topic, t.ID)
		}
	}
	for key, s := range e.states {
		topic, there := last[key]
		delete(last, key)
		right, certain := false, false
		for n := len(s.Log) - 1; n >= 0 && !certain; n-- {
			right = right || topic == fmt.Sprint(idle, key, "/", n)
			certain = !dead[s.Log[n]]
		}
		// Where a handler changes its path, timers don't count in the order of its states
		// (docs/consistent-messaging.md).
		if certain && (!there || !right && e.path != Both) {
			say("8: the timer of key %s has the topic %q, and is not of the last message, the %dth", key, topic, len(s.Log))
		}
	}
	for key, topic := range last {
		say("8: the timer of key %s waits, with the topic %s, which has no state", key, topic)
	}
}
