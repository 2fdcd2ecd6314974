package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/control"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// page runs the commands of a page in a directory of its own. Each port that the page names
// stands for a free one.
type page struct {
	t       *testing.T
	dir     string
	ports   map[string]string  // by that of the page
	running []*process.Process // that were started last
	started map[string]*process.Process
}

var portOnPage = regexp.MustCompile(`\b(1?188\d|189\d|70\d\d)\b`)

func newPage(t *testing.T) *page {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "holdfast")); err != nil {
		t.Fatal(err)
	}
	return &page{t: t, dir: dir, ports: map[string]string{}, started: map[string]*process.Process{}}
}

// command is a shell command in the page's directory, until ctx ends.
func (p *page) command(ctx context.Context, text string) *exec.Cmd {
	text = portOnPage.ReplaceAllStringFunc(text, func(port string) string {
		if p.ports[port] == "" {
			_, free, err := net.SplitHostPort(testserver.FreeAddress())
			if err != nil {
				p.t.Fatal(err)
			}
			p.ports[port] = free
		}
		return p.ports[port]
	})
	cmd := exec.CommandContext(ctx, "bash", "-c", text)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "PATH="+p.dir+":"+os.Getenv("PATH"))
	return cmd
}

// asOnPage is what a command has printed, with the ports of the page.
func (p *page) asOnPage(text string) string {
	for on, free := range p.ports {
		text = strings.ReplaceAll(text, ":"+free, ":"+on)
	}
	return text
}

// run runs a command again and again until it succeeds and prints what the page says: while a
// leader is elected on a machine that is busy, it may be refused. OK is printed on terminals
// only.
func (p *page) run(c pageCommand) {
	p.t.Helper()
	if len(c.want) == 1 && c.want[0] == "OK" {
		c.want = nil
	}
	if strings.Contains(c.text, "status --data") && !strings.Contains(c.text, ">") {
		for i := range c.want { // the ports have other lengths
			c.want[i] = strings.Join(strings.Fields(c.want[i]), " ")
		}
		c.text += " | tr -s ' '"
	}
	want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(strings.Join(c.want, "\n")), "…", ".+") + "$")
	var got string
	var stderr bytes.Buffer
	for end := time.Now().Add(patience); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		stderr.Reset()
		cmd := p.command(ctx, c.text)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		cancel()
		if madeBefore.MatchString(stderr.String()) {
			return
		}
		if got = p.asOnPage(strings.TrimRight(string(out), "\n")); want.MatchString(got) && (err == nil || strings.Contains(c.text, "--wait")) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	p.t.Errorf("%s\nprinted %q and %q\nwant    %q", c.text, got, stderr.String(), c.want)
}

// madeBefore is what a change of the nodes says that an earlier attempt has made, whose answer was lost with
// the leader.
var madeBefore = regexp.MustCompile(`the cluster has a node \w already|the cluster has no node \w;`)

// play runs the commands of a session: what goes on in the background is ready before the next
// one, and kill ends what was started on the data directory, or as the node, that its comment names.
func (p *page) play(session []pageCommand) {
	p.t.Helper()
	for _, c := range session {
		if strings.HasSuffix(c.text, " &") {
			proc := p.begin(c.text, `holdfast listening on|waiting until this node is added`)
			p.running = append(p.running, proc)
			p.started[nameOnPage.FindString(c.text)] = proc
			continue
		}
		for _, n := range p.running {
			if err := n.AwaitReady(); err != nil {
				p.t.Fatal(err)
			}
		}
		p.running = nil
		if name, is := strings.CutPrefix(c.text, "kill 12345   # "); is {
			p.stop("--" + name)
			continue
		}
		p.run(c)
	}
}

// nameOnPage is what kill says of a process.
var nameOnPage = regexp.MustCompile(`--node \w+|--data \w+`)

// stop ends what was started.
func (p *page) stop(names ...string) {
	p.t.Helper()
	for _, name := range names {
		proc := p.started[name]
		if proc == nil {
			p.t.Fatalf("the page has started nothing with %s", name)
		}
		if !proc.Stop(process.Patience) {
			p.t.Errorf("%s had to be killed", name)
		}
	}
}

