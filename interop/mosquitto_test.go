package interop

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	v311 = "mqttv311"
	v5   = "mqttv5"
)

var mosquittoVersions = []string{v311, v5}

// invokeTopic is where the state store takes requests.
const invokeTopic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"

// mosquitto is Debian's mosquitto_pub and mosquitto_sub pointed at a server.
type mosquitto struct {
	server  *server
	version string
}

func newMosquitto(t *testing.T, s *server, version string) mosquitto {
	t.Helper()
	for _, program := range []string{"mosquitto_pub", "mosquitto_sub", "stdbuf"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (Debian: mosquitto-clients, coreutils): Mosquitto's clients are not tested", program)
		}
	}
	return mosquitto{s, version}
}

// command is one of the programs with the arguments that all of them need.
func (m mosquitto) command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	host, port, err := net.SplitHostPort(m.server.tcp)
	if err != nil {
		t.Fatal(err)
	}
	// stdbuf, which becomes the program, lets us see each line when it is written.
	all := []string{"-oL", program, "-h", host, "-p", port, "-V", m.version}
	if m.server.tls() {
		all = append(all, "--cafile", siteFile("ca.crt"), "--cert", siteFile("admin.crt"), "--key", siteFile("admin.key"))
	}
	if m.server.logins {
		all = append(all, "-u", user, "-P", userPassword)
	}
	all = append(all, args...)
	return exec.CommandContext(deadline(t), "stdbuf", all...)
}

// run runs a program to its end, which must be a good one.
func (m mosquitto) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := m.command(t, program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

func (m mosquitto) publish(t *testing.T, topic, payload string, args ...string) {
	t.Helper()
	m.run(t, "mosquitto_pub", append([]string{"-t", topic, "-m", payload}, args...)...)
}

// publishLines sends one message per line over one connection.
func (m mosquitto) publishLines(t *testing.T, topic string, lines []string, args ...string) {
	t.Helper()
	cmd := m.command(t, "mosquitto_pub", append([]string{"-t", topic, "-l"}, args...)...)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mosquitto_pub of %d lines: %v\n%s", len(lines), err, out)
	}
}

// subscriber is a running mosquitto_sub.
type subscriber struct {
	cmd    *exec.Cmd
	output *output
	taken  int
}

// messageMark begins a line that is a message; others are mosquitto_sub's own.
const messageMark = "message: "

// subscribe starts mosquitto_sub and returns when its subscription is
// acknowledged. format says how a message is printed, in mosquitto_sub's way.
func (m mosquitto) subscribe(t *testing.T, format string, args ...string) *subscriber {
	t.Helper()
	s := &subscriber{
		cmd:    m.command(t, "mosquitto_sub", append([]string{"-d", "-F", messageMark + format}, args...)...),
		output: &output{changed: make(chan struct{}, 1)},
	}
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	s.await(t, "SUBACK", func(text string) bool { return strings.Contains(text, "received SUBACK") })
	return s
}

// await waits for something in what mosquitto_sub printed.
func (s *subscriber) await(t *testing.T, what string, in func(text string) bool) {
	t.Helper()
	end := time.After(patience)
	for !in(s.output.String()) {
		select {
		case <-s.output.changed:
		case <-end:
			t.Fatalf("mosquitto_sub: no %s within %v, only\n%s", what, patience, s.output.tail())
		}
	}
}

// messages are all that came so far.
func (s *subscriber) messages() []string {
	var found []string
	for line := range strings.Lines(s.output.String()) {
		if message, ok := strings.CutPrefix(line, messageMark); ok && strings.HasSuffix(line, "\n") {
			found = append(found, strings.TrimSuffix(message, "\n"))
		}
	}
	return found
}

// take waits for the next n messages.
func (s *subscriber) take(t *testing.T, n int) []string {
	t.Helper()
	s.await(t, fmt.Sprintf("%d messages", s.taken+n), func(string) bool { return len(s.messages()) >= s.taken+n })
	next := s.messages()[s.taken : s.taken+n]
	s.taken += n
	return next
}

