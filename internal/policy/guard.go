package policy

import (
	"errors"
	"hash/maphash"
	"io"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// Guard is access.Permissions by a Policy, which Use exchanges while clients are
// connected. Its methods are safe for concurrent use.
//
// What a policy says of an identity is compiled once, when the identity is first asked
// about, and kept in Identity.Grants until there is another policy. Most policies have
// few patterns for one client, which are compared each time. For clients with more of
// them, decisions are cached.
type Guard struct {
	policy  atomic.Pointer[Policy]
	cache   *cache
	version atomic.Uint64 // of the newest grants
}

// NewGuard makes a Guard.
func NewGuard(p *Policy) *Guard {
	g := &Guard{cache: newCache()}
	g.policy.Store(p)
	return g
}

// Policy is the one in force.
func (g *Guard) Policy() *Policy { return g.policy.Load() }

// Use puts another policy in force: every check that begins when Use has returned is by it.
func (g *Guard) Use(p *Policy) { g.policy.Store(p) }

// grants is what a policy allows one identity. It doesn't change.
type grants struct {
	policy *Policy
	access.Grants
	connect   bool
	publish   topicGrant
	subscribe topicGrant
	read      keyGrant
	write     keyGrant
}

// topicGrant is the topic filters of one method.
type topicGrant struct {
	all      bool                // everything is allowed
	few      []string            // filters without wildcards, up to manyTopics
	many     map[string]struct{} // all of them, if they are more
	patterns []*topicPattern     // the others
}

// keyGrant is the keys of one method. The maps belong to the policy.
type keyGrant struct {
	all      bool // everything is allowed
	exact    []map[string]int
	patterns []*keyPattern
}

// cheap is up to how many comparisons a check makes without looking into the cache, which
// costs as much.
const cheap = 4

// manyTopics is from how many names on a look-up in a map takes less than comparing them.
const manyTopics = 8

func (t *topicGrant) covers(filter []byte) bool {
	if t.all {
		return true
	}
	for _, name := range t.few {
		if name == string(filter) {
			return true
		}
	}
	if t.many != nil {
		if _, ok := t.many[string(filter)]; ok {
			return true
		}
	}
	for _, p := range t.patterns {
		if p.covers(filter) {
			return true
		}
	}
	return false
}

func (k *keyGrant) allows(key []byte) bool {
	if k.all {
		return true
	}
	for _, m := range k.exact {
		if _, ok := m[string(key)]; ok {
			return true
		}
	}
	for _, p := range k.patterns {
		if p.match.matches(key) {
			return true
		}
	}
	return false
}

// grantsFor compiles what a policy allows an identity.
func (p *Policy) grantsFor(id *access.Identity) *grants {
	g := &grants{policy: p}
	switch {
	case id.Rules != nil:
		g.addRules(id)
	case p.open:
		g.addAll()
	}
	rules, groups := p.rulesOf(id)
	g.Quota = p.quotaOf(groups)
	for _, n := range rules {
		r := &p.rules[n]
		for i := range r.connect {
			g.connect = g.connect || r.connect[i].allows(id)
		}
		for i := range r.publish {
			g.publish.add(&r.publish[i], id)
		}
		for i := range r.subscribe {
			g.subscribe.add(&r.subscribe[i], id)
		}
		for i := range r.keys {
			if r.keys[i].read {
				g.read.add(&r.keys[i], id)
			}
			if r.keys[i].write {
				g.write.add(&r.keys[i], id)
			}
		}
	}
	return g
}

func (r *connectResource) allows(id *access.Identity) bool {
	if r.clientIDs == nil {
		return true
	}
	for _, p := range r.clientIDs {
		if bound := p.bindKey(id); bound != nil && bound.match.matches([]byte(id.ClientID)) {
			return true
		}
	}
	return false
}

func (t *topicGrant) add(r *topicResource, id *access.Identity) {
	for _, p := range r.topics {
		bound := p.bind(id)
		switch {
		case bound == nil:
		case bound.exact:
			t.addName(bound.name())
		default:
			t.patterns = append(t.patterns, bound)
		}
	}
}

func (t *topicGrant) addName(name string) {
	switch {
	case t.many != nil:
		t.many[name] = struct{}{}
	case len(t.few) < manyTopics:
		t.few = append(t.few, name)
	default:
		t.many = map[string]struct{}{name: {}}
		for _, one := range t.few {
			t.many[one] = struct{}{}
		}
		t.few = nil
	}
}

func (k *keyGrant) add(r *keyResource, id *access.Identity) {
	if r.exact != nil {
		k.exact = append(k.exact, r.exact)
	}
	for _, p := range r.patterns {
		if bound := p.bindKey(id); bound != nil {
			k.patterns = append(k.patterns, bound)
		}
	}
}

// noIdentity stands for a client of a server that asks no client who it is.
var noIdentity = &access.Identity{Method: access.Anonymous}

// grants gives what the policy in force allows the identity.
func (g *Guard) grants(id *access.Identity) *grants {
	if id == nil {
		id = noIdentity
	}
	policy := g.policy.Load()
	if kept := id.Grants.Load(); kept != nil {
		if have, ok := kept.Rules.(*grants); ok && have.policy == policy {
			return have
		}
	}
	made := policy.grantsFor(id)
	made.Version, made.Rules = g.version.Add(1), made
	id.Grants.Store(&made.Grants)
	return made
}

// MayConnect implements access.Permissions.
func (g *Guard) MayConnect(id *access.Identity) bool { return g.grants(id).connect }

// Grants implements access.Permissions.
func (g *Guard) Grants(id *access.Identity) *access.Grants { return &g.grants(id).Grants }

// MayPublish implements access.Permissions.
func (g *Guard) MayPublish(id *access.Identity, topic []byte) bool {
	have := g.grants(id)
	if len(have.publish.patterns) <= cheap {
		return have.publish.covers(topic)
	}
	return g.cached(have, publishing, topic)
}

// MaySubscribe implements access.Permissions.
func (g *Guard) MaySubscribe(id *access.Identity, filter []byte) bool {
	have := g.grants(id)
	if len(have.subscribe.patterns) <= cheap {
		return have.subscribe.covers(filter)
	}
	return g.cached(have, subscribing, filter)
}

// MayRead implements access.Permissions.
func (g *Guard) MayRead(id *access.Identity, key []byte) bool {
	have := g.grants(id)
	if len(have.read.exact)+len(have.read.patterns) <= cheap {
		return have.read.allows(key)
	}
	return g.cached(have, reading, key)
}

// MayWrite implements access.Permissions.
func (g *Guard) MayWrite(id *access.Identity, key []byte) bool {
	have := g.grants(id)
	if len(have.write.exact)+len(have.write.patterns) <= cheap {
		return have.write.allows(key)
	}
	return g.cached(have, writing, key)
}

// action is what a decision is about.
type action byte

const (
	publishing action = iota
	subscribing
	reading
	writing
)

func (g *grants) allows(a action, name []byte) bool {
	switch a {
	case publishing:
		return g.publish.covers(name)
	case subscribing:
		return g.subscribe.covers(name)
	case reading:
		return g.read.allows(name)
	default:
		return g.write.allows(name)
	}
}

// cached decides from the cache, or puts the decision there.
func (g *Guard) cached(have *grants, a action, name []byte) bool {
	if len(name) > maxCachedName {
		return have.allows(a, name)
	}
	pair := g.cache.pair(have.Version, a, name)
	newer := pair[0].Load()
	if newer.is(have, a, name) {
		return newer.allowed
	}
	if older := pair[1].Load(); older.is(have, a, name) {
		return older.allowed
	}
	d := &decision{version: have.Version, action: a, name: string(name), allowed: have.allows(a, name)}
	pair[1].Store(newer)
	pair[0].Store(d)
	return d.allowed
}

// The cache is one array for all identities, so that its memory has a bound. Each identity
// uses slotsEach of the slots, next to each other, where the version of its grants puts them: one
// that asks about many names displaces its own decisions. Two identities may have the same
// slots, and then displace each other's. What is displaced is decided again.
//
// A name has a pair of slots, for the newer and the older of two decisions, so that the
// two or three names that a client asks about in turn, its request topic, its Response
// Topic and a key, seldom displace each other.
const (
	cacheBlocks   = 1024
	slotsEach     = 16
	maxCachedName = 128 // bytes
)

type cache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[decision]
}

// decision is a cached one. The version is that of the grants that it was made by.
type decision struct {
	version uint64
	name    string
	action  action
	allowed bool
}

// is says whether d decides about this action and name by these grants; d may be nil.
func (d *decision) is(by *grants, a action, name []byte) bool {
	return d != nil && d.version == by.Version && d.action == a && d.name == string(name)
}

func newCache() *cache {
	return &cache{seed: maphash.MakeSeed(), slots: make([]atomic.Pointer[decision], cacheBlocks*slotsEach)}
}

// pair gives the two slots of a name.
func (c *cache) pair(version uint64, a action, name []byte) *[2]atomic.Pointer[decision] {
	block := version % cacheBlocks * slotsEach
	at := block + (maphash.Bytes(c.seed, name)+uint64(a))%(slotsEach/2)*2
	return (*[2]atomic.Pointer[decision])(c.slots[at : at+2])
}

func sortedKeys(set map[int32]bool) []int32 { return slices.Sorted(maps.Keys(set)) }

var errTooLarge = errors.New("the file is too large")

// readBounded reads a file of at most MaxFileBytes.
func readBounded(r io.Reader) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err == nil && len(content) > MaxFileBytes {
		err = errTooLarge
	}
	return content, err
}
