package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// soon is how long anything may take before it counts as never happening.
const soon = 20 * time.Second

func newGame(t *testing.T) *consistenttest.Test {
	t.Helper()
	return consistenttest.New(t, "shootingrange", register)
}

func shot(id string, position int) consistent.Message {
	return event(id, consistent.JSON("games/g/fire", FireAt{"g", "ann", position}))
}

func round(id string) consistent.Message {
	return event(id, consistent.JSON("games/g/round", StartNewRound{"g"}))
}

func target(t *testing.T, test *consistenttest.Test) int {
	t.Helper()
	var r Range
	test.State("range", "g", &r)
	return r.Target
}

func hits(t *testing.T, test *consistenttest.Test) int {
	t.Helper()
	var b Board
	if _, found := test.Broker.State("leader-board/g"); found {
		test.State("leader-board", "g", &b)
	}
	return b.Hits["ann"]
}

func TestAHitIsCounted(t *testing.T) {
	t.Parallel()
	test := newGame(t)
	test.Send(round("1"))
	test.Send(shot("2", target(t, test)))
	if hits(t, test) != 1 || len(test.Published("games/g/hit")) != 1 {
		t.Errorf("%d hits", hits(t, test))
	}
	test.Send(shot("3", (target(t, test)+1)%100))
	if hits(t, test) != 1 || len(test.Published("games/g/missed")) != 1 {
		t.Errorf("then %d hits", hits(t, test))
	}
}

func TestADuplicateRightBehindIsOneShot(t *testing.T) {
	t.Parallel()
	test := newGame(t)
	test.Send(round("1"))
	m := shot("2", target(t, test))
	test.Send(m, m, m)
	test.Send(m)
	var r Range
	test.State("range", "g", &r)
	if hits(t, test) != 1 || r.Attempts != 1 {
		t.Errorf("%d hits in %d attempts", hits(t, test), r.Attempts)
	}
}

// The target has moved when the duplicate comes, so a game without memory would
// call a miss what was a hit.
func TestADuplicateAfterANewRound(t *testing.T) {
	t.Parallel()
	test := newGame(t)
	test.Send(round("1"))
	m := shot("2", target(t, test))
	test.Send(m)
	for n := 3; len(test.Published("games/g/new")) < 2 || target(t, test) == position(t, m); n++ {
		test.Send(round(fmt.Sprint(n)))
	}
	test.Send(m)
	if hits(t, test) != 1 || len(test.Published("games/g/missed")) != 0 {
		t.Errorf("%d hits, %d misses", hits(t, test), len(test.Published("games/g/missed")))
	}
}

func position(t *testing.T, m consistent.Message) int {
	t.Helper()
	var f FireAt
	if err := json.Unmarshal(m.Payload, &f); err != nil {
		t.Fatal(err)
	}
	return f.Position
}

func newProcessor(t *testing.T, conn consistent.Conn, opts ...consistent.Option) *consistent.Processor {
	t.Helper()
	p, err := consistent.New(conn, "shootingrange", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Two instances get the same shots at the same time.
func TestConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	for _, name := range []string{"a", "b"} {
		p := newProcessor(t, b.Connect(name))
		register(p)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		<-p.Subscribed()
	}
	for n := range 100 {
		b.Publish(shot(fmt.Sprint(n), n))
	}
	if err := b.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers := make(map[string]string)
	for _, topic := range []string{"games/g/hit", "games/g/missed"} {
		for _, m := range b.Published(topic) {
			var a Missed
			if err := json.Unmarshal(m.Payload, &a); err != nil {
				t.Fatal(err)
			}
			if before, seen := answers[a.Shot]; seen && before != fmt.Sprint(m) {
				t.Errorf("answers to one shot:\n%s\n%s", before, fmt.Sprint(m))
			}
			answers[a.Shot] = fmt.Sprint(m)
		}
	}
	if len(answers) != 100 {
		t.Errorf("%d shots were answered", len(answers))
	}
}

// The answer to a shot wasn't confirmed when the program died; the target moves; the
// shot comes again. Both answers are published, and they are the same, byte for byte.
// A reader that removes duplicates would not notice otherwise.
func TestAnOutOfOrderDuplicateIsAnsweredTheSame(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	run := func(conn consistent.Conn) (end func()) {
		p := newProcessor(t, conn, consistent.Replay())
		register(p)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		<-p.Subscribed()
		return func() { cancel(); <-ended }
	}
	settle := func() {
		if err := b.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	end := run(forgetful{b.Connect("range")})
	m := shot("1", 50)
	b.Publish(m)
	settle()
	for n := range 3 {
		b.Publish(round(fmt.Sprint("round", n)))
	}
	settle()
	b.Publish(m)
	settle()
	end()
	var answers []string
	for _, topic := range []string{"games/g/hit", "games/g/missed"} {
		for _, m := range b.Published(topic) {
			answers = append(answers, fmt.Sprint(m))
		}
	}
	if len(answers) != 2 || answers[0] != answers[1] {
		t.Errorf("answers: %q", answers)
	}
}

// forgetful never confirms, as a program that dies after publishing. It is no
// consistent.TogetherConn, whose transactions confirm as well.
type forgetful struct{ consistent.Conn }

func (forgetful) Done(context.Context, consistent.DoneRequest) (bool, error) { return false, nil }

// program builds the example once.
var program = sync.OnceValue(func() string {
	return testserver.Build("github.com/holdfast-mqtt/holdfast/examples/shootingrange")
})

func TestMain(m *testing.M) { testserver.Main(m) }

// terminal is a running program and its person.
type terminal struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func start(t *testing.T, args ...string) *terminal {
	t.Helper()
	x := &terminal{cmd: exec.Command(program(), args...), lines: make(chan string, 10_000)}
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if x.in, err = x.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		_ = x.cmd.Wait()
	})
	go func() {
		defer close(x.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			x.lines <- s.Text()
		}
	}()
	if line := x.read(t); !strings.HasPrefix(line, "the range of game") {
		t.Fatalf("it said %q", line)
	}
	return x
}

