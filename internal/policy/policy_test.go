package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/access"
)

// parse reads a policy that must be right.
func parse(t testing.TB, content string) *Policy {
	t.Helper()
	p, err := Parse("policy.yaml", []byte(content))
	if err != nil {
		t.Fatalf("%v\n%s", err, content)
	}
	return p
}

func guardOf(t testing.TB, content string) *Guard {
	t.Helper()
	return NewGuard(parse(t, content))
}

// client is an identity without anything but a client ID.
func client(id string) *access.Identity { return &access.Identity{ClientID: id} }

func user(name string) *access.Identity {
	return &access.Identity{ClientID: "c-" + name, Username: name}
}

func with(id *access.Identity, attributes ...string) *access.Identity {
	id.Attributes = map[string]string{}
	for i := 0; i < len(attributes); i += 2 {
		id.Attributes[attributes[i]] = attributes[i+1]
	}
	return id
}

// asked is a question to a Guard, such as `publish a/b`, and the answer.
func asked(g *Guard, id *access.Identity, question string) bool {
	what, name, _ := strings.Cut(question, " ")
	switch what {
	case "connect":
		return g.MayConnect(id)
	case "publish":
		return g.MayPublish(id, []byte(name))
	case "subscribe":
		return g.MaySubscribe(id, []byte(name))
	case "read":
		return g.MayRead(id, []byte(name))
	case "write":
		return g.MayWrite(id, []byte(name))
	}
	panic(question)
}

// wantAllowed asks questions that begin with + or -: whether the client may.
func wantAllowed(t *testing.T, g *Guard, id *access.Identity, questions ...string) {
	t.Helper()
	for _, q := range questions {
		for range 2 { // the second answer may come from the cache
			if got := asked(g, id, q[1:]); got != (q[0] == '+') {
				t.Errorf("client %q, user %q, %v: %s: got %v", id.ClientID, id.Username, id.Attributes, q[1:], got)
			}
		}
	}
}

// azureExample has the parts of the examples in Azure's documentation.
const azureExample = `
apiVersion: mqttbroker.iotoperations.azure.com/v1
kind: BrokerAuthorization
metadata:
  name: "my-authz-policies"
  namespace: azure-iot-operations
spec:
  authorizationPolicies:
    cache: Enabled
    rules:
      - principals:
          usernames:
            - "temperature-sensor"
            - "humidity-sensor"
          attributes:
            - city: "seattle"
              organization: "contoso"
        brokerResources:
          - method: Connect
          - method: Publish
            topics:
              - "/telemetry/{principal.username}"
              - "/telemetry/{principal.attributes.organization}"
          - method: Subscribe
            topics:
              - "/commands/{principal.attributes.organization}"
      - principals:
          attributes:
            - building: "building22"
            - building: "building23"
        brokerResources:
          - method: Connect
            clientIds:
              - "{principal.attributes.building}*"
          - method: Publish
            topics:
              - "sensors/{principal.attributes.building}/{principal.clientId}/telemetry"
        stateStoreResources:
          - method: Read
            keyType: Pattern
            keys:
              - "myreadkey"
              - "myotherkey?"
              - "mynumerickeysuffix[0-9]"
              - "clients:{principal.clientId}:*"
          - method: ReadWrite
            keyType: Binary
            keys:
              - "AAH/"
`

func TestAzureExample(t *testing.T) {
	t.Parallel()
	g := guardOf(t, azureExample)
	wantAllowed(t, g, user("temperature-sensor"), "+connect", "+publish /telemetry/temperature-sensor",
		"-publish /telemetry/humidity-sensor", "-publish /telemetry/contoso", "-subscribe /commands/contoso", "-read myreadkey")
	wantAllowed(t, g, with(user("other"), "city", "seattle", "organization", "contoso"), "+connect", "+publish /telemetry/contoso",
		"+subscribe /commands/contoso", "-publish /telemetry/temperature-sensor", "-subscribe /commands/#")
	wantAllowed(t, g, with(user("other"), "organization", "contoso"), "-connect", "-publish /telemetry/contoso")

	in22 := with(client("building22-a"), "building", "building22")
	wantAllowed(t, g, in22, "+connect", "+publish sensors/building22/building22-a/telemetry", "-publish sensors/building23/building22-a/telemetry",
		"+read myreadkey", "-write myreadkey", "-read myreadkeys", "+read myotherkey1", "-read myotherkey", "+read mynumerickeysuffix7",
		"-read mynumerickeysuffixx", "+read clients:building22-a:x", "-read clients:building22-b:x", "+write \x00\x01\xff", "+read \x00\x01\xff", "-read \x00\x01")
	wantAllowed(t, g, with(client("building23-a"), "building", "building22"), "-connect")
	wantAllowed(t, g, client("stranger"), "-connect", "-publish a", "-subscribe a", "-read a", "-write a")
}

