package policy

import (
	"strconv"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// Policy is what a policy file says. It doesn't change; its methods are safe for
// concurrent use.
type Policy struct {
	File     string
	Warnings []Problem // what is allowed and looks like a mistake

	rules  []rule
	groups []group
	open   bool // clients without rules of their own may do everything (Open)

	// Which rules and groups may apply to a client: those that name its client ID, its
	// user name, one of its attributes, a group that it is in, or no principals at all.
	byClient, byUser index
	byAttribute      map[attribute][]subject
	byGroup          map[string][]int32 // rules
	anonymous        []subject
	everyClient      []int32 // rules
}

// index has the rules and groups that name a client ID or a user name.
type index map[string][]subject

// subject is a rule or a group that principals belong to.
type subject struct {
	number int32
	group  bool
}

type attribute struct{ name, value string }

// rule is an item of rules:.
type rule struct {
	line       int
	principals *principals // nil: every client
	connect    []connectResource
	publish    []topicResource
	subscribe  []topicResource
	keys       []keyResource
}

// group is an item of groups:.
type group struct {
	name       string
	line       int
	principals principals
	quotas     *quotas // nil: none
	used       bool
}

// principals are clients. One that any of the lists names is among them.
type principals struct {
	clientIDs, usernames []item
	attributes           []attributes
	anonymous            bool // those without a user name
	groups               []item
}

// attributes are those that a client must have, all of them.
type attributes struct {
	line int
	list []attribute // never empty
}

type connectResource struct {
	line      int
	clientIDs []*keyPattern // nil: every client ID
}

type topicResource struct {
	line   int
	topics []*topicPattern
}

type keyResource struct {
	line        int
	read, write bool
	exact       map[string]int // keys without tokens, and their lines
	patterns    []*keyPattern
}

// buildIndex fills the maps by which rulesOf finds a client's rules.
func (p *Policy) buildIndex() {
	p.byClient, p.byUser = index{}, index{}
	p.byAttribute, p.byGroup = map[attribute][]subject{}, map[string][]int32{}
	add := func(who *principals, s subject) {
		for _, one := range who.clientIDs {
			p.byClient[one.text] = append(p.byClient[one.text], s)
		}
		for _, one := range who.usernames {
			p.byUser[one.text] = append(p.byUser[one.text], s)
		}
		if who.anonymous {
			p.anonymous = append(p.anonymous, s)
		}
		for _, a := range who.attributes {
			p.byAttribute[a.list[0]] = append(p.byAttribute[a.list[0]], s)
		}
	}
	for i := range p.groups {
		add(&p.groups[i].principals, subject{int32(i), true})
	}
	for i := range p.rules {
		n := int32(i)
		who := p.rules[i].principals
		if who == nil {
			p.everyClient = append(p.everyClient, n)
			continue
		}
		add(who, subject{n, false})
		for _, one := range who.groups {
			p.byGroup[one.text] = append(p.byGroup[one.text], n)
		}
	}
}

// has says whether a client has all of the attributes.
func (a *attributes) has(id *access.Identity) bool {
	for _, one := range a.list {
		if value, ok := id.Attributes[one.name]; !ok || value != one.value {
			return false
		}
	}
	return true
}

// named says by what the principals name the client, or that they don't. in says whether
// it is in a group.
func (w *principals) named(id *access.Identity, in func(group string) bool) (by string, ok bool) {
	if w == nil {
		return "every client", true
	}
	for _, one := range w.clientIDs {
		if id.ClientID != "" && one.text == id.ClientID {
			return "client ID " + strconv.Quote(one.text), true
		}
	}
	for _, one := range w.usernames {
		if id.Username != "" && one.text == id.Username {
			return "user name " + strconv.Quote(one.text), true
		}
	}
	for i := range w.attributes {
		if w.attributes[i].has(id) {
			a := w.attributes[i].list[0]
			return "attribute " + a.name + "=" + strconv.Quote(a.value), true
		}
	}
	if w.anonymous && id.Username == "" {
		return "clients without a user name", true
	}
	for _, one := range w.groups {
		if in(one.text) {
			return "group " + strconv.Quote(one.text), true
		}
	}
	return "", false
}

// rulesOf gives the numbers of the rules that apply to the client, and of the groups that
// it is in, in their order.
func (p *Policy) rulesOf(id *access.Identity) (rules, groups []int32) {
	found := map[int32]bool{}
	in := map[int32]bool{}
	take := func(subjects []subject) {
		for _, s := range subjects {
			if s.group {
				in[s.number] = true
			} else {
				found[s.number] = true
			}
		}
	}
	if id.ClientID != "" {
		take(p.byClient[id.ClientID])
	}
	if id.Username != "" {
		take(p.byUser[id.Username])
	} else {
		take(p.anonymous)
	}
	for name, value := range id.Attributes {
		for _, s := range p.byAttribute[attribute{name, value}] {
			if p.principalsOf(s).hasAttributes(id) {
				take([]subject{s})
			}
		}
	}
	for g := range in {
		for _, n := range p.byGroup[p.groups[g].name] {
			found[n] = true
		}
	}
	for _, n := range p.everyClient {
		found[n] = true
	}
	return sortedKeys(found), sortedKeys(in)
}

func (p *Policy) principalsOf(s subject) *principals {
	if s.group {
		return &p.groups[s.number].principals
	}
	return p.rules[s.number].principals
}

func (w *principals) hasAttributes(id *access.Identity) bool {
	for i := range w.attributes {
		if w.attributes[i].has(id) {
			return true
		}
	}
	return false
}
