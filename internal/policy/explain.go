package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// Question is whether a client may do something.
type Question struct {
	Action Action
	Name   string // the topic, topic filter or key; nothing for Connect
}

// Action is what a client wants to do.
type Action string

// The actions.
const (
	ToConnect   Action = "connect"
	ToPublish   Action = "publish"
	ToSubscribe Action = "subscribe"
	ToRead      Action = "read"
	ToWrite     Action = "write"
)

// Explanation is the answer to a Question, and what it follows from.
type Explanation struct {
	Allowed bool
	Lines   []string // the first says it, the others why
}

// maxNear is how many rules that come near an explanation names.
const maxNear = 10

// Explain answers a question about a client as a Guard with this policy does. It names the
// rule that decides, or those that come near.
func (p *Policy) Explain(id *access.Identity, q Question) Explanation {
	what := string(q.Action)
	if q.Action != ToConnect {
		what += " " + strconv.Quote(q.Name)
	}
	if rule, why := p.deciding(id, q); rule != nil {
		return Explanation{true, []string{"allowed: " + what, p.call(rule) + ", which is for " + p.applies(rule, id) + ", allows it: " + why}}
	}
	e := Explanation{false, []string{"denied: " + what + ": no rule allows it"}}
	for i := range p.rules {
		if near := p.near(&p.rules[i], id, q); near != "" {
			if len(e.Lines) > maxNear {
				e.Lines = append(e.Lines, "there are more rules that come near")
				break
			}
			e.Lines = append(e.Lines, p.call(&p.rules[i])+near)
		}
	}
	return e
}

// call names a rule: by its number, as a person counts, and by its line.
func (p *Policy) call(r *rule) string {
	for i := range p.rules {
		if &p.rules[i] == r {
			return fmt.Sprintf("rule %d (%s:%d)", i+1, p.File, r.line)
		}
	}
	return "a rule"
}

// applies says by what a rule is for the client; empty: it isn't.
func (p *Policy) applies(r *rule, id *access.Identity) string {
	by, _ := r.principals.named(id, func(group string) bool {
		for i := range p.groups {
			if p.groups[i].name == group {
				_, ok := p.groups[i].principals.named(id, nil)
				return ok
			}
		}
		return false
	})
	return by
}

// deciding gives the first rule that allows what is asked, and by what.
func (p *Policy) deciding(id *access.Identity, q Question) (r *rule, why string) {
	rules, _ := p.rulesOf(id)
	for _, n := range rules {
		r := &p.rules[n]
		for _, one := range r.patterns(q.Action) {
			if one.allows(id, q) {
				return r, one.String()
			}
		}
	}
	return nil, ""
}

// aPattern is one of the three kinds of patterns, to be explained.
type aPattern struct {
	topic *topicPattern
	key   *keyPattern
	text  string // of a key without tokens or wildcards, or of what needs no pattern
	line  int
	any   bool // needs no pattern
}

func (a aPattern) String() string {
	switch {
	case a.any:
		return a.text + " on line " + strconv.Itoa(a.line)
	case a.topic != nil:
		return strconv.Quote(a.topic.text) + " on line " + strconv.Itoa(a.topic.line)
	case a.key != nil:
		return strconv.Quote(a.key.text) + " on line " + strconv.Itoa(a.key.line)
	}
	return strconv.Quote(a.text) + " on line " + strconv.Itoa(a.line)
}

// patterns are those that a rule has for an action.
func (r *rule) patterns(a Action) (list []aPattern) {
	topics := func(resources []topicResource) {
		for i := range resources {
			for _, p := range resources[i].topics {
				list = append(list, aPattern{topic: p})
			}
		}
	}
	switch a {
	case ToConnect:
		for i := range r.connect {
			if r.connect[i].clientIDs == nil {
				list = append(list, aPattern{text: "Connect", line: r.connect[i].line, any: true})
			}
			for _, p := range r.connect[i].clientIDs {
				list = append(list, aPattern{key: p})
			}
		}
	case ToPublish:
		topics(r.publish)
	case ToSubscribe:
		topics(r.subscribe)
	default:
		for i := range r.keys {
			res := &r.keys[i]
			if a == ToRead && !res.read || a == ToWrite && !res.write {
				continue
			}
			for key, line := range res.exact {
				list = append(list, aPattern{text: key, line: line})
			}
			for _, p := range res.patterns {
				list = append(list, aPattern{key: p})
			}
		}
	}
	return list
}

// allows says whether the pattern, with the client's values, allows what is asked.
func (a aPattern) allows(id *access.Identity, q Question) bool {
	name := q.Name
	if q.Action == ToConnect {
		name = id.ClientID
	}
	switch {
	case a.any:
		return true
	case a.topic != nil:
		bound := a.topic.bind(id)
		return bound != nil && bound.covers([]byte(name))
	case a.key != nil:
		bound := a.key.bindKey(id)
		return bound != nil && bound.match.matches([]byte(name))
	}
	return a.text == name
}

// usable says whether the pattern, if it has tokens, allows the client anything.
func (a aPattern) usable(id *access.Identity) bool {
	return (a.topic == nil || a.topic.bind(id) != nil) && (a.key == nil || a.key.bindKey(id) != nil)
}

// near says why a rule doesn't allow what is asked; empty: it has nothing to do with it.
func (p *Policy) near(r *rule, id *access.Identity, q Question) string {
	patterns := r.patterns(q.Action)
	if len(patterns) == 0 {
		return ""
	}
	if p.applies(r, id) == "" {
		for _, one := range patterns {
			if one.allows(id, q) {
				return " would allow it by " + one.String() + ", but is not for this client: it is for " + r.principals.describe()
			}
		}
		return ""
	}
	var why []string
	for _, one := range patterns {
		switch {
		case len(why) == maxNear:
		case one.usable(id):
			why = append(why, one.String())
		default:
			why = append(why, one.String()+" (which allows this client nothing: its value for the token is missing, or has a character that could reach further)")
		}
	}
	if more := len(patterns) - len(why); more > 0 {
		why = append(why, fmt.Sprintf("and %d more", more))
	}
	return " is for this client, and allows to " + string(q.Action) + " only: " + strings.Join(why, ", ")
}

// describe names the first of the principals.
func (w *principals) describe() string {
	var names []string
	add := func(kind string, items []item) {
		for i, one := range items {
			if i == 3 {
				names = append(names, fmt.Sprintf("%d more", len(items)-i))
				return
			}
			names = append(names, kind+" "+strconv.Quote(one.text))
		}
	}
	add("client ID", w.clientIDs)
	add("user name", w.usernames)
	for _, a := range w.attributes {
		var all []string
		for _, one := range a.list {
			all = append(all, one.name+"="+strconv.Quote(one.value))
		}
		names = append(names, "attributes "+strings.Join(all, " and "))
	}
	if w.anonymous {
		names = append(names, "clients without a user name")
	}
	add("group", w.groups)
	return strings.Join(names, ", ")
}

// Rules and Groups are how many of them there are.
func (p *Policy) Rules() int { return len(p.rules) }

func (p *Policy) Groups() int { return len(p.groups) }
