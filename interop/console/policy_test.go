package console

import (
	"os"
	"path/filepath"
	"testing"
)

// The page says what the policy allows a client, which rule says so, and what its principal may
// hold; without a policy, that there is none.
func TestPolicy(t *testing.T) {
	open := serve(t).open("#/policy")
	open.fill("input[name=topic]", "plant/4/speed")
	open.click("button.main", "Explain")
	open.shows("main", "There is no policy file")
	open.await("three answers", `document.querySelectorAll('.answer.allowed').length === 3`)

	dir := t.TempDir()
	users, policy := filepath.Join(dir, "users"), filepath.Join(dir, "policy.yaml")
	s := &server{t: t, dir: filepath.Join(dir, "data"), mqtt: freeAddr(t), admin: freeAddr(t), flags: []string{"--password-file", users, "--policy", policy}}
	for _, user := range []string{"olga", "press"} {
		s.run("", "passwd", users, user, "-b", "secret of "+user)
	}
	const text = `
rules:
  - principals: {usernames: [olga, press]}
    brokerResources: [{method: Connect}, {method: Publish, topics: ["statestore/#"]}, {method: Subscribe, topics: ["clients/{principal.clientId}/#"]}]
  - principals: {attributes: [{role: operator}]}
    brokerResources: [{method: Publish, topics: ["plant/+/speed"]}]
    stateStoreResources: [{method: Read, keyType: Pattern, keys: ["limits/*"]}]
groups: {admins: {usernames: [olga], quotas: {reserve: true}}}
`
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() { s.process.Kill() })
	p := s.open("#/policy")
	signIn := func(user string) {
		t.Helper()
		p.shows("h1", "Sign in")
		p.fill("input[name=user]", user)
		p.fill("input[name=password]", "secret of "+user)
		p.click("button", "Sign in")
		p.connected()
		p.shows("h1", "Policy")
	}
	signIn("olga")
	for name, value := range map[string]string{"client": "x", "attributes": "role=operator, site=7", "topic": "plant/4/speed", "key": "limits/<b>4</b>"} {
		p.fill("input[name="+name+"]", value)
	}
	p.click("button.main", "Explain")
	p.shows("main", "rules 2, groups 1")
	p.shows(".answer.denied", "Denied: connect")
	p.shows(".answer.allowed", "Allowed: publish plant/4/speed")
	p.shows(".answer.allowed", "rule 2")
	p.shows(".answer.denied", "Denied: subscribe plant/4/speed")
	p.shows(".answer.allowed", "Allowed: read limits/<b>4</b>")
	p.shows(".answer.denied", "Denied: write")
	p.shows("section", "What its principal may hold")
	p.fill("input[name=attributes]", "role")
	p.click("button.main", "Explain")
	p.shows(".problem", `the parameter attributes has "role"`)
	p.click("header button", "Sign out")
	signIn("press")
	p.click("button.main", "Explain")
	p.shows(".problem", "this is for administrators")
}