func lines(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	return all
}

func mustReceive(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: received %q, want %q", what, got, want)
	}
}

// forEachVersion runs a test with MQTT 3.1.1 and with 5.
func forEachVersion(t *testing.T, test func(t *testing.T, m mosquitto)) {
	t.Parallel()
	for _, version := range mosquittoVersions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			test(t, newMosquitto(t, shared(t), version))
		})
	}
}

func TestMosquittoQoS(t *testing.T) {
	forEachVersion(t, func(t *testing.T, m mosquitto) {
		for _, qos := range []string{"0", "1", "2"} {
			topic := uniqueTopic("qos")
			to2 := m.subscribe(t, "%q %r %t %p", "-t", topic, "-q", "2")
			to1 := m.subscribe(t, "%q %p", "-t", topic, "-q", "1")
			m.publishLines(t, topic, lines(50), "-q", qos)

			for i, got := range to2.take(t, 50) {
				if want := fmt.Sprintf("%s 0 %s %d", qos, topic, i); got != want {
					t.Fatalf("message %d of QoS %s: %q, want %q", i, qos, got, want)
				}
			}
			for i, got := range to1.take(t, 50) {
				if want := fmt.Sprintf("%s %d", min(qos, "1"), i); got != want {
					t.Fatalf("message %d of QoS %s to a subscription of QoS 1: %q, want %q", i, qos, got, want)
				}
			}
		}
	})
}

// The two versions of the protocol meet in the broker.
func TestMosquittoBetweenVersions(t *testing.T) {
	t.Parallel()
	old, current := newMosquitto(t, shared(t), v311), newMosquitto(t, shared(t), v5)
	topic := uniqueTopic("between")
	toOld := old.subscribe(t, "%q %p", "-t", topic, "-q", "2")
	toCurrent := current.subscribe(t, "%q %C %p", "-t", topic, "-q", "2")

	old.publish(t, topic, "from 3.1.1", "-q", "2")
	mustReceive(t, "the 3.1.1 subscriber", toOld.take(t, 1), "2 from 3.1.1")
	mustReceive(t, "the 5 subscriber", toCurrent.take(t, 1), "2  from 3.1.1")

	current.publish(t, topic, "from 5", "-q", "1", "-D", "publish", "content-type", "text/plain")
	mustReceive(t, "the 3.1.1 subscriber", toOld.take(t, 1), "1 from 5")
	mustReceive(t, "the 5 subscriber", toCurrent.take(t, 1), "1 text/plain from 5")
}

func TestMosquittoWildcardsAndUnsubscribe(t *testing.T) {
	forEachVersion(t, func(t *testing.T, m mosquitto) {
		root := uniqueTopic("wild")
		s := m.subscribe(t, "%t", "-t", root+"/+/c", "-t", root+"/x/#", "-q", "1")
		for _, topic := range []string{"/a/c", "/a/d", "/x", "/x/y/z", "/a/b/c", "/end/c"} {
			m.publish(t, root+topic, "v", "-q", "1")
		}
		mustReceive(t, "wildcards", s.take(t, 4), root+"/a/c", root+"/x", root+"/x/y/z", root+"/end/c")
	})
}

func TestMosquittoRetained(t *testing.T) {
	forEachVersion(t, func(t *testing.T, m mosquitto) {
		root := uniqueTopic("retained")
		m.publish(t, root+"/a", "replaced", "-r", "-q", "1")
		m.publish(t, root+"/a", "kept", "-r", "-q", "1")
		m.publish(t, root+"/b", "not retained", "-q", "1")

		// A new subscriber gets what is kept, marked; one that is there gets what
		// comes, unmarked.
		s := m.subscribe(t, "%r %t %p", "-t", root+"/#", "-q", "1")
		mustReceive(t, "a new subscriber", s.take(t, 1), "1 "+root+"/a kept")
		m.publish(t, root+"/a", "live", "-r", "-q", "1")
		mustReceive(t, "a subscriber that is there", s.take(t, 1), "0 "+root+"/a live")

		// An empty message removes it.
		m.run(t, "mosquitto_pub", "-t", root+"/a", "-n", "-r", "-q", "1")
		late := m.subscribe(t, "%r %t %p", "-t", root+"/#", "-q", "1")
		m.publish(t, root+"/b", "first", "-q", "1")
		mustReceive(t, "a subscriber after the removal", late.take(t, 1), "0 "+root+"/b first")
	})
}

