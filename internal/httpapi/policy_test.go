package httpapi_test

import (
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
)

// An administrator asks what the policy in force allows a client, and why.
func TestPolicy(t *testing.T) {
	t.Parallel()
	a := secured(t).as("olga")
	var got httpapi.Policy
	if status := a.ask("GET", "/api/v1/policy?client=press%3A1&username=press&attributes=site%3D7,+role%3Doperator&topic=her%2Ft&key=k", nil, &got); status != 200 {
		t.Fatalf("status %d", status)
	}
	if got.Rules != 2 || got.Groups != 1 || !strings.HasSuffix(got.File, "policy.yaml") || len(got.Quotas) == 0 {
		t.Errorf("the policy is %+v", got)
	}
	want := []struct {
		action, name string
		allowed      bool
		line         string
	}{
		{"connect", "", true, "rule 1"}, {"publish", "her/t", true, `"#" on line 3`}, {"subscribe", "her/t", false, "no rule allows it"},
		{"read", "k", false, "no rule allows it"}, {"write", "k", false, "no rule allows it"},
	}
	for i, w := range want {
		if i >= len(got.Answers) {
			t.Fatalf("%d answers", len(got.Answers))
		}
		if g := got.Answers[i]; g.Action != w.action || g.Name != w.name || g.Allowed != w.allowed || !strings.Contains(strings.Join(g.Lines, "\n"), w.line) {
			t.Errorf("answer %d is %+v, want %+v", i, g, w)
		}
	}
	got = httpapi.Policy{}
	if a.ask("GET", "/api/v1/policy?username=olga", nil, &got); len(got.Answers) != 1 || got.Answers[0].Allowed || !strings.Contains(strings.Join(got.Quotas, "\n"), `by group "operators"`) {
		t.Errorf("olga: %+v", got)
	}
	for query, text := range map[string]string{
		"attributes=role": `the parameter attributes has "role"`, "attributes=%3Dx": "NAME=VALUE", "topics=x": `the parameter "topics" is not known`,
		"attributes=" + many(65): "up to 64",
	} {
		a.refused(400, text, "GET", "/api/v1/policy?"+query, nil)
	}
	if status := a.ask("GET", "/api/v1/policy?attributes="+many(64), nil, nil); status != 200 {
		t.Errorf("64 attributes: status %d", status)
	}
	a.as("press").refused(403, "this is for administrators", "GET", "/api/v1/policy", nil)
}

// many are so many attributes.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("a" + strings.Repeat("x", i) + "%3Db,")
	}
	return b.String()
}

// Without a policy every client may do everything.
func TestNoPolicy(t *testing.T) {
	t.Parallel()
	var got httpapi.Policy
	if status := start(t).ask("GET", "/api/v1/policy?topic=t", nil, &got); status != 200 || got.File != "" || len(got.Answers) != 3 || !got.Answers[2].Allowed {
		t.Errorf("status %d, %+v", status, got)
	}
}

// A server by itself has no cluster.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	a := start(t)
	a.refused(404, "this server is by itself", "GET", "/api/v1/cluster", nil)
	a.refused(404, "this server is by itself", "POST", "/api/v1/cluster/transfer", httpapi.Transfer{To: "b"})
}
