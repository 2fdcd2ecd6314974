// Package delay reads what a PUBLISH says of its time: user properties by which a client has
// the server publish a message later, as a timer (protocol, section 14). Clients and the
// server share the names.
//
// It knows neither clocks nor connections.
package delay

import (
	"bytes"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// The user properties of a PUBLISH.
const (
	AfterProperty = "holdfast-deliver-after" // milliseconds from when the server reads the PUBLISH
	AtProperty    = "holdfast-deliver-at"    // milliseconds since the Unix epoch, or a time as RFC 3339 writes it
	IDProperty    = "holdfast-timer-id"      // names the timer; 1 to MaxID bytes

	// prefix begins the names of all of them.
	prefix = "holdfast-"
)

// MaxID is how many bytes the ID of a timer may have.
const MaxID = 256

// Request is what a PUBLISH asks for. The zero value asks for nothing: the message is
// published at once.
type Request struct {
	Asked    bool
	Relative bool   // Ms is an interval; otherwise a time
	Ms       int64  // milliseconds: an interval from 0 on, or a time since the Unix epoch, which may be long past
	ID       []byte // a view of the property; nil: the server gives one
}

// Parse reads a validated block of properties. reason says why it cannot be; empty: it can.
func Parse(raw []byte) (r Request, reason string) {
	if !bytes.Contains(raw, []byte(prefix)) { // nearly every publish
		return r, ""
	}
	return parse(mqtt.UserProps(raw))
}

// ParsePairs is Parse for the user properties of a message that a client is to send.
func ParsePairs[P ~struct{ Name, Value string }](pairs []P) (Request, string) {
	type pair = struct{ Name, Value string }
	if !slices.ContainsFunc(pairs, func(p P) bool { return pair(p).Name == AfterProperty || pair(p).Name == AtProperty }) {
		return Request{}, "" // nearly every message: it costs nothing
	}
	return parse(func(yield func(name, value []byte) bool) {
		for _, p := range pairs {
			if !yield([]byte(pair(p).Name), []byte(pair(p).Value)) {
				return
			}
		}
	})
}

func parse(properties iter.Seq2[[]byte, []byte]) (r Request, reason string) {
	named := false
	for name, value := range properties {
		switch string(name) {
		case AfterProperty, AtProperty:
			if r.Asked {
				return r, "of the user properties " + AfterProperty + " and " + AtProperty + " there may be one, once"
			}
			r.Asked, r.Relative = true, string(name) == AfterProperty
			var ok bool
			if r.Ms, ok = milliseconds(value); !ok && !r.Relative {
				r.Ms, ok = date(value)
			}
			if !ok && r.Relative {
				return r, "the user property " + AfterProperty + " must be a number of milliseconds from 0 on"
			}
			if !ok {
				return r, "the user property " + AtProperty + " must be milliseconds since the Unix epoch, or a time as RFC 3339 writes it"
			}
		case IDProperty:
			if named {
				reason = "the user property " + IDProperty + " may be there once"
			} else if len(value) == 0 || len(value) > MaxID {
				reason = "the user property " + IDProperty + " must have from 1 to " + strconv.Itoa(MaxID) + " bytes"
			}
			named, r.ID = true, value
		}
	}
	if !r.Asked { // the ID of a message that is published at once means nothing to the server
		return Request{}, ""
	}
	return r, reason
}

// milliseconds reads a decimal number without a sign.
func milliseconds(text []byte) (ms int64, ok bool) {
	for _, c := range text {
		digit := int64(c) - '0'
		if digit < 0 || digit > 9 || ms > (math.MaxInt64-digit)/10 {
			return 0, false
		}
		ms = ms*10 + digit
	}
	return ms, len(text) > 0
}

// maxDate is longer than any time that RFC 3339 describes, in bytes.
const maxDate = 64

func date(text []byte) (ms int64, ok bool) {
	if len(text) > maxDate {
		return 0, false
	}
	text = bytes.ToUpper(text) // T and Z may be lower case
	at, err := time.Parse(time.RFC3339, string(text))
	ok = err == nil && strictDate(text)
	return at.Add(time.Millisecond - 1).UnixMilli(), ok // not before a fraction of a millisecond
}

// strictDate refuses what time.Parse takes besides RFC 3339: an hour of one digit, a comma before
// the fraction, and an offset of a day or more, or with more than 59 minutes.
func strictDate(text []byte) bool {
	n := len(text)
	zone := text[n-1] == 'Z' || string(text[n-5:n-3]) < "24" && string(text[n-2:]) < "60"
	return text[13] == ':' && !bytes.Contains(text, []byte{','}) && zone
}

// AppendProps appends a block of properties without those that Parse obeys: they say when the
// message is to be published, and mean nothing to its subscribers, nor to another server to
// which a bridge passes it on.
func AppendProps(dst, raw []byte) []byte {
	return mqtt.AppendWithoutUserProps(dst, raw, AfterProperty, AtProperty)
}

// topicPrefix begins the topic $delayed/SECONDS/TOPIC.
const topicPrefix = "$delayed/"

// Of reads when a PUBLISH is to be published, by its topic or by its properties, and to which
// topic: a topic $delayed/SECONDS/TOPIC, which clients of EMQX use, stands for TOPIC. code and
// reason say why it is refused.
func Of(topic, raw []byte) (to []byte, r Request, code mqtt.ReasonCode, reason string) {
	asked, reason := Parse(raw)
	to, r, ok := SplitTopic(topic)
	switch {
	case !ok:
		return to, r, mqtt.TopicNameInvalid, "a topic below $delayed is $delayed/SECONDS/TOPIC"
	case r.Asked && asked.Asked:
		return to, r, mqtt.ImplementationSpecificError, "the topic and a user property both say when to deliver"
	case reason != "":
		return to, r, mqtt.ImplementationSpecificError, reason
	case asked.Asked:
		return to, asked, mqtt.Success, ""
	}
	return to, r, mqtt.Success, ""
}

// SplitTopic reads a topic of the form $delayed/SECONDS/TOPIC, which clients of EMQX use,
// and returns the topic to publish to, which is no such topic itself. ok: it has the form of
// another topic, or is well-formed.
func SplitTopic(topic []byte) (rest []byte, r Request, ok bool) {
	rest, found := bytes.CutPrefix(topic, []byte(topicPrefix))
	if !found {
		return topic, r, true
	}
	seconds, rest, found := bytes.Cut(rest, []byte{'/'})
	ms, ok := milliseconds(seconds)
	if !ok || !found || len(rest) == 0 || bytes.HasPrefix(rest, []byte(topicPrefix)) || ms > math.MaxInt64/1000 {
		return topic, r, false
	}
	return rest, Request{Asked: true, Relative: true, Ms: ms * 1000}, true
}