// The portal of Azure writes JSON, a bare list, with empty lists for what is not used.
func TestFormsOfAFile(t *testing.T) {
	t.Parallel()
	const rule = `{"principals": {"attributes": [{"group": "authz-sat"}]}, "brokerResources": [
		{"clientIds": [], "method": "Connect", "topics": []},
		{"clientIds": [], "method": "Publish", "topics": ["odd-numbered-orders"]}]}`
	for _, content := range []string{
		"[" + rule + "]",
		`{"rules": [` + rule + `]}`,
		`{"authorizationPolicies": {"cache": "Enabled", "rules": [` + rule + `]}}`,
		`{"spec": {"authorizationPolicies": {"enableCache": false, "rules": [` + rule + `]}}}`,
		`{"type": "x", "properties": {"provisioningState": "Succeeded", "authorizationPolicies": {"rules": [` + rule + `]}}}`,
	} {
		g := guardOf(t, content)
		wantAllowed(t, g, with(client("a"), "group", "authz-sat"), "+connect", "+publish odd-numbered-orders", "-publish orders")
		wantAllowed(t, g, client("a"), "-connect", "-publish odd-numbered-orders")
	}
}

func TestPrincipals(t *testing.T) {
	t.Parallel()
	g := guardOf(t, `
groups:
  operators:
    usernames: [olga]
    attributes: [{role: operator, shift: night}]
  line 4: {clientIds: [press-4]}
rules:
- brokerResources: [{method: Connect}]
- principals: {clientIds: [a, "17"], usernames: [u]}
  brokerResources: [{method: Publish, topics: [one]}]
- principals: {groups: [operators, line 4]}
  brokerResources: [{method: Publish, topics: [two]}]
`)
	wantAllowed(t, g, client("a"), "+connect", "+publish one", "-publish two")
	wantAllowed(t, g, client("17"), "+publish one")
	wantAllowed(t, g, client("A"), "-publish one")
	wantAllowed(t, g, user("u"), "+publish one", "-publish two")
	wantAllowed(t, g, user("a"), "-publish one") // a user name is no client ID
	wantAllowed(t, g, client("u"), "-publish one")
	wantAllowed(t, g, user("olga"), "+publish two", "-publish one")
	wantAllowed(t, g, with(client("x"), "role", "operator", "shift", "night", "more", "1"), "+publish two")
	wantAllowed(t, g, with(client("x"), "role", "operator", "shift", "day"), "+connect", "-publish two")
	wantAllowed(t, g, client("press-4"), "+publish two")
	wantAllowed(t, g, &access.Identity{}, "+connect", "-publish one", "-publish two")
	if !g.MayConnect(nil) || g.MayPublish(nil, []byte("one")) {
		t.Error("a client without an identity is allowed more or less than every client")
	}
}

