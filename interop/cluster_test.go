package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/mqtt"
	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	storeerrors "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

// cluster is three nodes of a test.
type cluster struct {
	nodes  map[string]*server
	paused map[string]bool
}

var nodeNames = []string{"a", "b", "c"}

// ownCluster starts three nodes that only this test uses.
func ownCluster(t *testing.T) *cluster {
	t.Helper()
	c, err := startCluster(t, func(string) string { return t.TempDir() })
	for _, s := range c.nodes {
		s.own(t, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.leader(t, 0)
	return c
}

// startCluster starts three nodes. On a machine that is busy with other tests they must not elect leaders all
// the time.
func startCluster(t *testing.T, dir func(name string) string) (*cluster, error) {
	t.Helper()
	var peers []string
	for _, name := range nodeNames {
		peers = append(peers, name+"="+steadyAddress(t))
	}
	type started struct {
		name string
		s    *server
		err  error
	}
	all := make(chan started)
	for _, name := range nodeNames {
		dir, listen := dir(name), steadyAddress(t)
		go func() {
			s, err := startServer(dir, listen, "--node", name, "--cluster-peers", strings.Join(peers, ","), "--cluster-election-timeout", "2s")
			all <- started{name, s, err}
		}()
	}
	c := &cluster{nodes: map[string]*server{}, paused: map[string]bool{}}
	var failed error
	for range nodeNames {
		n := <-all
		failed = errors.Join(failed, n.err)
		if n.err == nil {
			c.nodes[n.name] = n.s
		}
	}
	return c, failed
}

// report is what holdfast cluster status prints.
type report struct {
	Leader string
	Nodes  []struct {
		Name string
		Term uint64
	}
}

// leader waits until a node leads in a term after one, and gives its name and the term.
func (c *cluster) leader(t *testing.T, after uint64) (name string, term uint64) {
	t.Helper()
	eventually(t, "a node leads", func() bool {
		name, term = c.look(after)
		return name != ""
	})
	return name, term
}

// look gives the leader if it has a term after one.
func (c *cluster) look(after uint64) (name string, term uint64) {
	for _, ask := range nodeNames {
		if c.paused[ask] {
			continue
		}
		out, _ := exec.Command(binary, "cluster", "status", "--json", "--data", c.nodes[ask].dir).Output() // status 1: a node is missing
		var r report
		if json.Unmarshal(out, &r) != nil || r.Leader == "" || c.paused[r.Leader] {
			continue
		}
		for _, n := range r.Nodes {
			if n.Name == r.Leader && n.Term > after {
				return n.Name, n.Term
			}
		}
	}
	return "", 0
}

// any is the nodes as clients find them.
func (c *cluster) any() []*server {
	var all []*server
	for _, name := range nodeNames {
		all = append(all, c.nodes[name])
	}
	return all
}

// failovers are what ends the leadership of a node while clients work.
var failovers = []struct {
	name string
	do   func(t *testing.T, c *cluster, leader string, term uint64)
}{
	{"kill -9 of the leader", func(t *testing.T, c *cluster, leader string, term uint64) {
		c.nodes[leader].kill()
		c.nodes[leader].restart(t)
	}},
	{"transfer of the leadership", func(t *testing.T, c *cluster, leader string, term uint64) {
		// The node that is to lead has to be ready for it, after what came before.
		eventually(t, "the leadership is given away", func() bool {
			out, err := exec.Command(binary, "cluster", "transfer", "--data", c.nodes[leader].dir).CombinedOutput()
			if err != nil {
				t.Logf("holdfast cluster transfer: %v: %s", err, out)
			}
			return err == nil
		})
	}},
	{"pause of the leader", func(t *testing.T, c *cluster, leader string, term uint64) {
		c.signal(t, leader, syscall.SIGSTOP)
		c.paused[leader] = true
		c.leader(t, term)
		c.paused[leader] = false
		c.signal(t, leader, syscall.SIGCONT)
	}},
	{"SIGTERM of the leader", func(t *testing.T, c *cluster, leader string, term uint64) {
		if err := c.nodes[leader].stop(); err != nil {
			t.Errorf("shutting down: %v", err)
		}
		c.nodes[leader].restart(t)
	}},
}

func (c *cluster) signal(t *testing.T, node string, s syscall.Signal) {
	t.Helper()
	if err := c.nodes[node].process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// The SDK's clients, which connect to any node, go on through every failover: none gives up, nothing that was
// answered or acknowledged is lost, watches are registered again, and fencing tokens rise.
func TestSDKThroughFailovers(t *testing.T) {
	t.Parallel()
	c := ownCluster(t)
	holder, other := connectSDKWith(t, c.nodes["a"], sdkOptions{others: c.any()}), connectSDKWith(t, c.nodes["b"], sdkOptions{others: c.any()})
	name := uniqueKey("cluster")
	protected := name + "protected"

	// Given writers that count in their keys, messages that are published and received,
	var answered atomic.Int64
	stopped := make(chan struct{})
	var writers sync.WaitGroup
	defer writers.Wait()
	stop := sync.OnceFunc(func() { close(stopped) })
	defer stop()
	for i := range 4 {
		w := counter{client: connectSDKWith(t, c.nodes["c"], sdkOptions{others: c.any()}), key: fmt.Sprint(name, "count", i)}
		ctx := deadline(t)
		writers.Go(func() { w.run(t, ctx, stopped, &answered) })
	}
	mail := startMail(t, c)
	publishing := deadline(t)
	writers.Go(func() { mail.publish(publishing, stopped) })

	// a watch, and a lock with a key that it protects,
	watched := name + "watched"
	other.set(t, watched, "0")
	notifications := holder.watch(t, watched)
	ofHolder, ofOther := newLock(holder, name+"lock"), newLock(other, name+"lock")
	if err := ofHolder.Lock(deadline(t), time.Hour); err != nil {
		t.Fatalf("lock: %v", err)
	}
	held := token(t, ofHolder.Lease)
	last := holder.set(t, protected, "0", statestore.WithFencingToken(held))

	for i, failover := range failovers {
		// when the leader changes,
		before := answered.Load()
		eventually(t, "writers are answered", func() bool { return answered.Load() >= before+100 })
		leader, term := c.leader(t, 0)
		failover.do(t, c, leader, term)
		c.leader(t, term)
		for _, client := range []*sdkClient{holder, other} { // it may be trying a node that was paused
			eventually(t, "a client is answered after a "+failover.name, func() bool {
				_, err := client.Get(deadline(t), protected, statestore.WithTimeout(5*time.Second))
				return err == nil
			})
		}

		// then every operation succeeds, versions rise, and the lock still fences.
		value := strconv.Itoa(i + 1)
		if got, _ := other.get(t, protected); got != strconv.Itoa(i) {
			t.Errorf("after a %s the key holds %q, want %d", failover.name, got, i)
		}
		if acquire(t, ofOther.Lease, time.Hour) {
			t.Fatalf("after a %s another client got the lock that is held", failover.name)
		}
		mustBeHeldBy(t, ofOther.Lease, holder.ID())
		_, err := other.Set(deadline(t), protected, "unfenced")
		mustFailWith(t, "a write without the lock's token", err, storeerrors.MissingFencingToken)
		if !acquire(t, ofHolder.Lease, time.Hour) {
			t.Fatalf("after a %s the holder could not renew its lock", failover.name)
		}
		renewed := token(t, ofHolder.Lease)
		mustRise(t, "the token of the renewed lock", held, renewed)
		next := holder.set(t, protected, value, statestore.WithFencingToken(renewed))
		mustRise(t, "a SET after a "+failover.name, last, next)
		held, last = renewed, next

		// The watch has been registered again: a later change is notified. (What changed while the
		// connection was lost the SDK reports by itself.)
		awaitChange(t, other, notifications, watched, value)
	}

	// And the lock is handed over, under a higher token.
	locked := make(chan error, 1)
	ctx := deadline(t)
	go func() { locked <- ofOther.Lock(ctx, time.Hour) }()
	if err := ofHolder.Unlock(ctx); err != nil {
		t.Fatalf("unlock: %v", err)
	}
	if err := receive(t, locked, "the other client's lock"); err != nil {
		t.Fatalf("the other client locks: %v", err)
	}
	mustRise(t, "the token of the next holder", held, token(t, ofOther.Lease))

	before := answered.Load()
	eventually(t, "writers are answered after the last failover", func() bool { return answered.Load() >= before+100 })
	stop()
	writers.Wait()
	mail.check(t)
}

// awaitChange changes a watched key until its watcher is notified of it: the SDK may still be about to
// register again.
func awaitChange(t *testing.T, writer *sdkClient, notifications <-chan notify, key, value string) {
	t.Helper()
	var versions []hlc.HybridLogicalClock
	eventually(t, "a change is notified after a failover", func() bool {
		versions = append(versions, writer.set(t, key, value))
		wait := time.After(200 * time.Millisecond)
		for {
			select {
			case n := <-notifications:
				for _, v := range versions {
					if n.Version.Compare(v) == 0 {
						return true
					}
				}
			case <-wait:
				return false
			}
		}
	})
}

// mail is messages between two sessions of the SDK.
type mail struct {
	topic        string
	from, to     *sdkClient
	mu           sync.Mutex
	acknowledged []string       // mu
	received     map[string]int // mu
}

func startMail(t *testing.T, c *cluster) *mail {
	t.Helper()
	m := &mail{topic: uniqueTopic("mail"), received: map[string]int{}}
	m.from, m.to = connectSDKWith(t, c.nodes["a"], sdkOptions{others: c.any()}), connectSDKWith(t, c.nodes["b"], sdkOptions{others: c.any()})
	t.Cleanup(m.to.session.RegisterMessageHandler(func(_ context.Context, msg *mqtt.Message) {
		if msg.Topic == m.topic {
			m.mu.Lock()
			m.received[string(msg.Payload)]++
			m.mu.Unlock()
			msg.Ack()
		}
	}))
	if _, err := m.to.session.Subscribe(deadline(t), m.topic, mqtt.WithQoS(1)); err != nil {
		t.Fatal(err)
	}
	return m
}

// publish publishes one message after the other.
func (m *mail) publish(ctx context.Context, stopped <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stopped:
			return
		case <-time.After(2 * time.Millisecond):
		}
		payload := strconv.Itoa(i)
		if _, err := m.from.session.Publish(ctx, m.topic, []byte(payload), mqtt.WithQoS(1)); err == nil {
			m.mu.Lock()
			m.acknowledged = append(m.acknowledged, payload)
			m.mu.Unlock()
		}
	}
}

// check waits until all that was acknowledged has come.
func (m *mail) check(t *testing.T) {
	t.Helper()
	missing := func() (n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, p := range m.acknowledged {
			if m.received[p] == 0 {
				n++
			}
		}
		return n
	}
	eventually(t, "all acknowledged messages come", func() bool { return missing() == 0 })
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.acknowledged) == 0 {
		t.Error("no message was acknowledged")
	}
}