// destroy kills nodes, and removes all that they had.
func (p *page) destroy(names ...string) {
	p.t.Helper()
	for _, name := range names {
		p.started["--node "+name].Kill()
		if err := os.RemoveAll(filepath.Join(p.dir, name)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// begin starts a command that goes on, and waits for a line.
func (p *page) begin(text, ready string) *process.Process {
	p.t.Helper()
	proc, err := process.Start(p.command(context.Background(), "exec "+strings.TrimSuffix(text, " &")), regexp.MustCompile(ready))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if !proc.Stop(process.Patience) {
			p.t.Errorf("%s had to be killed", text)
		}
		if p.t.Failed() {
			p.t.Logf("%s\n%s", text, proc.Output())
		}
	})
	return proc
}

type pageCommand struct {
	text string
	want []string
}

// sessionsOf are the console sessions of a page, by the headings above them.
func sessionsOf(t *testing.T, file string) map[string][][]pageCommand {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][][]pageCommand{}
	for _, part := range strings.Split(string(text), "\n## ") {
		heading, rest, _ := strings.Cut(part, "\n")
		if sessions := sessionsIn(rest); sessions != nil {
			all[heading] = sessions
		}
	}
	return all
}

func sessionsIn(text string) (all [][]pageCommand) {
	for _, after := range strings.Split(text, "```console\n")[1:] {
		block, _, _ := strings.Cut(after, "\n```")
		var session []pageCommand
		for line := range strings.SplitSeq(block, "\n") {
			if command, is := strings.CutPrefix(line, "$ "); is {
				session = append(session, pageCommand{text: command})
			} else if n := len(session); n > 0 {
				session[n-1].want = append(session[n-1].want, line)
			}
		}
		all = append(all, session)
	}
	return all
}

// demoPort is a port for demo-cluster. All that it uses are below those that the system gives
// to connections by itself, of which one could be that of a node which is started again.
func demoPort(t *testing.T) int {
	t.Helper()
	free := func(port int) bool { return process.Reserve(fmt.Sprint("127.0.0.1:", port)) }
	for range 1000 {
		port := 10_000 + rand.IntN(2_700)
		all := true
		for i := range 3 {
			all = all && free(port+i) && free(port+10_000+i) && free(port+20_000+i)
		}
		if all {
			return port
		}
	}
	t.Fatal("no ports are free")
	return 0
}