// A client chooses its client ID, and perhaps more. None of these values may allow it
// anything beyond its own level, or its own key.
func TestTokensDoNotWiden(t *testing.T) {
	t.Parallel()
	g := guardOf(t, `
rules:
- brokerResources:
  - method: Connect
    clientIds: ["{principal.username}-*"]
  - method: Publish
    topics: ["{principal.clientId}/up", "tree/{principal.clientId}"]
  - method: Subscribe
    topics: ["{principal.clientId}/#", "down/{principal.clientId}/#"]
  stateStoreResources:
  - {method: Read, keyType: Pattern, keys: ["p:{principal.clientId}:*", "q[0-9]{principal.clientId}?"]}
  - {method: Write, keyType: String, keys: ["s:{principal.clientId}"]}
`)
	wantAllowed(t, g, client("dev"), "+publish tree/dev", "+subscribe down/dev/#", "+subscribe dev/#", "+read p:dev:x", "+read q1devx", "+write s:dev",
		"-publish tree/other", "-subscribe down/#", "-subscribe down/+/x", "-read p:other:x", "-write s:other", "-write s:*")
	for _, id := range []string{"#", "+", "a/#", "a/b", "/", ""} {
		wantAllowed(t, g, client(id), "-publish tree/x", "-publish tree/"+id, "-publish "+id+"/up", "-subscribe down/x", "-subscribe down/"+id, "-subscribe down/"+id+"/#", "-subscribe #",
			"-subscribe a/b", "-subscribe down/a/b/c")
	}
	// In a key + and # are no wildcards, and nothing but a / or the character behind the
	// token makes a difference.
	wantAllowed(t, g, client("#"), "+read p:#:x", "-read p:x:x", "+write s:#")
	for _, id := range []string{"a/b", "a:b", ""} {
		wantAllowed(t, g, client(id), "-read p:"+id+":x", "-read p:a:b:x")
	}
	for _, id := range []string{"*", "?", "[a-z]", "a*", "[", "]", "[!x]"} {
		wantAllowed(t, g, client(id), "+read p:"+id+":x", "-read p:a:x", "-read p:ab:x", "+read q1"+id+"x", "-read q1ax", "-read q1abx", "+write s:"+id, "-write s:a")
	}
	// At the beginning of a topic a $ names a tree of the broker's own.
	wantAllowed(t, g, client("$SYS"), "-subscribe $SYS/#", "-publish $SYS/up", "+publish tree/$SYS")
	wantAllowed(t, g, client("$share"), "-subscribe $share/#")

	star := &access.Identity{ClientID: "admin-1", Username: "*"}
	wantAllowed(t, g, star, "-connect")
	wantAllowed(t, g, &access.Identity{ClientID: "*-1", Username: "*"}, "+connect")
	wantAllowed(t, g, &access.Identity{ClientID: "admin-1"}, "-connect")
	wantAllowed(t, g, &access.Identity{ClientID: "admin-1", Username: "admin"}, "+connect")
}

// keyType String takes the text as it is, Pattern has wildcards over all bytes.
func TestKeys(t *testing.T) {
	t.Parallel()
	g := guardOf(t, `
rules:
- principals: {clientIds: [all]}
  stateStoreResources: [{method: ReadWrite, keyType: pattern, keys: ["*"]}]
- principals: {clientIds: [some]}
  stateStoreResources:
  - {method: read, keyType: string, keys: ["a*", "b?"]}
  - {method: write, keyType: Pattern, keys: ["c*d*e", "[*]x", "f*"]}
`)
	wantAllowed(t, g, client("all"), "+read x", "+write x", "+read \xff\xfe", "+read ", "-connect")
	wantAllowed(t, g, client("some"), "+read a*", "-read ab", "+read b?", "-read bb", "-write a*",
		"+write cde", "+write cxdye", "-write ce", "-write cde.", "+write *x", "-write yx", "+write f", "+write f\xff", "-read f")
}