// MQTT.js, which connects to any node, loses no message at a failover, and has none of QoS 2 twice.
func TestMQTTJSThroughFailovers(t *testing.T) {
	t.Parallel()
	node := needsMQTTJS(t)
	c := ownCluster(t)
	var urls []string
	for _, s := range c.any() {
		urls = append(urls, scheme("mqtt")+s.tcp)
	}
	cmd := exec.CommandContext(deadline(t), node, "failover.mjs")
	cmd.Dir = "mqttjs"
	cmd.Env = append(os.Environ(), "BROKER_URLS="+strings.Join(urls, ","))
	if site != "" {
		cmd.Env = append(cmd.Env, "BROKER_SITE="+site)
	}
	if c.any()[0].logins {
		cmd.Env = append(cmd.Env, "BROKER_USERNAME="+user, "BROKER_PASSWORD="+userPassword)
	}
	said := &output{changed: make(chan struct{}, 1)}
	cmd.Stdout, cmd.Stderr = said, said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	progress := func() int { return strings.Count(said.String(), "acknowledged ") }
	goesOn := func() {
		t.Helper()
		before := progress()
		eventually(t, "messages are acknowledged", func() bool { return progress() > before+1 || len(ended) > 0 })
	}
	for _, failover := range failovers {
		goesOn()
		leader, term := c.leader(t, 0)
		failover.do(t, c, leader, term)
		c.leader(t, term)
	}
	goesOn()
	_ = stdin.Close()
	if err := receive(t, ended, "the end of the clients"); err != nil {
		t.Errorf("%v\n%s", err, said.tail())
	}
}
