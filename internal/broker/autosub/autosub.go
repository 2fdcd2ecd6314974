package autosub

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/glob"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// MaxRules is how many rules there may be: each connection looks at all of them.
const MaxRules = 100

// The tokens of the policy that may be levels of a filter.
const (
	clientID = "{principal.clientId}"
	username = "{principal.username}"
	opening  = "{principal."
)

// Rules are automatic subscriptions. They are not changed. Nil Rules are none.
type Rules struct{ all []rule }

// rule is one rule: FILTER [qos=N] [no-local] [retain-as-published] [retain-handling=N]
// [clients=PATTERN].
type rule struct {
	subscription mqtt.Subscription // whose filter has tokens, if tokens says so
	tokens       bool
	pattern      string // of client identifiers; empty: all of them
	clients      glob.Glob
}

// Parse reads rules; of none it gives nil.
func Parse(texts []string) (*Rules, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	if len(texts) > MaxRules {
		return nil, fmt.Errorf("there are %d automatic subscriptions, and there may be %d", len(texts), MaxRules)
	}
	r := new(Rules)
	for _, text := range texts {
		one, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		if slices.ContainsFunc(r.all, func(other rule) bool {
			return string(other.subscription.Filter) == string(one.subscription.Filter) && other.pattern == one.pattern
		}) {
			return nil, fmt.Errorf("%q: an automatic subscription before it has the same filter and the same clients; leave out one of them", text)
		}
		r.all = append(r.all, one)
	}
	return r, nil
}

const want = "want FILTER, and behind it, each with a space before it and once: qos=0, qos=1 or qos=2; no-local; retain-as-published; retain-handling=0, 1 or 2; clients=PATTERN. A filter with a space is to be in double quotes"

func parse(text string) (r rule, err error) {
	filter, rest, _ := strings.Cut(text, " ")
	if strings.HasPrefix(text, `"`) {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			return r, errors.New("the filter begins with a double quote and does not end with one: " + want)
		}
		rest = text[len(quoted):]
		if filter, err = strconv.Unquote(quoted); err != nil || rest != "" && rest[0] != ' ' {
			return r, errors.New("there is no space behind the filter: " + want)
		}
	}
	r.subscription = mqtt.Subscription{Filter: []byte(filter), RetainHandling: 1}
	seen := make(map[string]bool)
	for option := range strings.FieldsSeq(rest) {
		name, value, _ := strings.Cut(option, "=")
		if seen[name] || !r.set(name, value, option) {
			return r, fmt.Errorf("%q: %s", option, want)
		}
		seen[name] = true
	}
	if r.pattern != "" {
		if r.clients, err = glob.Compile([]byte(r.pattern)); err != nil {
			return r, fmt.Errorf("clients=%s is no pattern: want client identifiers with *, ? and [a-z] in them", r.pattern)
		}
	}
	return r, r.checkFilter(filter)
}

// set takes one option, and says whether it is one.
func (r *rule) set(name, value, option string) bool {
	s := &r.subscription
	switch name {
	case "qos":
		return level(&s.QoS, value)
	case "retain-handling":
		return level(&s.RetainHandling, value)
	case "clients":
		r.pattern = value
		return value != ""
	}
	s.NoLocal = s.NoLocal || option == "no-local"
	s.RetainAsPublished = s.RetainAsPublished || option == "retain-as-published"
	return option == "no-local" || option == "retain-as-published"
}

// level reads a number from 0 to 2.
func level(to *byte, text string) bool {
	if len(text) != 1 || text[0] < '0' || text[0] > '2' {
		return false
	}
	*to = text[0] - '0'
	return true
}

func (r *rule) checkFilter(filter string) error {
	_, rest, shared, _ := topic.SplitShare(filter)
	for l := range strings.SplitSeq(filter, "/") {
		switch {
		case l == clientID || l == username:
			r.tokens = true
		case strings.Contains(l, clientID) || strings.Contains(l, username):
			return fmt.Errorf("in %q a token is a part of a level: it must be a level by itself", l)
		case strings.Contains(l, opening):
			return fmt.Errorf("%q is no token that a filter may have: want %s or %s", l, clientID, username)
		}
	}
	switch {
	case !utf8.ValidString(filter) || !topic.ValidSubscription(filter):
		return fmt.Errorf("%q is no topic filter", filter)
	case shared && r.subscription.NoLocal:
		return errors.New("a shared subscription cannot have no-local [MQTT-3.8.3-4]")
	case shared && strings.Contains(filter[:len(filter)-len(rest)], opening):
		return errors.New("a token cannot be the group of a shared subscription: a group of one client shares nothing")
	}
	return nil
}

// Of gives the subscriptions of a client, each filter once: the first rule counts. user is the
// user name that it has proven; empty: none. unfit are the filters that its names do not fit
// in: what a token stands for is one level, and never a pattern.
func (r *Rules) Of(client, user string) (all []mqtt.Subscription, unfit []string) {
	if r == nil {
		return nil, nil
	}
	for i := range r.all {
		one := &r.all[i]
		if one.pattern != "" && !one.clients.Match([]byte(client)) {
			continue
		}
		s := one.subscription
		if one.tokens {
			filter, fits := expand(string(s.Filter), client, user)
			if !fits {
				unfit = append(unfit, string(s.Filter))
				continue
			}
			s.Filter = []byte(filter)
		}
		if !slices.ContainsFunc(all, func(other mqtt.Subscription) bool { return string(other.Filter) == string(s.Filter) }) {
			all = append(all, s)
		}
	}
	return all, unfit
}

// expand puts the client's names in the place of the tokens. A name with a separator or a
// wildcard would reach what is meant for other clients, and one that begins with $ would make
// another kind of filter as the first level; fits is false for these, for a name that the client
// does not have, and if no valid filter comes of it.
func expand(filter, client, user string) (expanded string, fits bool) {
	levels := strings.Split(filter, "/")
	for i, l := range levels {
		name := ""
		switch l {
		case clientID:
			name = client
		case username:
			name = user
		default:
			continue
		}
		if name == "" || name[0] == '$' || strings.ContainsAny(name, "/+#\x00") {
			return "", false
		}
		levels[i] = name
	}
	expanded = strings.Join(levels, "/")
	return expanded, topic.ValidSubscription(expanded)
}
