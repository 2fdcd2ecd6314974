package rewrite

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/broker/reserved"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// MaxRules is how many rules there may be: a topic is compared with one after the other.
const MaxRules = 100

// What rules are for.
const (
	publishes uint8 = 1 << iota
	subscriptions
)

// rule is one rule: `[publish |subscribe ]FROM -> TO`.
type rule struct {
	forWhat uint8
	from    []string // levels of the filter
	to      []piece
}

// piece is a part of TO: a text, and after it what a wildcard of FROM stands for.
type piece struct {
	text     string
	wildcard int // from 1 on; 0: none follows
}

// Rules are rules in their order: the first that fits counts, once. They are not changed. Nil
// Rules change nothing.
type Rules struct{ all []rule }

const arrow = " -> "

// Parse reads rules; of none it gives nil.
func Parse(texts []string) (*Rules, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	if len(texts) > MaxRules {
		return nil, fmt.Errorf("there are %d rules, and there may be %d", len(texts), MaxRules)
	}
	r := new(Rules)
	for _, text := range texts {
		one, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		r.all = append(r.all, one)
	}
	return r, nil
}

func parse(text string) (r rule, err error) {
	from, to, found := strings.Cut(text, arrow)
	if !found {
		return r, errors.New("want FROM -> TO, for example old/+/# -> new/{1}/{2}")
	}
	r.forWhat = publishes | subscriptions
	if rest, is := strings.CutPrefix(from, "publish "); is {
		from, r.forWhat = rest, publishes
	} else if rest, is := strings.CutPrefix(from, "subscribe "); is {
		from, r.forWhat = rest, subscriptions
	}
	switch {
	case !utf8.ValidString(text) || !topic.ValidFilter(from):
		return r, fmt.Errorf("%q is no topic filter", from)
	case from[0] == '$':
		return r, errors.New("topics that begin with $ are the server's: they are not rewritten")
	case to == "" || strings.ContainsAny(to, "+#\x00") || len(to) > maxTo:
		return r, fmt.Errorf("%q is no topic with {1}, {2}, … in the places of wildcards: + and # stand on the left only", to)
	case to[0] == '$':
		return r, errors.New("topics that begin with $ are the server's: no other one is rewritten to them")
	}
	r.from = strings.Split(from, "/")
	wildcards := 0
	for _, level := range r.from {
		if level == "+" || level == "#" {
			wildcards++
		}
	}
	r.to, err = pieces(to, wildcards)
	return r, err
}

// maxTo is how many bytes TO may have.
const maxTo = 4096

// pieces splits TO at what stands for wildcards.
func pieces(to string, wildcards int) (all []piece, err error) {
	for to != "" {
		text, rest, found := strings.Cut(to, "{")
		if strings.Contains(text, "}") {
			return nil, errors.New("there is a } without a {")
		}
		if !found {
			return append(all, piece{text: text}), nil
		}
		number, after, closed := strings.Cut(rest, "}")
		n, err := strconv.Atoi(number)
		if !closed || err != nil || !units.IsDecimal(number) || n < 1 || n > wildcards {
			return nil, fmt.Errorf("{%s} stands for no wildcard: on the left there are %d, the first is {1}", number, wildcards)
		}
		all, to = append(all, piece{text, n}), after
	}
	return all, nil
}

// Publish gives the topic to which a message is published that a client has published to name.
// ok is false if that would be no valid topic, or one of those that begin with $. If no rule
// fits it returns name itself.
func (r *Rules) Publish(name []byte) (to []byte, ok bool) {
	if r == nil || len(name) == 0 || name[0] == '$' {
		return name, true
	}
	text, fits := r.apply(string(name), publishes)
	if !fits {
		return name, true
	}
	to = []byte(text)
	return to, topic.ValidName(to) && to[0] != '$'
}

// Rewrite puts the topic to which a message is published in the place of the one to which a
// client has published it, or says why it can't be published. It is never one that is reserved:
// a handler would take the message for a request of the client's.
func (r *Rules) Rewrite(name *[]byte, topics *reserved.Topics) (code mqtt.ReasonCode, reason string) {
	if r == nil {
		return mqtt.Success, ""
	}
	to, ok := r.Publish(*name)
	if !ok || string(to) != string(*name) && (topics.Handled(to) || topics.Protected(to)) {
		return mqtt.TopicNameInvalid, "the server rewrites this topic to one that is invalid or reserved"
	}
	*name = to
	return mqtt.Success, ""
}

// Subscribe gives the filter to which a client subscribes that has named this valid one; of a
// shared subscription its group stays. ok is as with Publish.
//
// A filter is compared with a rule level by level, as text: a + of the rule also stands for a +
// of the filter, but not for a #, for which only a # of the rule stands.
func (r *Rules) Subscribe(filter string) (to string, ok bool) {
	if r == nil {
		return filter, true
	}
	_, rest, shared, valid := topic.SplitShare(filter)
	if shared && !valid || rest == "" || rest[0] == '$' {
		return filter, true
	}
	text, fits := r.apply(rest, subscriptions)
	if !fits {
		return filter, true
	}
	return filter[:len(filter)-len(rest)] + text, topic.ValidFilter(text) && text[0] != '$'
}

// apply applies the first rule that fits.
func (r *Rules) apply(name string, forWhat uint8) (to string, fits bool) {
	levels := strings.Split(name, "/")
	for i := range r.all {
		if one := &r.all[i]; one.forWhat&forWhat != 0 {
			if captured, fits := one.match(levels); fits {
				return one.expand(captured), true
			}
		}
	}
	return "", false
}

// capture is what a wildcard stands for.
type capture struct {
	text   string
	absent bool // the level of the # is not there: a/# fits a
}

// match compares a name or a filter with FROM.
func (r *rule) match(levels []string) (captured []capture, fits bool) {
	for i, level := range r.from {
		switch {
		case level == "#":
			return append(captured, capture{strings.Join(levels[min(i, len(levels)):], "/"), i >= len(levels)}), true
		case i >= len(levels):
			return nil, false
		case level == "+" && levels[i] != "#":
			captured = append(captured, capture{text: levels[i]})
		case level != levels[i]:
			return nil, false
		}
	}
	return captured, len(levels) == len(r.from)
}

// expand makes TO of what the wildcards stand for.
func (r *rule) expand(captured []capture) string {
	var b strings.Builder
	for _, p := range r.to {
		text := p.text
		if p.wildcard > 0 && captured[p.wildcard-1].absent {
			text = strings.TrimSuffix(text, "/")
		}
		b.WriteString(text)
		if p.wildcard > 0 {
			b.WriteString(captured[p.wildcard-1].text)
		}
	}
	return b.String()
}