// Every mistake is told with its line, and all of them at once.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const head = "rules:\n- brokerResources: [{method: Connect}]\n- "
	for _, c := range []struct{ content, want string }{
		{"", "policy.yaml: the file is empty"},
		{"rules: [", "policy.yaml:1: this is not YAML: "},
		{"a: b: c", "policy.yaml:1: this is not YAML: "},
		{"text", "policy.yaml:1: the file must be a map"},
		{"rules: []", "policy.yaml:1: rules is empty"},
		{"groups: {g: {clientIds: [a]}}", "policy.yaml:1: the file has no rules"},
		{"kind: BrokerAuthorization", "policy.yaml:1: the file has no rules"},
		{"kind: BrokerListener\nrules: [{brokerResources: [{method: Connect}]}]", `policy.yaml:1: the kind is "BrokerListener"`},
		{"rules: [{brokerResources: [{method: Connect}]}]\n---\nrules: []", "policy.yaml:3: a second document"},
		{"rules: &a [{brokerResources: [{method: Connect}]}]", "policy.yaml:1: anchors and aliases"},
		{"rules: [{brokerResources: [{method: Connect}]}]\nspec: {authorizationPolicies: {rules: []}}", "policy.yaml:2: line 1 has rules already"},
		{"spec: {}", "policy.yaml:1: spec has no authorizationPolicies"},
		{"authorizationPolicies: {cache: Enabled}", "policy.yaml:1: authorizationPolicies has no rules"},
		{"deny: []\nrules: [{brokerResources: [{method: Connect}]}]", `policy.yaml:1: unknown key "deny" in the file; known are rules`},
		{"rules: [{brokerResources: [{method: Connect}]}]\nrules: []", `policy.yaml:2: the file has "rules" already, on line 1`},
		{"rules: 5", "policy.yaml:1: rules must be a list"},
		{"rules:\n- 5", "policy.yaml:2: a rule must be a map"},
		{"rules:\n- {}", "policy.yaml:2: this rule allows nothing"},
		{"rules:\n- brokerResources: []", "policy.yaml:2: this rule allows nothing"},
		{head + "principals: {}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: principals is empty"},
		{head + "principals: {clientIds: []}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: clientIds is empty"},
		{head + "principals: {clientId: [a]}\n  brokerResources: [{method: Connect}]", `policy.yaml:3: unknown key "clientId" in principals`},
		{head + "principals: {usernames: [a, b, a]}\n  brokerResources: [{method: Connect}]", `policy.yaml:3: usernames has "a" already`},
		{head + "principals: {usernames: a}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: usernames must be a list"},
		{head + "principals: {usernames: [\"\"]}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: an item of usernames is empty"},
		{head + "principals: {usernames: [[a]]}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: an item of usernames must be text"},
		{head + "principals: {attributes: [{}]}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: an item of attributes is empty"},
		{head + "principals: {attributes: {a: b}}\n  brokerResources: [{method: Connect}]", "policy.yaml:3: attributes must be a list"},
		{head + "principals: {groups: [g]}\n  brokerResources: [{method: Connect}]", `policy.yaml:3: there is no group "g"`},
		{head + "brokerResources: [{}]", "policy.yaml:3: method is missing; want Connect"},
		{head + "brokerResources: [{method: Consume}]", `policy.yaml:3: unknown method "Consume"; want Connect`},
		{head + "brokerResources: [{method: Publish}]", "policy.yaml:3: topics is missing"},
		{head + "brokerResources: [{method: Publish, topics: []}]", "policy.yaml:3: topics is empty"},
		{head + "brokerResources: [{method: Connect, topics: [a]}]", "policy.yaml:3: an item with the method Connect cannot have topics"},
		{head + "brokerResources: [{method: Publish, topics: [a], clientIds: [b]}]", "policy.yaml:3: an item with the method Publish cannot have clientIds"},
		{head + "brokerResources: [{method: Publish, topics: ['a/#/b']}]", "policy.yaml:3: \"a/#/b\": this is not a topic filter"},
		{head + "brokerResources: [{method: Publish, topics: ['a+']}]", "policy.yaml:3: \"a+\": this is not a topic filter"},
		{head + "brokerResources: [{method: Subscribe, topics: [$share/g/a]}]", "policy.yaml:3: \"$share/g/a\": a shared subscription"},
		{head + "brokerResources: [{method: Publish, topics: ['a-{principal.clientId}/b']}]", "a token must be a level by itself"},
		{head + "brokerResources: [{method: Publish, topics: ['{principal.name}/b']}]", "unknown token {principal.name}; known are"},
		{head + "brokerResources: [{method: Publish, topics: ['{principal.attributes.}/b']}]", "unknown token {principal.attributes.}"},
		{head + "stateStoreResources: [{method: Read, keys: [a]}]", "policy.yaml:3: keyType is missing"},
		{head + "stateStoreResources: [{method: Read, keyType: Pattern}]", "policy.yaml:3: keys is missing"},
		{head + "stateStoreResources: [{keyType: Pattern, keys: [a]}]", "policy.yaml:3: method is missing; want Read"},
		{head + "stateStoreResources: [{method: Get, keyType: Pattern, keys: [a]}]", `policy.yaml:3: unknown method "Get"; want Read`},
		{head + "stateStoreResources: [{method: Read, keyType: Glob, keys: [a]}]", `policy.yaml:3: unknown keyType "Glob"`},
		{head + "stateStoreResources: [{method: Read, keyType: Pattern, keys: ['a[']}]", `policy.yaml:3: "a[": malformed pattern`},
		{head + "stateStoreResources: [{method: Read, keyType: Pattern, keys: ['[{principal.clientId}]']}]", "a token must not stand in brackets"},
		{head + "stateStoreResources: [{method: Read, keyType: Pattern, keys: ['{principal.clientId}{principal.username}']}]", "two tokens need text between them"},
		{head + "stateStoreResources: [{method: Read, keyType: Pattern, keys: ['{principal.clientId']}]", "a token has no }"},
		{head + "stateStoreResources: [{method: Read, keyType: Binary, keys: ['a!']}]", "a Binary key is the key in base 64"},
		{"groups: {}\nrules: [{brokerResources: [{method: Connect}]}]", "policy.yaml:1: groups is empty"},
		{"groups: {g: {}}\nrules: [{brokerResources: [{method: Connect}]}]", `policy.yaml:1: the group "g" names no clients; add clientIds`},
		{"groups: {g: {groups: [h]}}\nrules: [{brokerResources: [{method: Connect}]}]", `policy.yaml:1: unknown key "groups" in the group "g"`},
		{strings.Repeat("[", 40) + strings.Repeat("]", 40), "policy.yaml:1: this is nested too deeply"},
	} {
		_, err := Parse("policy.yaml", []byte(c.content))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngot  %v\nwant %s", c.content, err, c.want)
		}
	}

	_, err := Parse("p", []byte("rules:\n- brokerResources:\n  - method: Publsh\n  - method: Connect\n    topics: [a]\nrule: 1\n"))
	want := "p:3: unknown method \"Publsh\"; want Connect, Publish or Subscribe\n" +
		"p:5: an item with the method Connect cannot have topics; write another item with the method Publish or Subscribe\n" +
		"p:6: unknown key \"rule\" in the file; known are rules, groups; or apiVersion, kind, metadata and spec of a BrokerAuthorization"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// What is allowed and looks like a mistake is told by the check command.
