package interop

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// A policy that `holdfast policy import-mosquitto` has made of an access control list
// decides as Mosquitto does: the same client may publish to the same topics and gets
// messages of the same topics, and a subscription that Holdfast grants matches nothing that
// Mosquitto would not deliver. The lists are generated; what differs for a reason is in
// TestImportedAccessControlListDiffers.
func TestImportedAccessControlList(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			list := generateACL(random)
			b := startACLBrokers(t, list.String(), true)
			topics := allTopics()
			for _, user := range []string{"", "a", "b", "other"} {
				for _, id := range []string{"a", "c", "station"} {
					what := fmt.Sprintf("user %q, client ID %q", user, id)
					ours, theirs := b.holdfast.enter(t, user, id), b.mosquitto.enter(t, user, id)
					for _, topic := range topics {
						if here, there := ours.mayPublish(t, topic), theirs.mayPublish(t, topic); here != there {
							t.Errorf("%s: publishing to %s is allowed by Holdfast: %v, by Mosquitto: %v", what, topic, here, there)
						}
					}
					// Mosquitto grants every subscription, and delivers what may be read.
					theirs.maySubscribe(t, "#")
					readable := b.mosquitto.received(t, theirs, topics)
					granted := ours.granted(t, topics)
					if !slices.Equal(granted, readable) {
						t.Errorf("%s: Holdfast grants subscriptions to %q,\nMosquitto delivers messages of %q", what, granted, readable)
					}
					if got := b.holdfast.received(t, ours, topics); !slices.Equal(got, granted) {
						t.Errorf("%s: Holdfast grants subscriptions to %q,\nand delivers messages of %q", what, granted, got)
					}
					for _, filter := range ours.granted(t, generateFilters(random)) {
						for _, topic := range topics {
							if filterMatches(filter, topic) && !slices.Contains(readable, topic) {
								t.Errorf("%s: Holdfast grants a subscription to %s, and Mosquitto does not deliver messages of %s", what, filter, topic)
							}
						}
					}
					own := list.readFilters(user, id)
					if granted := ours.granted(t, own); !slices.Equal(granted, own) {
						t.Errorf("%s: of the list's own filters %q Holdfast grants %q", what, own, granted)
					}
					ours.close()
					theirs.close()
				}
			}
			if t.Failed() {
				t.Logf("the list:\n%s\nthe policy:\n%s", list, b.policy)
			}
		})
	}
}

// The two brokers differ where docs/policy.md says so.
func TestImportedAccessControlListDiffers(t *testing.T) {
	list := strings.Join([]string{
		"topic read end",
		"user a",
		"topic readwrite own/#", "topic deny own/secret",
		"topic read joint", "topic read joint/+/#",
		"pattern read end", "pattern readwrite dev/%c/#", "pattern read name-%c",
	}, "\n")
	b := startACLBrokers(t, list, false)
	both := func(id string) (ours, theirs *aclClient) {
		t.Helper()
		ours, theirs = b.holdfast.enter(t, "a", id), b.mosquitto.enter(t, "a", id)
		t.Cleanup(ours.close)
		t.Cleanup(theirs.close)
		return ours, theirs
	}
	want := func(what string, here, there, wantHere, wantThere bool) {
		t.Helper()
		if here != wantHere || there != wantThere {
			t.Errorf("%s is allowed by Holdfast: %v, by Mosquitto: %v; docs/policy.md says %v and %v", what, here, there, wantHere, wantThere)
		}
	}

	ours, theirs := both("plain")
	want("what a deny line takes away", ours.mayPublish(t, "own/secret"), theirs.mayPublish(t, "own/secret"), true, false)
	want("a level that is only in part the client ID", ours.maySubscribe(t, "name-plain"),
		slices.Contains(b.mosquitto.readable(t, theirs, "name-plain"), "name-plain"), false, true)
	// Two lines that cover a filter only together.
	want("a subscription that two lines allow together", ours.maySubscribe(t, "joint/#"), theirs.maySubscribe(t, "joint/#"), false, true)
	want("a subscription to more than may be read", ours.maySubscribe(t, "#"), theirs.maySubscribe(t, "#"), false, true)

	ours, theirs = both("x/y")
	want("publishing below a client ID with a slash", ours.mayPublish(t, "dev/x/y/speed"), theirs.mayPublish(t, "dev/x/y/speed"), false, true)
	ours, theirs = both("x+y")
	want("publishing by a client ID with a +, where no pattern is needed", ours.mayPublish(t, "own/speed"), theirs.mayPublish(t, "own/speed"), true, true)
	want("publishing below a client ID with a +", ours.mayPublish(t, "dev/x/speed"), theirs.mayPublish(t, "dev/x/speed"), false, false)
}

// aclBrokers are Holdfast and Mosquitto with the same users and the same access control list.
type aclBrokers struct {
	holdfast, mosquitto *aclBroker
	policy              []byte
}