func TestMosquittoWill(t *testing.T) {
	forEachVersion(t, func(t *testing.T, m mosquitto) {
		topic, bell := uniqueTopic("will"), uniqueTopic("bell")
		watcher := m.subscribe(t, "%q %r %p", "-t", topic, "-q", "2")
		mortal := func(payload string, args ...string) *subscriber {
			return m.subscribe(t, "%p", append([]string{"-t", bell, "-q", "1",
				"--will-topic", topic, "--will-payload", payload, "--will-qos", "1", "--will-retain"}, args...)...)
		}

		// A DISCONNECT withdraws the will.
		leaving := mortal("left", "-C", "1")
		m.publish(t, bell, "leave", "-q", "1")
		leaving.take(t, 1)
		if err := leaving.cmd.Wait(); err != nil {
			t.Errorf("mosquitto_sub -C 1: %v", err)
		}

		// A connection that breaks leaves it.
		_ = mortal("broken").cmd.Process.Kill()
		mustReceive(t, "after kill -9", watcher.take(t, 1), "1 0 broken")
		late := m.subscribe(t, "%q %r %p", "-t", topic, "-q", "2")
		mustReceive(t, "the will as a retained message", late.take(t, 1), "1 1 broken")

		// With MQTT 5 a program that ran out of time asks for its will (reason code
		// 0x04); 3.1.1 has only the DISCONNECT that withdraws it.
		timedOut := mortal("timed out", "-W", "5") // by when it has subscribed on a busy machine, too
		_ = timedOut.cmd.Wait()
		m.publish(t, topic, "afterwards", "-q", "1")
		if m.version == v5 {
			mustReceive(t, "after DISCONNECT with will", watcher.take(t, 1), "1 0 timed out")
		}
		mustReceive(t, "afterwards", watcher.take(t, 1), "1 0 afterwards")
		m.run(t, "mosquitto_pub", "-t", topic, "-n", "-r", "-q", "1")
	})
}

func TestMosquittoWillProperties(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v5)
	topic := uniqueTopic("will")
	watcher := m.subscribe(t, "%C %P %p", "-t", topic, "-q", "1")
	start := time.Now()
	dying := m.subscribe(t, "%p", "-t", uniqueTopic("unused"), "-x", "60",
		"--will-topic", topic, "--will-payload", "delayed", "--will-qos", "1",
		"-D", "will", "content-type", "text/plain",
		"-D", "will", "user-property", "why", "gone",
		"-D", "will", "will-delay-interval", "1")
	_ = dying.cmd.Process.Kill()
	mustReceive(t, "a delayed will", watcher.take(t, 1), "text/plain why:gone delayed")
	if waited := time.Since(start); waited < time.Second {
		t.Errorf("the will came after %v, its delay is 1 s", waited)
	}
}