func (x *terminal) read(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-x.lines:
		if !ok {
			t.Fatal("the program has ended")
		}
		return line
	case <-time.After(soon):
		t.Fatal("the program says nothing")
	}
	return ""
}

func (x *terminal) enter(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(x.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// Two programs at once; one is killed in the middle of it. Every shot of the other is
// answered, and the leader board has as many hits as were announced.
func TestTwoProgramsOfWhichOneIsKilled(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	ann := start(t, "-address", addr, "-player", "ann")
	bob := start(t, "-address", addr, "-player", "bob")
	const shots = 200
	for n := range shots {
		if n == shots/2 {
			_ = bob.cmd.Process.Kill()
		}
		ann.enter(t, fmt.Sprint("fire ", n%100))
		ann.enter(t, "again")
	}
	answered, hit := 0, 0
	for answered < shots {
		switch line := ann.read(t); {
		case strings.Contains(line, "you HIT"):
			hit++
			answered++
		case strings.Contains(line, "you missed"):
			answered++
		case line != "the target has moved":
			t.Fatalf("it said %q", line)
		}
	}
	c, err := client.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for deadline := time.Now().Add(soon); ; {
		v, _, err := c.Get(t.Context(), "leader-board/demo")
		if err != nil {
			t.Fatal(err)
		}
		var b Board
		if len(v.Bytes) > 0 {
			if err := json.Unmarshal(v.Bytes, &b); err != nil {
				t.Fatal(err)
			}
		}
		if b.Hits["ann"] == hit {
			break
		}
		if b.Hits["ann"] > hit || time.Now().After(deadline) {
			t.Fatalf("the leader board has %d hits, %d were announced", b.Hits["ann"], hit)
		}
	}
	var r Range
	v, _, err := c.Get(t.Context(), "range/demo")
	if err != nil || json.Unmarshal(v.Bytes, &r) != nil || r.Attempts != shots%attemptsInARound {
		t.Errorf("the range has counted %d attempts, %v", r.Attempts, err)
	}
}

// What the README's session types is typed, and what it shows comes, as far as chance
// has no part in it.
func TestTheSessionOfTheREADME(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, session, _ := strings.Cut(string(text), "$ go run ./examples/shootingrange ")
	session, _, _ = strings.Cut(session, "```")
	lines := strings.Split(strings.TrimSpace(session), "\n")
	x := start(t, append(strings.Fields(lines[0]), "-address", testserver.Start(t).Addr)...)
	typed := regexp.MustCompile(`^(fire \d+|again|score|quit)$`)
	shown := regexp.MustCompile(`^(\d+: you (missed, the target is (higher|lower)|HIT the target)| +\d+  ann|no player has hit the target yet)$`)
	for _, line := range lines[2:] {
		if typed.MatchString(line) {
			x.enter(t, line)
		} else if got := x.read(t); !shown.MatchString(line) || !shown.MatchString(got) {
			t.Errorf("the README shows %q, the program %q", line, got)
		}
	}
	if err := x.cmd.Wait(); err != nil {
		t.Errorf("after quit: %v", err)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-game", "a/b"}, "level of topics"},
		{[]string{"-player", ""}, "can't be empty"},
		{[]string{"-address", "127.0.0.1:1"}, "is the server running?"},
	} {
		if err := run(t.Context(), test.args, strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v", test.args, err)
		}
	}
	x := start(t, "-address", testserver.Start(t).Addr, "-player", "ann")
	for line, want := range map[string]string{"fire": "A position from 0 to 99", "fire 100": "is no position", "again": "fire first", "score": "no player has hit"} {
		x.enter(t, line)
		if got := x.read(t); !strings.Contains(got, want) {
			t.Errorf("%q: it said %q", line, got)
		}
	}
	x.enter(t, "dance")
	if got := x.read(t); !strings.Contains(got, "fire N") {
		t.Errorf("it said %q", got)
	}
}
