package statefuzz

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// The sequences of this file play clients with identities against a policy that changes.
// Beside the server a model says who may do what. It shares no code with package policy:
// it goes through all topics of a small world to say whether a filter covers another.
//
// Packets follow each other one at a time, so each answer, and each message that arrives,
// is either what the model says or wrong.

// believing is an Authenticator that takes each client for what it says it is.
type believing struct{}

func (believing) Connect(p *mqtt.Connect, clientID string, _ *access.Origin, _ <-chan struct{}) access.Verdict {
	return access.Verdict{Identity: &access.Identity{ClientID: clientID, Username: string(p.Username), Method: access.Password}}
}

func (believing) Holds(*access.Identity) bool { return true }

func (believing) Reauthenticate(*access.Identity, *mqtt.Auth, *access.Origin, <-chan struct{}) access.Verdict {
	return access.Verdict{Code: mqtt.NotAuthorized}
}

// The world of the model. Client IDs are chosen by attackers, too: some would be wildcards
// or several levels, or are another's user name.
var (
	userNames  = []string{"u0", "u1", "u2", "u3"}
	clientIDs  = []string{"c0", "u0", "#", "a/b", "+", "*", "a:b"}
	topicParts = []string{"a", "b", "c0", "u0", "u1", "u2", "other"}
	ruleTopics = []string{"a/b", "a/+", "a/#", "+/b", "b", "#", "{principal.username}/#", "b/{principal.username}", "{principal.clientId}/+", "a/{principal.clientId}", "{principal.clientId}"}
	filters    = append([]string{"+", "+/+", "b/+", "a", "u0/#", "u1/a", "b/u0", "c0/+", "a/c0", "+/#", "$share/g/a/+"}, ruleTopics[:6]...)
	ruleKeys   = []string{"*", "{principal.username}:*", "p:{principal.clientId}:*", "shared", "*:x"}
	storeKeys  = []string{"u0:x", "u1:x", "u1:y", "p:c0:x", "p:#:x", "p:a:b:x", "p:*:x", "p:u0:y", "shared", "z"}
	allTopics  = worldTopics()
	answers    = []string{"answers/u0", "answers/u1", "answers/u2", "answers/u3"}
)

func worldTopics() (all []string) {
	for _, a := range topicParts {
		all = append(all, a)
		for _, b := range topicParts {
			all = append(all, a+"/"+b)
			for _, c := range topicParts {
				all = append(all, a+"/"+b+"/"+c)
			}
		}
	}
	return all
}

// modelRule is a rule of the policy in force.
type modelRule struct {
	users              []string // none: every client
	connect            bool
	publish, subscribe []string
	read, write        []string
}

// actor is a client: who it is, and what it has if it is connected.
type actor struct {
	id, user string
	c        *mqtttest.Client // nil: not connected
	filters  map[string]bool
	watches  map[string]bool
}

// governedWorld is a server with a policy, and the model of it.
type governedWorld struct {
	t      *testing.T
	r      *rand.Rand
	s      *testserver.Server
	file   string
	rules  []modelRule
	actors []*actor
	sent   int
}

func some[T any](r *rand.Rand, all []T, n int) (list []T) {
	for _, i := range r.Perm(len(all))[:n] {
		list = append(list, all[i])
	}
	return list
}

// draw makes a policy. Every client may use the store and be answered.
func (w *governedWorld) draw() {
	w.rules = []modelRule{{publish: []string{protocol.Current.Topic}, subscribe: []string{"answers/#"}}}
	for _, u := range userNames {
		if w.r.IntN(5) > 0 {
			w.rules = append(w.rules, modelRule{users: []string{u}, connect: true})
		}
	}
	for range 1 + w.r.IntN(4) {
		r := modelRule{users: some(w.r, userNames, w.r.IntN(3))}
		r.publish, r.subscribe = some(w.r, ruleTopics, w.r.IntN(3)), some(w.r, ruleTopics, w.r.IntN(4))
		r.read, r.write = some(w.r, ruleKeys, w.r.IntN(3)), some(w.r, ruleKeys, w.r.IntN(3))
		w.rules = append(w.rules, r)
	}
}

