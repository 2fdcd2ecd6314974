package policy

import (
	"fmt"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// Rules that one client brings with it: a webhook has said them (access.Identity.Rules). They
// add to those of the policy.

// Open is the policy of a server without a policy file whose clients may have rules of their
// own: a client that has none may do everything, and one that has some what they say.
func Open() *Policy {
	p := &Policy{open: true}
	p.buildIndex()
	return p
}

// CheckRules says what is wrong with the rules of one client.
func CheckRules(r *access.Rules) error {
	for _, filters := range [][]string{r.Publish, r.Subscribe} {
		for _, text := range filters {
			if _, wrong := parseTopic(item{text: text}); wrong != "" {
				return fmt.Errorf("%.100q: %s", text, wrong)
			}
		}
	}
	for _, keys := range [][]string{r.Read, r.Write} {
		for _, text := range keys {
			if _, wrong := parseKey(item{text: text}, globKey); wrong != "" {
				return fmt.Errorf("%.100q: %s", text, wrong)
			}
		}
	}
	return nil
}

// addRules adds what an identity's own rules allow it. What CheckRules would refuse allows
// nothing.
func (g *grants) addRules(id *access.Identity) {
	r := id.Rules
	g.connect = true
	topics := func(to *topicGrant, texts []string) {
		for _, text := range texts {
			if p, wrong := parseTopic(item{text: text}); wrong == "" {
				to.add(&topicResource{topics: []*topicPattern{p}}, id)
			}
		}
	}
	topics(&g.publish, r.Publish)
	topics(&g.subscribe, r.Subscribe)
	keys := func(to *keyGrant, texts []string) {
		for _, text := range texts {
			if p, wrong := parseKey(item{text: text}, globKey); wrong == "" {
				to.add(&keyResource{patterns: []*keyPattern{p}}, id)
			}
		}
	}
	keys(&g.read, r.Read)
	keys(&g.write, r.Write)
}

// addAll allows everything.
func (g *grants) addAll() {
	g.connect = true
	g.publish.all, g.subscribe.all, g.read.all, g.write.all = true, true, true, true
}