// The commands of docs/cluster.md, as a newcomer types them: three nodes by one command, the
// leader killed, a key and a message that waits still there; three nodes by hand, one more and one
// less, restarted, in front of them a front, backed up, and one of them recovered; a cluster of a
// single server's data; certificates.
func TestClusterPage(t *testing.T) {
	t.Parallel()
	sessions := sessionsOf(t, "../../docs/cluster.md")
	number := map[string]int{
		"Try it": 2, "Run it": 2, "Add and remove nodes": 1, "Restarts and other versions": 1, "A cluster of a single server's data": 1,
		"Backups": 1, "A quorum that is lost for good": 1, "Fronts": 1, "Health and figures": 1,
	}
	for heading, all := range sessions {
		if len(all) != number[heading] {
			t.Fatalf("%q has %d sessions, and this test runs %d", heading, len(all), number[heading])
		}
	}
	if len(sessions) != len(number) {
		t.Fatalf("%d parts of the page have sessions, and this test runs those of %d", len(sessions), len(number))
	}
	t.Run("demo", func(t *testing.T) {
		t.Parallel()
		p := newPage(t)
		first, second := sessions["Try it"][0], sessions["Try it"][1]
		demo := first[0]
		proc := p.begin(strings.Replace(demo.text, "demo-cluster", "demo-cluster --port "+strconv.Itoa(demoPort(t)), 1), "^Ctrl-C")
		if err := proc.AwaitReady(); err != nil {
			t.Fatal(err)
		}
		nodes := regexp.MustCompile(`(?m)^node (.)  127\.0\.0\.1:(\d+)  console (\S+)  process \d+  data (\S+)`).FindAllStringSubmatch(proc.Output(), -1)
		leads := regexp.MustCompile(`(?m)^node (.) leads.*kill -9 (\d+)$`).FindStringSubmatch(proc.Output())
		if len(nodes) != 3 || leads == nil {
			t.Fatalf("printed\n%s", proc.Output())
		}
		for _, n := range nodes {
			answer, err := http.Get(n[3])
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("the console of node %s: %s", n[1], answer.Status)
			}
		}
		// Another node than the leader stands for those that the page uses after the kill.
		left := 1884
		for _, n := range nodes {
			if n[1] == leads[1] {
				p.ports["1883"] = n[2]
			} else {
				p.ports[fmt.Sprint(left)] = n[2]
				left++
			}
		}
		report, err := control.Status(context.Background(), nodes[0][4])
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range report.Nodes {
			_, port, _ := net.SplitHostPort(n.Address)
			p.ports[fmt.Sprint(11883+i)] = port
		}
		for _, c := range first[1:] {
			p.run(c)
		}
		kill := second[0]
		if err := os.WriteFile(filepath.Join(p.dir, "leader"), []byte(leads[2]), 0o600); err != nil { // command takes some numbers for ports
			t.Fatal(err)
		}
		kill.text = strings.Replace(kill.text, "12345", "$(cat leader)", 1)
		p.run(kill)
		for _, c := range second[1:] {
			p.run(c)
		}
		again := regexp.MustCompile(`(?m)^node ` + leads[1] + ` has ended \(signal: killed\)\. To start it again: (.*)$`)
		for end := time.Now().Add(patience); again.FindStringSubmatch(proc.Output()) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it does not say that a node has ended:\n%s", proc.Output())
			}
		}
		status := pageCommand{"holdfast cluster status --data demo/" + leads[1] + " >status; echo $?", []string{"0"}}
		if back := p.begin(again.FindStringSubmatch(proc.Output())[1], "holdfast listening on"); true {
			if err := back.AwaitReady(); err != nil {
				t.Fatal(err)
			}
			p.run(status)
			if !back.Stop(process.Patience) {
				t.Error("the node that was started again had to be killed")
			}
		}
		if !proc.Stop(process.Patience) || !strings.HasSuffix(proc.Output(), "stopped\n") {
			t.Errorf("it did not stop all nodes:\n%s", proc.Output())
		}
		for _, n := range nodes {
			if _, err := control.Status(context.Background(), n[4]); err == nil {
				t.Errorf("node %s runs on", n[1])
			}
		}
	})
	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		p := newPage(t)
		for _, heading := range []string{"Run it", "Add and remove nodes", "Restarts and other versions", "Backups", "Fronts", "Health and figures"} {
			p.play(sessions[heading][0])
		}
		p.destroy("c", "d")
		p.stop("--node a")
		p.play(sessions["A quorum that is lost for good"][0])
	})
	t.Run("a single server's data", func(t *testing.T) {
		t.Parallel()
		newPage(t).play(sessions["A cluster of a single server's data"][0])
	})
	t.Run("certificates", func(t *testing.T) {
		t.Parallel()
		p := newPage(t)
		for _, c := range sessions["Run it"][1] {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			out, err := p.command(ctx, c.text).Output()
			cancel()
			first, _, _ := strings.Cut(string(out), "\n")
			want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(c.want[0]), "…", ".+") + "$")
			if err != nil || !want.MatchString(first) {
				t.Errorf("%s: %v, printed %q", c.text, err, out)
			}
		}
	})
}

// What is wrong with the settings of a node is said before anything is opened.
func TestNodeThatIsNotWellSetUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct{ args, want string }{
		{"--node d --cluster-peers a=127.0.0.1:7001", "no node in --cluster-peers has this name"},
		{"--node a --cluster-peers a=127.0.0.1:7001,a=127.0.0.1:7002", "two nodes have the name a"},
		{"--node a --cluster-peers a=192.0.2.1:7001,b=192.0.2.2:7001,c=192.0.2.3:7001", "beyond loopback nodes must prove themselves"},
		{"--node a --cluster-peers a=127.0.0.1:7001 --durability none", "in a cluster it must be sync"},
		{"--cluster-cert a.crt", "--cluster-cert is for a node of a cluster"},
	} {
		holdfastAlone(t, append([]string{"serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0"}, strings.Fields(test.args)...)...).want(t, test.args, 2, "", test.want)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("the data directory was made")
	}
	holdfastAlone(t, "cluster", "status", "--data", dir).want(t, "no node", 2, "", "no node of a cluster can be reached")
}
