package rewrite

import (
	"strings"
	"testing"

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

func TestPublish(t *testing.T) {
	t.Parallel()
	r := rules(t, "old/+/speed -> new/{1}/v", "old/# -> other/{1}", "+/x/# -> x/{2}/{1}", "subscribe only/# -> never", "top/# -> {1}", "chain -> old/1/speed", "deep/+ -> {1}{1}")
	for name, want := range map[string]string{
		"old/7/speed": "new/7/v", "old//speed": "new//v",
		"old/7/speed/x": "other/7/speed/x", "old": "other", "old/": "other/",
		"a/x/b/c": "x/b/c/a", "a/x": "x/a", "only/a": "only/a", "top/a/b": "a/b", "none": "none", "olds": "olds",
		"chain":  "old/1/speed", // the result is not looked at again
		"deep/ä": "ää", "$SYS/x/y": "$SYS/x/y",
	} {
		if got, ok := r.Publish([]byte(name)); !ok || string(got) != want {
			t.Errorf("%s: %s %v, want %s", name, got, ok, want)
		}
	}
	for _, name := range []string{"top/$SYS/broker/uptime", "top/$share/g/x", "top", "top/"} {
		if got, ok := r.Publish([]byte(name)); ok {
			t.Errorf("%s becomes %q, which is reserved or no topic", name, got)
		}
	}
	if got, ok := rules(t, "+ -> "+strings.Repeat("{1}", 20)).Publish([]byte(strings.Repeat("n", 4000))); ok {
		t.Errorf("a topic of %d bytes is taken for valid", len(got))
	}
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	r := rules(t, "old/+/speed -> new/{1}/v", "old/# -> other/{1}", "turn/# -> {1}/end", "publish only/# -> never", "top/# -> {1}", "level/+ -> l{1}")
	for filter, want := range map[string]string{
		"old/7/speed": "new/7/v", "old/+/speed": "new/+/v", "$share/g/old/+/speed": "$share/g/new/+/v",
		"old/#": "other/#", "old/+": "other/+", "old": "other", "+/7/speed": "+/7/speed", "#": "#", "$SYS/#": "$SYS/#", "only/#": "only/#", "top/#": "#",
		"level/#": "level/#", "turn/a": "a/end",
	} {
		if got, ok := r.Subscribe(filter); !ok || got != want {
			t.Errorf("%s: %s %v, want %s", filter, got, ok, want)
		}
	}
	for _, filter := range []string{"turn/#", "top/$SYS/#", "top", "level/+", "$share/g/top/$SYS/#"} {
		if got, ok := r.Subscribe(filter); ok {
			t.Errorf("%s becomes %q, which is reserved or no filter", filter, got)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "want FROM -> TO",
		"a":                                    "want FROM -> TO",
		"a->b":                                 "want FROM -> TO",
		" -> b":                                "is no topic filter",
		"a/#/b -> b":                           "is no topic filter",
		"a+ -> b":                              "is no topic filter",
		"$SYS/# -> b":                          "begin with $",
		"$share/g/a -> b":                      "begin with $",
		"a -> $SYS/a":                          "begin with $",
		"a -> ":                                "is no topic with",
		"a/+ -> b/+":                           "is no topic with",
		"a -> b\x00":                           "is no topic with",
		"a/+ -> b/{2}":                         "{2} stands for no wildcard",
		"a/+ -> b/{0}":                         "{0} stands for no wildcard",
		"a/+ -> b/{01}":                        "{01} stands for no wildcard",
		"a/+ -> b/{x}":                         "{x} stands for no wildcard",
		"a/+ -> b/{1":                          "stands for no wildcard",
		"a/+ -> b/1}":                          "there is a } without a {",
		"a -> " + strings.Repeat("x", maxTo+1): "is no topic with",
		"a\xff -> b":                           "is no topic filter",
	} {
		if _, err := Parse([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50q: %v, want %q", text, err, want)
		}
	}
	many := make([]string, MaxRules)
	for i := range many {
		many[i] = "a -> b"
	}
	if _, err := Parse(many); err != nil {
		t.Error(err)
	}
	if _, err := Parse(append(many, "a -> b")); err == nil {
		t.Error("there is one more rule than there may be")
	}
}

// Without rules nothing changes, and nothing is allocated.
func TestNoRules(t *testing.T) {
	r := rules(t)
	name := []byte("a/b")
	if n := testing.AllocsPerRun(100, func() {
		if to, ok := r.Publish(name); !ok || &to[0] != &name[0] {
			t.Error("the topic has changed")
		}
		if to, ok := r.Subscribe("a/#"); !ok || to != "a/#" {
			t.Error("the filter has changed")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever rule and name: what comes out as valid is valid, and not reserved.
func FuzzRewrite(f *testing.F) {
	f.Add("a/+/# -> {2}/{1}", "a/b/c")
	f.Add("# -> {1}", "$SYS/x")
	f.Add("top/# -> {1}", "top/$SYS/x")
	f.Fuzz(func(t *testing.T, text, name string) {
		r, err := Parse([]string{text})
		if err != nil {
			return
		}
		if topic.ValidName([]byte(name)) {
			if to, ok := r.Publish([]byte(name)); ok && string(to) != name && (!topic.ValidName(to) || to[0] == '$') {
				t.Errorf("%q makes %q of the topic %q", text, to, name)
			}
		}
		if topic.ValidFilter(name) {
			if to, ok := r.Subscribe(name); ok && to != name {
				_, rest, shared, valid := topic.SplitShare(to)
				if shared && !valid || !topic.ValidFilter(rest) || rest[0] == '$' {
					t.Errorf("%q makes %q of the filter %q", text, to, name)
				}
			}
		}
	})
}