// aclBroker is one of them, and a client of it that may publish everything.
type aclBroker struct {
	server *server
	all    *aclClient
	round  int
}

// aclUsers are the users of both brokers; their password is their name.
var aclUsers = []string{"a", "b", "other", "everything"}

func startACLBrokers(t *testing.T, list string, converts bool) *aclBrokers {
	t.Helper()
	if site != "" {
		t.Skip("clients without a user name are a part of this test, and mutual TLS gives each one")
	}
	needMosquittoPasswd(t)
	dir := t.TempDir()
	users, acl, policy := filepath.Join(dir, "users"), filepath.Join(dir, "acl"), filepath.Join(dir, "policy.yaml")
	for _, user := range aclUsers {
		runProgram(t, binary, "passwd", users, user, "-b", user, "-I", "1000")
	}
	list += "\nuser everything\ntopic readwrite #\n"
	if err := os.WriteFile(acl, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	convert := exec.CommandContext(deadline(t), binary, "policy", "import-mosquitto", acl)
	convert.Stderr = &problems
	converted, err := convert.Output()
	if converts && err != nil || !converts && err == nil {
		t.Fatalf("holdfast policy import-mosquitto: %v: %s", err, &problems)
	}
	if err := os.WriteFile(policy, converted, 0o600); err != nil {
		t.Fatal(err)
	}
	b := &aclBrokers{
		holdfast:  &aclBroker{server: ownServerWith(t, "--password-file", users, "--policy", policy, "--allow-anonymous")},
		mosquitto: &aclBroker{server: startMosquitto(t, users, "acl_file "+acl, "allow_anonymous true")},
		policy:    converted,
	}
	for _, side := range []*aclBroker{b.holdfast, b.mosquitto} {
		side.all = side.enter(t, "everything", "everything")
		t.Cleanup(side.all.close)
	}
	return b
}

// endTopic is a topic that every client may subscribe to: its message comes last.
const endTopic = "end"

// received has the client that may publish everything publish to all topics, and gives those
// of which another client, which has subscribed, gets the message.
func (b *aclBroker) received(t *testing.T, c *aclClient, topics []string) (got []string) {
	t.Helper()
	if !c.maySubscribe(t, endTopic) {
		t.Fatalf("no subscription to %s", endTopic)
	}
	b.round++
	end := fmt.Sprint(b.round)
	for _, topic := range topics {
		b.all.publish(t, topic, 0, end)
	}
	b.all.publish(t, endTopic, 0, end)
	for {
		p := c.read(t, packets.PUBLISH).Content.(*packets.Publish)
		if string(p.Payload) != end {
			continue // of a round before
		}
		if p.Topic == endTopic {
			return slices.Compact(slices.Sorted(slices.Values(got)))
		}
		got = append(got, p.Topic)
	}
}

// readable is received of one topic, to which the client subscribes.
func (b *aclBroker) readable(t *testing.T, c *aclClient, topic string) []string {
	t.Helper()
	c.maySubscribe(t, topic)
	return b.received(t, c, []string{topic})
}

// aclClient is a connection with MQTT 5, whose acknowledgements say what is denied.
type aclClient struct {
	conn   net.Conn
	packet uint16
}

// enter connects a client with a user name, or without one if it is empty.
func (b *aclBroker) enter(t *testing.T, user, id string) *aclClient {
	t.Helper()
	conn, err := net.DialTimeout("tcp", b.server.tcp, patience)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	c := &aclClient{conn: conn}
	p := packets.NewControlPacket(packets.CONNECT)
	hello := p.Content.(*packets.Connect)
	hello.ClientID, hello.CleanStart, hello.KeepAlive = id, true, 60
	if user != "" {
		hello.UsernameFlag, hello.Username = true, user
		hello.PasswordFlag, hello.Password = true, []byte(user)
	}
	c.write(t, p)
	if ack := c.read(t, packets.CONNACK).Content.(*packets.Connack); ack.ReasonCode != packets.ConnackSuccess {
		t.Fatalf("user %q, client ID %q: refused with 0x%02X", user, id, ack.ReasonCode)
	}
	return c
}

func (c *aclClient) close() { c.conn.Close() }

func (c *aclClient) write(t *testing.T, p *packets.ControlPacket) {
	t.Helper()
	var b bytes.Buffer
	if _, err := p.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := c.conn.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// read waits for a packet of some type, and passes over messages that come before it.
func (c *aclClient) read(t *testing.T, want byte) *packets.ControlPacket {
	t.Helper()
	for {
		p, err := packets.ReadPacket(c.conn)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			t.Fatalf("waiting for a packet of type %d: %v", want, err)
		}
		switch {
		case p.Type == want:
			return p
		case p.Type != packets.PUBLISH:
			t.Fatalf("got %v, want a packet of type %d", p, want)
		}
	}
}

func (c *aclClient) publish(t *testing.T, topic string, qos byte, payload string) {
	t.Helper()
	p := packets.NewControlPacket(packets.PUBLISH)
	m := p.Content.(*packets.Publish)
	m.Topic, m.QoS, m.Payload = topic, qos, []byte(payload)
	p.Flags = qos << 1
	if qos > 0 {
		c.packet++
		m.PacketID = c.packet
	}
	c.write(t, p)
}

// mayPublish publishes, and says whether that was allowed.
func (c *aclClient) mayPublish(t *testing.T, topic string) bool {
	t.Helper()
	c.publish(t, topic, 1, "")
	return c.read(t, packets.PUBACK).Content.(*packets.Puback).ReasonCode != packets.PubackNotAuthorized
}

// maySubscribe subscribes, and says whether that was allowed.
func (c *aclClient) maySubscribe(t *testing.T, filter string) bool {
	t.Helper()
	return len(c.granted(t, []string{filter})) == 1
}

// granted subscribes to filters, and gives those that were allowed.
func (c *aclClient) granted(t *testing.T, filters []string) (granted []string) {
	t.Helper()
	if len(filters) == 0 {
		return nil
	}
	p := packets.NewControlPacket(packets.SUBSCRIBE)
	s := p.Content.(*packets.Subscribe)
	c.packet++
	s.PacketID = c.packet
	for _, f := range filters {
		s.Subscriptions = append(s.Subscriptions, packets.SubOptions{Topic: f})
	}
	c.write(t, p)
	for i, code := range c.read(t, packets.SUBACK).Content.(*packets.Suback).Reasons {
		if code < 0x80 {
			granted = append(granted, filters[i])
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(granted)))
}

// acl is an access control list: lines by user, "" for clients without a name, "%" for
// pattern lines.
type acl map[string][]aclLine

type aclLine struct{ access, filter string }

// aclLevels are the levels of topics; two are users, two client IDs.
var aclLevels = []string{"a", "b", "c", "x"}

func generateACL(random *rand.Rand) acl {
	list := acl{"": {{"read", endTopic}}, "%": {{"read", endTopic}}}
	for _, user := range []string{"", "a", "b", "%"} {
		for range 1 + random.IntN(5) {
			access := []string{"read", "write", "readwrite"}[random.IntN(3)]
			list[user] = append(list[user], aclLine{access, generateFilter(random, user == "%")})
		}
	}
	return list
}

// generateFilter makes a filter of one to three levels, and possibly # behind them. Those of
// a pattern line have %u and %c as levels.
func generateFilter(random *rand.Rand, pattern bool) string {
	var levels []string
	for range 1 + random.IntN(3) {
		switch n := random.IntN(10); {
		case pattern && n < 3:
			levels = append(levels, "%u")
		case pattern && n < 6:
			levels = append(levels, "%c")
		case n < 7:
			levels = append(levels, aclLevels[random.IntN(len(aclLevels))])
		default:
			levels = append(levels, "+")
		}
	}
	if random.IntN(4) == 0 {
		levels = append(levels, "#")
	}
	return strings.Join(levels, "/")
}

func generateFilters(random *rand.Rand) (filters []string) {
	for range 40 {
		filters = append(filters, generateFilter(random, false))
	}
	return filters
}

// allTopics are all topics of one to three levels, sorted.
func allTopics() (topics []string) {
	var grow func(prefix string, depth int)
	grow = func(prefix string, depth int) {
		for _, l := range aclLevels {
			topics = append(topics, prefix+l)
			if depth > 1 {
				grow(prefix+l+"/", depth-1)
			}
		}
	}
	grow("", 3)
	slices.Sort(topics)
	return topics
}

// String is the list as Mosquitto reads it.
func (a acl) String() string {
	var b strings.Builder
	for _, user := range []string{"", "a", "b", "%"} {
		word := "topic"
		switch user {
		case "":
		case "%":
			word = "pattern"
		default:
			fmt.Fprintf(&b, "user %s\n", user)
		}
		for _, line := range a[user] {
			fmt.Fprintf(&b, "%s %s %s\n", word, line.access, line.filter)
		}
	}
	return b.String()
}

// readFilters are the filters of a client's own lines by which it may read, sorted.
func (a acl) readFilters(user, id string) (filters []string) {
	for _, line := range slices.Concat(a[user], a["%"]) {
		if line.access == "write" || user == "" && strings.Contains(line.filter, "%u") {
			continue
		}
		filters = append(filters, strings.NewReplacer("%u", user, "%c", id).Replace(line.filter))
	}
	return slices.Compact(slices.Sorted(slices.Values(filters)))
}

// filterMatches says whether a topic filter matches a topic that does not begin with $.
func filterMatches(filter, topic string) bool {
	f, n := strings.Split(filter, "/"), strings.Split(topic, "/")
	for i, level := range f {
		switch {
		case level == "#":
			return true
		case i == len(n) || level != "+" && level != n[i]:
			return false
		}
	}
	return len(f) == len(n)
}
