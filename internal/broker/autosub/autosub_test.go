package autosub

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

func rules(tb testing.TB, texts ...string) *Rules {
	tb.Helper()
	r, err := Parse(texts)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// filters are those of a client's subscriptions.
func filters(subs []mqtt.Subscription) (all []string) {
	for _, s := range subs {
		all = append(all, string(s.Filter))
	}
	return all
}

func TestOptions(t *testing.T) {
	t.Parallel()
	all, _ := rules(t, "a", "b qos=2 no-local retain-as-published retain-handling=0", "\"with space/#\"  qos=1  clients=x*", "$share/g/{principal.clientId}/x retain-handling=2").Of("x1", "")
	for i, want := range []mqtt.Subscription{
		{Filter: []byte("a"), RetainHandling: 1},
		{Filter: []byte("b"), QoS: 2, NoLocal: true, RetainAsPublished: true},
		{Filter: []byte("with space/#"), QoS: 1, RetainHandling: 1},
		{Filter: []byte("$share/g/x1/x"), RetainHandling: 2},
	} {
		if fmt.Sprint(all[i]) != fmt.Sprint(want) {
			t.Errorf("subscription %d is %+v, want %+v", i, all[i], want)
		}
	}
}

// Clients get what is meant for them. Of rules that come to the same filter the first counts.
func TestClients(t *testing.T) {
	t.Parallel()
	r := rules(t, "all qos=1", "sensors clients=sensor-*", "all qos=2 clients=sensor-7", "to/{principal.clientId}", "of/{principal.username}/{principal.clientId}/#")
	for _, test := range []struct {
		client, user string
		want         []string
	}{
		{"sensor-7", "ann", []string{"all", "sensors", "to/sensor-7", "of/ann/sensor-7/#"}},
		{"x", "ann", []string{"all", "to/x", "of/ann/x/#"}},
		{"x", "", []string{"all", "to/x"}},
	} {
		all, unfit := r.Of(test.client, test.user)
		if got := filters(all); !slices.Equal(got, test.want) || all[0].QoS != 1 {
			t.Errorf("client %s of %q has %v, want %v", test.client, test.user, all, test.want)
		}
		if (len(unfit) > 0) != (test.user == "") {
			t.Errorf("client %s of %q: %v do not fit", test.client, test.user, unfit)
		}
	}
	if all, unfit := (*Rules)(nil).Of("c", "u"); all != nil || unfit != nil {
		t.Error("without rules there is a subscription")
	}
}

// A client whose name has a wildcard, a separator or a $ in front never gets more than a level.
func TestNamesAreNoPatterns(t *testing.T) {
	t.Parallel()
	r := rules(t, "{principal.clientId}", "{principal.clientId}/g/x", "to/{principal.clientId}/x", "u/{principal.username}")
	for _, name := range []string{"#", "+", "a/b", "a/#", "/", "$share", "$SYS", "a+", "a#", "a\x00", strings.Repeat("n", 65536)} {
		if all, unfit := r.Of(name, name); len(all) != 0 || len(unfit) != 4 {
			t.Errorf("%.20q has the subscriptions %.50q", name, filters(all))
		}
	}
	if all, _ := r.Of("a$b", "ä ö"); len(all) != 4 {
		t.Errorf("names that fit have %q", filters(all))
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                              "is no topic filter",
		"a/#/b":                         "is no topic filter",
		"a\xff":                         "is no topic filter",
		"$share/g":                      "is no topic filter",
		"a qos=3":                       `"qos=3": want FILTER`,
		"a qos":                         `"qos": want FILTER`,
		"a qos=1 qos=1":                 `"qos=1": want FILTER`,
		"a nolocal":                     `"nolocal": want FILTER`,
		"a no-local=1":                  `"no-local=1": want FILTER`,
		"a retain-handling=-1":          "want FILTER",
		"a clients=":                    "want FILTER",
		"a clients=[":                   "is no pattern",
		"two words":                     `"words": want FILTER`,
		`"a`:                            "does not end with one",
		`"a"qos=1`:                      "no space behind the filter",
		"$share/g/a no-local":           "cannot have no-local",
		"$share/{principal.clientId}/x": "cannot be the group",
		"to/{principal.clientID}":       "is no token that a filter may have: want {principal.clientId} or {principal.username}",
		"to/{principal.attributes.x}":   "is no token that a filter may have",
		"to/x{principal.clientId}":      "must be a level by itself",
	} {
		if _, err := Parse([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Parse([]string{"a", "b", "a qos=1"}); err == nil || !strings.Contains(err.Error(), "the same filter and the same clients") {
		t.Errorf("the same filter twice: %v", err)
	}
	var many []string
	for i := range MaxRules {
		many = append(many, fmt.Sprint("t", i))
	}
	rules(t, many...)
	if _, err := Parse(append(many, "x")); err == nil || !strings.Contains(err.Error(), "101 automatic subscriptions, and there may be 100") {
		t.Errorf("one more than there may be: %v", err)
	}
}

// Whatever rule and names: what comes out is a valid filter with as many levels as the rule's.
func FuzzOf(f *testing.F) {
	f.Add("to/{principal.clientId}/#", "c", "u")
	f.Add("{principal.username}/x qos=1", "#", "$share")
	f.Fuzz(func(t *testing.T, text, client, user string) {
		r, err := Parse([]string{text})
		if err != nil {
			return
		}
		all, _ := r.Of(client, user)
		for _, s := range all {
			rule := string(r.all[0].subscription.Filter)
			if !topic.ValidSubscription(string(s.Filter)) || strings.Count(string(s.Filter), "/") != strings.Count(rule, "/") ||
				strings.Count(string(s.Filter), "#") != strings.Count(rule, "#") || strings.Count(string(s.Filter), "+") != strings.Count(rule, "+") {
				t.Errorf("the rule %q makes %q for the client %q of the user %q", text, s.Filter, client, user)
			}
		}
	})
}