// -c asks for a session that outlives its connections, in either version.
func TestMosquittoPersistentSession(t *testing.T) {
	forEachVersion(t, func(t *testing.T, m mosquitto) {
		topic, id := uniqueTopic("session"), uniqueName("mosquitto")
		// Given a session that subscribed and left.
		m.run(t, "mosquitto_sub", "-c", "-i", id, "-q", "2", "-t", topic, "-E")

		// When messages come meanwhile, they are there when it returns.
		m.publishLines(t, topic, lines(30), "-q", "1")
		m.publishLines(t, topic, lines(30), "-q", "2")
		back := m.subscribe(t, "%q %p", "-c", "-i", id, "-q", "2", "-t", topic, "-C", "60")
		var want []string
		for _, qos := range []string{"1", "2"} {
			for _, line := range lines(30) {
				want = append(want, qos+" "+line)
			}
		}
		got := back.take(t, len(want))
		// The program prints QoS 2 when it is released, so the two kinds may overlap.
		slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:1], b[:1]) })
		mustReceive(t, "the session that returned", got, want...)

		// When it comes back without -c, its session is gone and nothing waits.
		if err := back.cmd.Wait(); err != nil {
			t.Errorf("mosquitto_sub -C 60: %v", err)
		}
		m.publish(t, topic, "no subscriber", "-q", "1")
		fresh := m.subscribe(t, "%p", "-i", id, "-q", "1", "-t", topic)
		m.publish(t, topic, "new", "-q", "1")
		mustReceive(t, "a clean session", fresh.take(t, 1), "new")
	})
}

// A persistent session and its subscriptions are on disk.
func TestMosquittoSessionSurvivesKill(t *testing.T) {
	t.Parallel()
	for _, version := range mosquittoVersions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := ownServer(t)
			m := newMosquitto(t, s, version)
			topic, id := uniqueTopic("session"), uniqueName("mosquitto")
			m.run(t, "mosquitto_sub", "-c", "-i", id, "-q", "1", "-t", topic+"/+", "-E")

			s.kill()
			s.restart(t)

			m.publish(t, topic+"/a", "after the restart", "-q", "1")
			back := m.subscribe(t, "%t %p", "-c", "-i", id, "-q", "1", "-t", topic+"/other")
			mustReceive(t, "the session that returned", back.take(t, 1), topic+"/a after the restart")
		})
	}
}

func TestMosquittoSharedSubscription(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v5)
	topic := uniqueTopic("shared")
	filter := "$share/" + uniqueName("group") + "/" + topic
	gone := m.subscribe(t, "%p", "-t", topic+"/gone", "-q", "1")
	members := []*subscriber{
		m.subscribe(t, "%p", "-t", filter, "-q", "1", "--will-topic", topic+"/gone"),
		m.subscribe(t, "%p", "-t", filter, "-q", "1"),
		m.subscribe(t, "%p", "-t", filter, "-q", "2"),
	}
	received := func() (all []string) {
		for _, member := range members {
			all = append(all, member.messages()...)
		}
		return all
	}

	m.publishLines(t, topic, lines(60), "-q", "1")
	eventually(t, "every message reaches the group", func() bool { return len(received()) >= 60 })

	// When a member is gone, which its will tells, the others get everything.
	_ = members[0].cmd.Process.Kill()
	gone.take(t, 1)
	m.publishLines(t, topic, lines(60), "-q", "1")
	eventually(t, "every message reaches the rest of the group", func() bool { return len(received()) >= 120 })
	got, want := received(), append(lines(60), lines(60)...)
	slices.Sort(got)
	slices.Sort(want)
	mustReceive(t, "the group, each message once", got, want...)
}

func TestMosquittoProperties(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v5)
	topic := uniqueTopic("properties")
	s := m.subscribe(t, "%R|%D|%C|%F|%P|%S|%p", "-t", topic, "-q", "1", "-D", "subscribe", "subscription-identifier", "42")

	m.publish(t, topic, "request", "-q", "1",
		"-D", "publish", "response-topic", "interop/answers/here",
		"-D", "publish", "correlation-data", "id-1",
		"-D", "publish", "content-type", "application/json",
		"-D", "publish", "payload-format-indicator", "1",
		"-D", "publish", "user-property", "a", "1",
		"-D", "publish", "user-property", "b", "2",
		"-D", "publish", "user-property", "a", "3")
	m.publish(t, topic, "bare", "-q", "1")

	mustReceive(t, "properties", s.take(t, 2),
		"interop/answers/here|id-1|application/json|1|a:1 b:2 a:3|42|request",
		"|||||42|bare")
}