// text is the policy as a file.
func (w *governedWorld) text() string {
	var b strings.Builder
	b.WriteString("rules:\n")
	for _, r := range w.rules {
		b.WriteString("- ")
		if len(r.users) > 0 {
			fmt.Fprintf(&b, "principals: {usernames: [%s]}\n  ", strings.Join(r.users, ", "))
		}
		b.WriteString("brokerResources:\n")
		if r.connect {
			b.WriteString("  - method: Connect\n")
		}
		list := func(head, name string, items []string) {
			if len(items) > 0 {
				fmt.Fprintf(&b, "  - {%s, %s: ['%s']}\n", head, name, strings.Join(items, "', '"))
			}
		}
		list("method: Publish", "topics", r.publish)
		list("method: Subscribe", "topics", append(slices.Clip(r.subscribe), "never/used"))
		list("method: Publish", "topics", []string{"never/used"})
		b.WriteString("  stateStoreResources:\n")
		list("method: Read, keyType: Pattern", "keys", append(slices.Clip(r.read), "never-used"))
		list("method: Write, keyType: Pattern", "keys", r.write)
	}
	return b.String()
}

// allowed gives the patterns that rules have for the actor, with its tokens; of takes
// them from a rule.
func (w *governedWorld) allowed(a *actor, forbidden string, of func(*modelRule) []string) (patterns []string) {
	for i := range w.rules {
		r := &w.rules[i]
		if len(r.users) > 0 && !slices.Contains(r.users, a.user) {
			continue
		}
		for _, p := range of(r) {
			value := a.user
			if strings.Contains(p, "clientId") {
				value = a.id
			}
			if strings.Contains(p, "{") && strings.ContainsAny(value, forbidden) {
				continue
			}
			p = strings.ReplaceAll(p, "*", "\x00") // a star of the rule, and none of the value
			p = strings.NewReplacer("{principal.clientId}", a.id, "{principal.username}", a.user).Replace(p)
			patterns = append(patterns, p)
		}
	}
	return patterns
}

func (w *governedWorld) mayConnect(a *actor) bool {
	return slices.ContainsFunc(w.rules, func(r modelRule) bool {
		return r.connect && (len(r.users) == 0 || slices.Contains(r.users, a.user))
	})
}

func (w *governedWorld) mayPublish(a *actor, name string) bool {
	return slices.ContainsFunc(w.allowed(a, "/+#", func(r *modelRule) []string { return r.publish }), func(p string) bool { return topic.Matches(p, []byte(name)) })
}

func (w *governedWorld) maySubscribe(a *actor, filter string) bool {
	filter = strings.TrimPrefix(filter, "$share/g/")
	return slices.ContainsFunc(w.allowed(a, "/+#", func(r *modelRule) []string { return r.subscribe }), func(p string) bool {
		uncovered := func(name string) bool {
			return topic.Matches(filter, []byte(name)) && !topic.Matches(p, []byte(name))
		}
		return !slices.ContainsFunc(allTopics, uncovered) && !slices.ContainsFunc(answers, uncovered)
	})
}

func (w *governedWorld) mayUse(a *actor, key string, of func(*modelRule) []string) bool {
	return slices.ContainsFunc(w.allowed(a, "/:", of), func(p string) bool {
		before, after, star := strings.Cut(p, "\x00")
		if !star {
			return p == key
		}
		return len(key) >= len(before)+len(after) && strings.HasPrefix(key, before) && strings.HasSuffix(key, after)
	})
}

func (w *governedWorld) mayRead(a *actor, key string) bool {
	return w.mayUse(a, key, func(r *modelRule) []string { return r.read })
}

func (w *governedWorld) mayWrite(a *actor, key string) bool {
	return w.mayUse(a, key, func(r *modelRule) []string { return r.write })
}

// TestPolicySequences plays clients against a policy that changes, beside the model.
func TestPolicySequences(t *testing.T) {
	t.Parallel()
	seed := *firstOne
	if seed == 0 {
		seed = rand.Uint64() >> 16
	}
	fmt.Fprintf(os.Stderr, "statefuzz: policies: seeds from %d on\n", seed)
	w := &governedWorld{t: t, file: filepath.Join(t.TempDir(), "policy.yaml")}
	w.r = rand.New(rand.NewPCG(seed, 0))
	w.draw()
	w.write()
	w.s = testserver.Start(t, func(c *server.Config) {
		c.Auth, c.Policy, c.ReloadInterval = believing{}, w.file, time.Hour
	})
	played := 0
	for end := time.Now().Add(*duration); time.Now().Before(end) || played == 0; played++ {
		w.r = rand.New(rand.NewPCG(seed+uint64(played), 0))
		w.sequence()
		if t.Failed() {
			t.Fatalf("seed %d; the policy:\n%s", seed+uint64(played), w.text())
		}
	}
	t.Logf("%d sequences", played)
}

