package policy

import (
	"errors"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// Whatever a file says, it is read or refused with the lines; and what was read answers.
func FuzzParse(f *testing.F) {
	f.Add([]byte(azureExample))
	f.Add([]byte(large(3)))
	f.Add([]byte("groups: {g: {clientIds: [a]}}\nrules: [{principals: {groups: [g]}, brokerResources: [{method: Connect}]}]"))
	f.Add([]byte("rules: [{stateStoreResources: [{method: Read, keyType: Pattern, keys: ['[a-{principal.clientId}]']}]}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? [a]\n: b"))
	f.Add([]byte("rules: !!binary aGk="))
	f.Fuzz(func(t *testing.T, content []byte) {
		p, err := Parse("f", content)
		var problems *Problems
		if err != nil {
			if !errors.As(err, &problems) || len(problems.List) == 0 {
				t.Fatalf("an error without problems: %v", err)
			}
			return
		}
		g := NewGuard(p)
		id := &access.Identity{ClientID: "a", Username: "b", Attributes: map[string]string{"c": "d"}}
		g.MayConnect(id)
		for _, name := range []string{"", "a", "a/b/c", "$SYS/x", "#"} {
			g.MayPublish(id, []byte(name))
			g.MaySubscribe(id, []byte(name))
			g.MayRead(id, []byte(name))
			g.MayWrite(id, []byte(name))
		}
	})
}

// A client's own values never allow it what the same client with another value is
// allowed, unless a wildcard follows the token, which the check command warns of.
func FuzzTokens(f *testing.F) {
	f.Add("#", "x")
	f.Add("a/b", "a")
	f.Add("a:b", "a")
	f.Add("*", "abc")
	f.Add("[a-z]", "q")
	f.Add("$SYS", "x")
	g := guardOf(f, `
rules:
- brokerResources:
  - {method: Publish, topics: ["up/{principal.clientId}/#", "{principal.clientId}"]}
  - {method: Subscribe, topics: ["up/{principal.clientId}/#"]}
  stateStoreResources:
  - {method: Read, keyType: Pattern, keys: ["p:{principal.clientId}:*", "q[0-9]{principal.clientId}"]}
  - {method: Write, keyType: String, keys: ["s:{principal.clientId}"]}
`)
	f.Fuzz(func(t *testing.T, one, other string) {
		if one == other {
			return
		}
		id := client(one)
		for _, q := range []string{
			"publish up/" + other + "/x", "publish " + other, "subscribe up/" + other + "/#", "subscribe up/" + other,
			"read p:" + other + ":x", "read q1" + other, "write s:" + other,
		} {
			// The other's own, and by the same rules.
			if asked(g, client(other), q) && asked(g, id, q) {
				t.Errorf("client %q may %s as client %q may", one, q, other)
			}
		}
	})
}
