package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

const groupsWithQuotas = `rules:
- brokerResources: [{method: Connect}]
groups:
  machines:
    clientIds: [press]
    usernames: [press, lathe]
    quotas:
      connections: 10
      sessions: 20
      subscriptions: 100
      keys: 1000
      keyBytes: 1MiB
      retainedMessages: 50
      retainedBytes: 64KiB
      publishesPerSecond: 500
      publishBytesPerSecond: 1.5MiB
      timestampSkew: 500ms
  lathes: {usernames: [lathe], quotas: {connections: 3, keys: 2000, timestampSkew: 5s, reserve: true}}
  operators: {attributes: [{role: operator}]}
`

func TestQuotas(t *testing.T) {
	t.Parallel()
	g := guardOf(t, groupsWithQuotas)
	machine := access.Quota{
		Connections: 10, Sessions: 20, Subscriptions: 100, Keys: 1000, KeyBytes: 1 << 20, Retained: 50, RetainedBytes: 64 << 10,
		Publishes: 500, PublishBytes: 3 << 19, TimestampSkew: 500 * time.Millisecond,
	}
	lathe := machine // of two groups the largest of each applies
	lathe.Keys, lathe.TimestampSkew, lathe.Reserve = 2000, 5*time.Second, true
	for _, c := range []struct {
		id   *access.Identity
		want access.Quota
	}{
		{user("press"), machine},
		{client("press"), machine},
		{user("lathe"), lathe},
		{with(user("olga"), "role", "operator"), access.Quota{}},
		{user("other"), access.Quota{}},
		{nil, access.Quota{}},
	} {
		for range 2 { // the second is kept
			if got := g.Grants(c.id).Quota; got != c.want {
				t.Errorf("%+v has the quota %+v, want %+v", c.id, got, c.want)
			}
		}
	}
	press := user("press")
	g.Use(parse(t, "rules: [{brokerResources: [{method: Connect}]}]\ngroups: {g: {usernames: [press], quotas: {connections: 1}}}"))
	if got := g.Grants(press).Quota; got != (access.Quota{Connections: 1}) {
		t.Errorf("by another policy the quota is %+v", got)
	}
}

func TestAQuotaThatIsKnownAllocatesNothing(t *testing.T) {
	g := guardOf(t, groupsWithQuotas)
	id := user("lathe")
	g.Grants(id)
	if n := testing.AllocsPerRun(100, func() { g.Grants(id) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMistakesInQuotas(t *testing.T) {
	t.Parallel()
	for quotas, want := range map[string]string{
		"{}":                               `policy.yaml:3: the quotas of the group "g" are empty`,
		"[connections]":                    `policy.yaml:3: the quotas of the group "g" must be a map`,
		"{conections: 1}":                  `policy.yaml:3: unknown key "conections" in the quotas of the group "g"; known are connections, sessions`,
		"{connections: 1, connections: 2}": `policy.yaml:3: the quotas of the group "g" has "connections" already, on line 3`,
		"{connections: 0}":                 `policy.yaml:3: connections is "0": want a whole number from 1 to 1099511627776; leave it out for the server's own bound`,
		"{connections: -1}":                "policy.yaml:3: connections is",
		"{connections: 1.5}":               "policy.yaml:3: connections is",
		"{connections: 010}":               "policy.yaml:3: connections is",
		"{connections: +10}":               "policy.yaml:3: connections is",
		"{keyBytes: 010KiB}":               "policy.yaml:3: keyBytes is",
		"{timestampSkew: 010s}":            "policy.yaml:3: timestampSkew is",
		"{connections: 10K}":               "policy.yaml:3: connections is",
		"{connections: 1099511627777}":     "policy.yaml:3: connections is",
		"{connections: }":                  "policy.yaml:3: connections is missing",
		"{connections: [1]}":               "policy.yaml:3: connections must be text",
		"{keyBytes: 0}":                    `policy.yaml:3: keyBytes is "0": want a positive number of bytes`,
		"{keyBytes: 10XB}":                 "policy.yaml:3: keyBytes is",
		"{keyBytes: 1025TiB}":              "policy.yaml:3: keyBytes is",
		"{publishBytesPerSecond: much}":    "policy.yaml:3: publishBytesPerSecond is",
		"{timestampSkew: 5}":               `policy.yaml:3: timestampSkew is "5": want a time from 1ms to 24h`,
		"{timestampSkew: 0s}":              "policy.yaml:3: timestampSkew is",
		"{timestampSkew: 999us}":           "policy.yaml:3: timestampSkew is",
		"{timestampSkew: 25h}":             "policy.yaml:3: timestampSkew is",
		"{reserve: false}":                 `policy.yaml:3: reserve is "false": it is true, or left out`,
	} {
		_, err := Parse("policy.yaml", []byte("rules: [{brokerResources: [{method: Connect}]}]\ngroups:\n  g: {usernames: [a], quotas: "+quotas+"}"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", quotas, err, want)
		}
	}
	// Rules have none, and a group has clients.
	for content, want := range map[string]string{
		"rules: [{principals: {usernames: [a], quotas: {keys: 1}}, brokerResources: [{method: Connect}]}]": `unknown key "quotas" in principals`,
		"rules: [{brokerResources: [{method: Connect}]}]\ngroups: {g: {quotas: {keys: 1}}}":                `policy.yaml:2: the group "g" names no clients`,
	} {
		if _, err := Parse("policy.yaml", []byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", content, err, want)
		}
	}
}

// A group that has quotas needs no rule that refers to it.
func TestAGroupOfQuotasIsUsed(t *testing.T) {
	t.Parallel()
	p := parse(t, groupsWithQuotas)
	if len(p.Warnings) != 1 || p.Warnings[0].Text != `no rule refers to the group "operators"` {
		t.Errorf("the warnings are %v", p.Warnings)
	}
}

func TestExplainQuotas(t *testing.T) {
	t.Parallel()
	p := parse(t, groupsWithQuotas)
	got := p.ExplainQuotas(user("lathe"))
	want := []string{
		`connections: 10, by group "machines" (policy.yaml:8)`,
		`sessions: 20, by group "machines" (policy.yaml:9)`,
		`subscriptions: 100, by group "machines" (policy.yaml:10)`,
		`keys: 2000, by group "lathes" (policy.yaml:18)`,
		`keyBytes: 1MiB, by group "machines" (policy.yaml:12)`,
		`retainedMessages: 50, by group "machines" (policy.yaml:13)`,
		`retainedBytes: 64KiB, by group "machines" (policy.yaml:14)`,
		`publishesPerSecond: 500, by group "machines" (policy.yaml:15)`,
		`publishBytesPerSecond: 1.5MiB, by group "machines" (policy.yaml:16)`,
		`timestampSkew: 5s, by group "lathes" (policy.yaml:18)`,
		`reserve: true, by group "lathes" (policy.yaml:18)`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range p.ExplainQuotas(user("stranger")) {
		if strings.Contains(line, "by group") {
			t.Errorf("a client of no group has %s", line)
		}
	}
}
