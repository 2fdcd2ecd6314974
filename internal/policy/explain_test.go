package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	p := parse(t, `
groups: {operators: {usernames: [olga]}}
rules:
- brokerResources:
  - {method: Connect, clientIds: ["{principal.username}-*"]}
- principals: {groups: [operators]}
  brokerResources: [{method: Connect}, {method: Publish, topics: ["plant/#"]}]
- principals: {usernames: [press], attributes: [{line: "4"}]}
  brokerResources: [{method: Publish, topics: ["up/{principal.clientId}/+"]}]
  stateStoreResources: [{method: Read, keyType: String, keys: [k]}]
`)
	for _, c := range []struct {
		id      *access.Identity
		q       Question
		allowed bool
		want    string
	}{
		{user("olga"), Question{ToPublish, "plant/7"}, true, `rule 2 (policy.yaml:6), which is for group "operators", allows it: "plant/#" on line 7`},
		{user("olga"), Question{Action: ToConnect}, true, `rule 2 (policy.yaml:6), which is for group "operators", allows it: Connect on line 7`},
		{&access.Identity{ClientID: "u-1", Username: "u"}, Question{Action: ToConnect}, true, `rule 1 (policy.yaml:4), which is for every client, allows it: "{principal.username}-*" on line 5`},
		{client("a"), Question{Action: ToConnect}, false, `rule 1 (policy.yaml:4) is for this client, and allows to connect only: "{principal.username}-*" on line 5 (which allows this client nothing`},
		{user("press"), Question{ToPublish, "plant/7"}, false, `rule 2 (policy.yaml:6) would allow it by "plant/#" on line 7, but is not for this client: it is for group "operators"`},
		{user("press"), Question{ToPublish, "up/x/y"}, false, `rule 3 (policy.yaml:8) is for this client, and allows to publish only: "up/{principal.clientId}/+" on line 9`},
		{user("press"), Question{ToPublish, "up/c-press/y"}, true, `rule 3 (policy.yaml:8), which is for user name "press", allows it`},
		{user("press"), Question{ToRead, "k"}, true, `allows it: "k" on line 10`},
		{client("x"), Question{ToRead, "k"}, false, `but is not for this client: it is for user name "press", attributes line="4"`},
		{user("press"), Question{ToWrite, "k"}, false, "denied: write \"k\": no rule allows it"},
	} {
		e := p.Explain(c.id, c.q)
		if text := strings.Join(e.Lines, "\n"); e.Allowed != c.allowed || !strings.Contains(text, c.want) {
			t.Errorf("%s %v: got %v\n%s\nwant %s", c.id.Username, c.q, e.Allowed, text, c.want)
		}
	}
}

// Explain answers as a Guard does.
func TestExplainAgreesWithGuard(t *testing.T) {
	t.Parallel()
	p := parse(t, azureExample)
	g := NewGuard(p)
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"building22-a", "temperature-sensor", "contoso", "#", "+", "a/b", "myreadkey", "clients", "telemetry", ""})
		id := &access.Identity{ClientID: word.Draw(t, "client"), Username: word.Draw(t, "user"), Attributes: map[string]string{"building": "building22", "organization": word.Draw(t, "organization"), "city": "seattle"}}
		name := strings.Join(rapid.SliceOfN(word, 1, 4).Draw(t, "name"), rapid.SampledFrom([]string{"/", ":"}).Draw(t, "separator"))
		for _, a := range []Action{ToConnect, ToPublish, ToSubscribe, ToRead, ToWrite} {
			if want := asked(g, id, string(a)+" "+name); p.Explain(id, Question{a, name}).Allowed != want {
				t.Fatalf("%+v: %s %q: the guard says %v", id, a, name, want)
			}
		}
	})
}

const aclFile = `# This is a comment
topic read $SYS/#
topic public/#

user roger
topic foo/bar
topic read a topic/with spaces
topic write  up/roger

user  Ann O'Nym
topic readwrite "quoted"/x
topic deny secret/#

pattern readwrite devices/%c/#
pattern read users/%u
pattern write x-%u/y
user roger
topic write foo/two
topic foo/#/bar
topc x
topic sometimes a/b
`

func TestImportMosquitto(t *testing.T) {
	t.Parallel()
	content, problems := ImportMosquitto("acl", []byte(aclFile))
	var got []string
	for _, p := range problems {
		got = append(got, p.In("acl"))
	}
	for i, want := range []string{
		`acl:12: deny "secret/#" cannot be converted`,
		`acl:16: "x-%u/y" cannot be converted: %c and %u must be levels`,
		`acl:19: "foo/#/bar" cannot be converted: this is not a topic filter`,
		`acl:20: unknown line "topc x"`,
		`acl:21: unknown access "sometimes"`,
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
	if len(got) != 5 {
		t.Errorf("got %q", got)
	}
	g := NewGuard(parse(t, string(content)))
	wantAllowed(t, g, client("c"), "+connect", "+subscribe $SYS/#", "-publish $SYS/x", "+publish public/x", "+subscribe public/#", "-publish foo/bar", "+subscribe devices/c/#", "+publish devices/c/x", "-subscribe devices/d/x", "-subscribe users/c")
	roger := &access.Identity{ClientID: "c", Username: "roger"}
	wantAllowed(t, g, roger, "+connect", "+publish foo/bar", "+subscribe foo/bar", "+subscribe a topic/with spaces", "-publish a topic/with spaces", "+publish up/roger", "-subscribe up/roger", "+publish foo/two",
		"+subscribe users/roger", "-publish users/roger", "-subscribe public/#", "-subscribe $SYS/#", "-publish x-roger/y")
	wantAllowed(t, g, &access.Identity{ClientID: "c", Username: "Ann O'Nym"}, `+publish "quoted"/x`, "-subscribe secret/x")
}

func FuzzImportMosquitto(f *testing.F) {
	f.Add([]byte(aclFile))
	f.Add([]byte("user \ntopic a\npattern %c\n\ttopic b"))
	f.Add([]byte("topic {principal.clientId}/x\nuser \x00\ntopic \xff"))
	f.Fuzz(func(t *testing.T, content []byte) {
		policy, problems := ImportMosquitto("acl", content)
		if _, err := Parse("p", policy); err != nil && len(problems) == 0 {
			t.Fatalf("the policy is wrong, and nothing is said: %v\n%s", err, policy)
		}
	})
}
