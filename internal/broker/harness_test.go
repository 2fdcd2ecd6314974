package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/broker/peer"
	"github.com/holdfast-mqtt/holdfast/internal/broker/registry"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
)

// node is a broker on a file system that can crash.
type node struct {
	t       *testing.T
	journal *journal.Journal
	memory  *memory.Pool
	broker  *Broker
	addr    string
}

// run starts a broker on fs, until the test ends or stop. change may change the
// options of both.
func run(t *testing.T, fs vfs.FS, limits Limits, change ...func(*journal.Options, *Options)) *node {
	t.Helper()
	return runWith(t, fs, limits, memory.NewPool(1<<30), change...)
}

// runWith is run with a pool of memory.
func runWith(t *testing.T, fs vfs.FS, limits Limits, pool *memory.Pool, change ...func(*journal.Options, *Options)) *node {
	t.Helper()
	n := &node{t: t, memory: pool}
	var started sync.WaitGroup
	started.Add(1)
	idle := func() {
		started.Wait()
		n.broker.FlushDeferred()
	}
	jo, bo := journal.Options{Dir: "data", FS: fs, Idle: idle}, Options{Limits: limits, Memory: n.memory}
	for _, change := range change {
		change(&jo, &bo)
	}
	var err error
	if n.journal, err = journal.Open(jo); err != nil {
		t.Fatal(err)
	}
	bo.Journal = n.journal
	if n.broker, err = New(bo); err != nil {
		started.Done()
		t.Fatal(err)
	}
	started.Done()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- n.broker.Serve(smallBuffers{l}) }()
	t.Cleanup(func() {
		if n.journal == nil {
			return
		}
		n.stop()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) { // which says that it had not begun
			t.Error(err)
		}
	})
	return n
}

// smallBuffers keeps the system from taking megabytes for a client that does not read:
// how many would depend on its settings, and on what it has measured so far.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c, c.(*net.TCPConn).SetWriteBuffer(256 << 10)
}

func (n *node) stop() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), mqtttest.Deadline)
	defer cancel()
	if err := n.broker.Close(ctx); err != nil {
		n.t.Errorf("closing the broker: %v", err)
	}
	n.allCredited()
	n.sessionsCredited()
	if err := n.journal.Close(); err != nil {
		n.t.Errorf("closing the journal: %v", err)
	}
	n.journal = nil
}

// allCredited checks that no traffic is charged once all connections have ended.
func (n *node) allCredited() {
	n.t.Helper()
	for _, kind := range []memory.Kind{memory.Input, memory.Output} {
		until(n.t, "everything of kind "+kind.String()+" is credited", func() bool { return n.memory.UsedBy(kind) == 0 })
	}
}

// sessionsCredited checks that no more is charged for sessions than those that there are
// when the broker has stopped, with their principals, wills, received identifiers and the
// messages that their queues share.
func (n *node) sessionsCredited() {
	n.t.Helper()
	want := n.broker.Sessions.Principals.Figures().Bytes + n.broker.Payloads.Memory()
	for _, s := range n.broker.Sessions.All() {
		want += registry.SessionMemory + int64(len(s.ID)) + int64(s.ReceivedRoom)*session.ReceivedMemory
		if s.Will != nil {
			want += s.Will.Charged
		}
	}
	if used := n.memory.UsedBy(memory.Sessions); used != want {
		n.t.Errorf("%d bytes are charged for sessions that take %d", used, want)
	}
}

func (n *node) connect(opts ...mqtttest.Option) *mqtttest.Client {
	n.t.Helper()
	return mqtttest.Connect(n.t, n.addr, opts...)
}

// crashes is a file system that keeps what a crash after each of its syncs would
// leave, from when it is told to record.
type crashes struct {
	vfs.FS
	mem *vfs.MemFS

	mu        sync.Mutex
	recording bool         // guarded by mu
	left      []*vfs.MemFS // guarded by mu
	acked     atomic.Int64 // what the test says has been acknowledged so far
	ackedAt   []int64      // what it had said at each of left; guarded by mu
	observe   func()       // called after each was kept: what clients have seen until then
}

func newCrashes() *crashes {
	mem := vfs.NewCrashableMem()
	return &crashes{FS: mem, mem: mem}
}

func (c *crashes) record() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recording = true
	c.keep()
}

// keep adds what a crash now would leave. What was acknowledged is asked first:
// it must be in there. c.mu is held.
func (c *crashes) keep() {
	c.ackedAt = append(c.ackedAt, c.acked.Load())
	c.left = append(c.left, c.clone())
	if c.observe != nil {
		c.observe()
	}
}

// stop gives what was recorded, and what a crash now would leave.
func (c *crashes) stop() []*vfs.MemFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recording = false
	c.keep()
	return c.left
}

func (c *crashes) clone() *vfs.MemFS {
	return c.mem.CrashClone(vfs.CrashCloneCfg{RNG: rand.New(rand.NewPCG(1, 2))})
}

func (c *crashes) synced() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recording {
		c.keep()
	}
}

func (c *crashes) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.Create(name, category)
	return crashFile{f, c}, err
}

func (c *crashes) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := c.FS.ReuseForWrite(old, name, category)
	return crashFile{f, c}, err
}

func (c *crashes) OpenReadWrite(name string, category vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.OpenReadWrite(name, category, o...)
	return crashFile{f, c}, err
}

type crashFile struct {
	vfs.File
	c *crashes
}

func (f crashFile) Sync() error {
	err := f.File.Sync()
	f.c.synced()
	return err
}

func (f crashFile) SyncData() error {
	err := f.File.SyncData()
	f.c.synced()
	return err
}

func (f crashFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	f.c.synced()
	return full, err
}

// connOf gives the connection of a peer.
func (b *Broker) connOf(p *peer.Peer) *Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		if &c.Peer == p {
			return c
		}
	}
	return nil
}