func TestWarnings(t *testing.T) {
	t.Parallel()
	p := parse(t, `
groups: {unused: {clientIds: [a]}}
rules:
- principals: {clientIds: ["a*"]}
  brokerResources: [{method: Publish, topics: ["telemetry/*"]}]
  stateStoreResources: [{method: Read, keyType: Pattern, keys: ["{principal.clientId}*"]}]
`)
	var got []string
	for _, w := range p.Warnings {
		got = append(got, fmt.Sprintf("%d: %.16s", w.Line, w.Text))
	}
	want := []string{"2: no rule refers t", "4: * is not a wildc", "4: no rule has the ", "5: \"telemetry/*\": *", "6: \"{principal.clie"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// At each bound a file is read, and one above it is not.
func TestBounds(t *testing.T) {
	t.Parallel()
	list := func(n int, each string) string { return strings.Repeat(each+"\n", n) }
	numbered := func(n int, prefix string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%s%d\n", prefix, i)
		}
		return b.String()
	}
	for _, c := range []struct{ what, at, above, want string }{
		{"rules", "rules:\n" + list(maxRules, "- {brokerResources: [{method: Connect}]}"),
			"rules:\n" + list(maxRules+1, "- {brokerResources: [{method: Connect}]}"), "the file has 20001 rules; at most 20000 are allowed"},
		{"items", "rules:\n- brokerResources:\n  - method: Publish\n    topics:\n" + numbered(maxEntries-2, "    - t"),
			"rules:\n- brokerResources:\n  - method: Publish\n    topics:\n" + numbered(maxEntries-1, "    - t"), "more than 200000 items"},
		{"text", "rules: [{brokerResources: [{method: Publish, topics: [" + strings.Repeat("t", maxText) + "]}]}]",
			"rules: [{brokerResources: [{method: Publish, topics: [" + strings.Repeat("t", maxText+1) + "]}]}]", "more than 4096 bytes"},
		{"file", "rules: [{brokerResources: [{method: Connect}]}]\n#" + strings.Repeat("x", MaxFileBytes-49),
			"rules: [{brokerResources: [{method: Connect}]}]\n#" + strings.Repeat("x", MaxFileBytes-48), "the file is larger than"},
	} {
		if _, err := Parse("p", []byte(c.at)); err != nil {
			t.Errorf("%s at the bound: %.200v", c.what, err)
		}
		if _, err := Parse("p", []byte(c.above)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s above the bound: %.200v", c.what, err)
		}
	}
}