// A topic alias stands for a topic on one connection.
func TestMosquittoTopicAlias(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v5)
	topic := uniqueTopic("alias")
	s := m.subscribe(t, "%t %p", "-t", topic, "-q", "1")
	m.publishLines(t, topic, lines(3), "-q", "1", "-D", "publish", "topic-alias", "1")
	mustReceive(t, "an aliased topic", s.take(t, 3), topic+" 0", topic+" 1", topic+" 2")
}

// The state store without any SDK: mosquitto_pub sends requests, mosquitto_sub
// prints what comes back.
func TestMosquittoStateStore(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v5)
	key, answers := uniqueKey("key"), uniqueTopic("answers")
	responses := m.subscribe(t, "%q %r %D %C %F %x", "-t", answers, "-q", "1")
	request := func(correlation string, args ...string) {
		t.Helper()
		cmd := m.command(t, "mosquitto_pub", "-q", "1", "-t", invokeTopic, "-s",
			"-D", "publish", "response-topic", answers,
			"-D", "publish", "correlation-data", correlation,
			"-D", "publish", "user-property", "__ts", fmt.Sprintf("%d:0:mosquitto", time.Now().UnixMilli()))
		cmd.Stdin = strings.NewReader(command(args...))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("mosquitto_pub: %v\n%s", err, out)
		}
	}
	for i, test := range []struct {
		args   []string
		answer string
	}{
		{[]string{"GET", key}, "$-1\r\n"},
		{[]string{"SET", key, "by hand"}, "+OK\r\n"},
		{[]string{"GET", key}, "$7\r\nby hand\r\n"},
		{[]string{"SET", key, "other", "NX"}, ":-1\r\n"},
		{[]string{"SET", key, "other", "NX", "NEX"}, "-ERR syntax error\r\n"},
		{[]string{"VDEL", key, "other"}, ":-1\r\n"},
		{[]string{"DEL", key}, ":1\r\n"},
		{[]string{"DEL", key}, ":0\r\n"},
	} {
		correlation := fmt.Sprint("request-", i)
		request(correlation, test.args...)
		mustReceive(t, fmt.Sprint(test.args), responses.take(t, 1),
			fmt.Sprintf("1 0 %s application/octet-stream 0 %x", correlation, test.answer))
	}
}

// MQTT 3.1.1 has no response topic: such a request is acknowledged and not
// executed (protocol, section 2).
func TestMosquittoStateStoreWants5(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v311)
	key := uniqueKey("key")
	c := connectSDK(t, shared(t))
	cmd := m.command(t, "mosquitto_pub", "-q", "1", "-t", invokeTopic, "-s")
	cmd.Stdin = strings.NewReader(command("SET", key, "v"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mosquitto_pub: %v\n%s", err, out)
	}
	if _, version := c.get(t, key); !version.IsZero() {
		t.Error("a request over MQTT 3.1.1 was executed")
	}
}

// Requests to the state store can't be subscribed to (protocol, section 1).
func TestMosquittoCannotSubscribeToRequests(t *testing.T) {
	t.Parallel()
	m := newMosquitto(t, shared(t), v5)
	for _, filter := range []string{invokeTopic, "$share/group/" + invokeTopic} {
		out, err := m.command(t, "mosquitto_sub", "-t", filter, "-q", "1", "-d", "-E").CombinedOutput()
		if !bytes.Contains(out, []byte("denied")) {
			t.Errorf("subscribing to %s: %v, want it denied:\n%s", filter, err, out)
		}
	}
	// A wildcard is granted and matches nothing of it.
	c := connectSDK(t, shared(t))
	root := uniqueTopic("wild")
	s := m.subscribe(t, "%t", "-t", "statestore/#", "-t", root, "-q", "1")
	c.set(t, uniqueKey("key"), "v")
	m.publish(t, root, "end", "-q", "1")
	mustReceive(t, "a wildcard over the request topic", s.take(t, 1), root)
}

// command is a request's payload: a RESP array of blob strings.
func command(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}