func (w *governedWorld) write() {
	w.t.Helper()
	if err := os.WriteFile(w.file, []byte(w.text()), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// sequence plays with new clients.
func (w *governedWorld) sequence() {
	w.actors = nil
	for i, id := range some(w.r, clientIDs, 4) {
		w.actors = append(w.actors, &actor{id: id, user: userNames[i]})
	}
	w.govern()
	for range 60 {
		a := w.actors[w.r.IntN(len(w.actors))]
		switch n := w.r.IntN(20); {
		case n == 0:
			w.govern()
		case a.c == nil:
		case n < 8:
			w.publish(a)
		case n < 12:
			w.subscribe(a)
		case n < 15:
			w.set(a)
		case n < 18:
			w.read(a)
		default:
			w.scan(a)
		}
	}
	for _, a := range w.actors {
		if a.c != nil {
			a.c.Disconnect()
			a.c.AwaitEnd()
		}
	}
}

// govern puts another policy in force: clients that have lost something are disconnected,
// others are not.
func (w *governedWorld) govern() {
	w.draw()
	w.write()
	if err := w.s.Reload(); err != nil {
		w.t.Fatal(err)
	}
	for _, a := range w.actors {
		lost := !w.mayConnect(a)
		for filter := range a.filters {
			lost = lost || !w.maySubscribe(a, filter)
		}
		for key := range a.watches {
			lost = lost || !w.mayRead(a, key)
		}
		if a.c != nil && lost {
			a.c.AwaitDisconnect(mqtt.NotAuthorized)
			a.c = nil
		}
		switch options := []mqtttest.Option{mqtttest.ClientID(a.id), mqtttest.Credentials(a.user, "")}; {
		case a.c != nil:
			a.c.Ping()
		case w.mayConnect(a):
			a.c = mqtttest.Connect(w.t, w.s.Addr, options...)
			a.filters, a.watches = map[string]bool{}, map[string]bool{}
			a.c.Subscribe("answers/"+a.user, 1)
		default:
			mqtttest.Refused(w.t, w.s.Addr, mqtt.NotAuthorized, options...)
		}
	}
}

// publish sends a message, and looks who gets it.
func (w *governedWorld) publish(a *actor) {
	name := allTopics[w.r.IntN(len(allTopics))]
	if w.r.IntN(3) > 0 {
		name = []string{"a", "b", "a/b", "u0/a", "u1/a", "b/u0", "c0/a", "a/c0", "c0"}[w.r.IntN(9)]
	}
	w.sent++
	m := mqtttest.Message{Topic: name, QoS: 1 + byte(w.r.IntN(2)), Payload: fmt.Sprint(w.sent)}
	code := a.c.Offer(m).Code
	if may := w.mayPublish(a, name); may == (code == mqtt.NotAuthorized) {
		w.t.Errorf("client %q, user %s, publishes to %s: %v, the model says %v", a.id, a.user, name, code, may)
	}
	shared := 0
	for _, b := range w.actors {
		if b.c == nil {
			continue
		}
		plain := slices.ContainsFunc(slices.Collect(maps.Keys(b.filters)), func(f string) bool {
			return !strings.HasPrefix(f, "$share/") && topic.Matches(f, []byte(name))
		})
		inGroup := b.filters["$share/g/a/+"] && topic.Matches("a/+", []byte(name))
		got := 0
		for _, m := range w.collect(b) {
			got++
			if m.Topic != name || code == mqtt.NotAuthorized || !w.maySubscribe(b, m.Topic) {
				w.t.Errorf("client %q, user %s, got %v, which it may not have", b.id, b.user, m)
			}
		}
		if plain && code != mqtt.NotAuthorized {
			got--
		}
		shared += got
		if got != 0 && !(inGroup && got == 1) {
			w.t.Errorf("client %q, user %s, subscribed to %v, got %d messages too many to %s", b.id, b.user, b.filters, got, name)
		}
	}
	if shared > 1 {
		w.t.Errorf("%d members of a shared subscription got the message", shared)
	}
}

func (w *governedWorld) subscribe(a *actor) {
	filter := filters[w.r.IntN(len(filters))]
	code := a.c.OfferSubscribe(0, mqtttest.Sub{Filter: filter, QoS: 2}).Codes[0]
	may := w.maySubscribe(a, filter)
	if may != (code == mqtt.GrantedQoS2) || !may && code != mqtt.NotAuthorized {
		w.t.Errorf("client %q, user %s, subscribes to %s: %v, the model says %v", a.id, a.user, filter, code, may)
	}
	if may {
		a.filters[filter] = true
	}
}

// ask sends a request, and gives its answer. Notifications that come with it are the
// caller's to look at.
func (w *governedWorld) ask(a *actor, args ...string) (answer string, notifications []mqtttest.Message) {
	w.sent++
	correlation := fmt.Sprint(w.sent)
	response := "answers/" + a.user
	m := mqtttest.Message{
		Topic: protocol.Current.Topic, QoS: 1, ResponseTopic: &response, CorrelationData: &correlation,
		Payload: fmt.Sprintf("*%d\r\n", len(args)),
		User:    [][2]string{{protocol.Current.TimeProperty, fmt.Sprintf("%015d:00000:fuzz", time.Now().UnixMilli())}},
	}
	for _, arg := range args {
		m.Payload += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
	}
	if code := a.c.Offer(m).Code; code != mqtt.Success {
		w.t.Errorf("client %q, user %s, asks the store: %v", a.id, a.user, code)
		return "", nil
	}
	answered := a.c.Await("the answer", func(p *mqtttest.Packet) bool {
		return p.Type == mqtt.PUBLISH && p.Publish.CorrelationData != nil && *p.Publish.CorrelationData == correlation
	})
	return answered.Publish.Payload, w.collect(a)
}

// collect gives what has arrived at a client, but for answers to others, which come to a
// client that has subscribed to everything.
func (w *governedWorld) collect(a *actor) (got []mqtttest.Message) {
	for _, m := range a.c.Collect() {
		switch {
		case !strings.HasPrefix(m.Topic, "answers/"):
			got = append(got, m)
		case !w.maySubscribe(a, m.Topic):
			w.t.Errorf("client %q, user %s, got %v, which it may not have", a.id, a.user, m)
		}
	}
	return got
}

const deniedAnswer = "-ERR not authorized\r\n"

func (w *governedWorld) wantAnswer(a *actor, may bool, answer string, args ...string) {
	if may == (answer == deniedAnswer) {
		w.t.Errorf("client %q, user %s: %q answers %q, the model says %v", a.id, a.user, args, answer, may)
	}
}

// set writes a key, and looks who is told.
func (w *governedWorld) set(a *actor) {
	key := storeKeys[w.r.IntN(len(storeKeys))]
	args := []string{"SET", key, fmt.Sprint("v", w.sent)}
	answer, own := w.ask(a, args...)
	may := w.mayWrite(a, key)
	w.wantAnswer(a, may, answer, args...)
	for _, b := range w.actors {
		if b.c == nil {
			continue
		}
		told := own
		if b != a {
			told = w.collect(b)
		}
		want := 0
		if may && b.watches[key] {
			want = 1
		}
		if len(told) != want {
			w.t.Errorf("client %q, user %s, watches %v and was told %v of %s", b.id, b.user, b.watches, told, key)
		}
	}
}

// read asks for a key, or watches it.
func (w *governedWorld) read(a *actor) {
	key := storeKeys[w.r.IntN(len(storeKeys))]
	args := []string{[]string{"GET", "KEYNOTIFY"}[w.r.IntN(2)], key}
	answer, _ := w.ask(a, args...)
	may := w.mayRead(a, key)
	w.wantAnswer(a, may, answer, args...)
	if args[0] == "KEYNOTIFY" && may {
		a.watches[key] = true
	}
}

// scan asks for all keys.
func (w *governedWorld) scan(a *actor) {
	answer, _ := w.ask(a, "SCAN", "*")
	for _, key := range storeKeys {
		if !w.mayRead(a, key) && strings.Contains(answer, "\r\n"+key+"\r\n") {
			w.t.Errorf("client %q, user %s: SCAN shows %s, which it may not read", a.id, a.user, key)
		}
	}
}
