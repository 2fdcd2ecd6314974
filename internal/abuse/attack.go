package abuse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Size is how large an attack is.
type Size int

const (
	Small Size = iota // with small bounds, in a second or two
	Full              // with default settings
)

// Attack is something that a few clients can do to a server.
type Attack struct {
	Name string // of its row
	What string // what the attackers do, at full size

	SmallFlags  []string   // of holdfast serve at small size
	FullFlags   []string   // at full size, where the default follows from the machine
	Descriptors [2]int     // limit of the server's open files, by size; 0: that of this process
	Ceiling     [2]int64   // MiB of resident memory that the server must stay below, by size
	Longest     [2]seconds // that a round trip of the bystander may take, by size
	LinesPerSec float64    // that the server may log; 0: maxLines
	OverWS      bool       // the newcomer comes over WebSocket as well
	Keeps       bool       // what the attackers leave behind stays, as it should: sessions, their queues
	FromOutside bool       // what must hold only holds if attackers are not on this machine: see Isolated

	// Prepare makes what the attack needs, before anything is measured; may be nil.
	Prepare func(t *Target) error
	// Launch attacks, and returns when the attack stands or its time is over. The
	// connections that it opened stay open until everything has been measured.
	Launch func(t *Target) error
	// Check says what else must hold once the attackers have left; may be nil.
	Check func(t *Target) error
}

type seconds float64

func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// maxLines is how many lines a second a server may log, whatever clients do.
const maxLines = 100

// Target is what an attack has in front of it.
type Target struct {
	Addr      string // where ordinary clients connect
	WebSocket string
	Size      Size

	attacked, attackedWS string // where attackers connect

	ctx  context.Context // ends when the attack is to be broken off
	mu   sync.Mutex
	open []*link // guarded by mu
	left bool    // the attackers have left: guarded by mu
}

// pick gives the value for the target's size.
func pick[T any](t *Target, small, full T) T {
	if t.Size == Full {
		return full
	}
	return small
}

// Addresses of the bystander and of others that mean well, and of the attackers: in
// a network of its own (OwnNetwork) one that is no loopback address.
var (
	loopback = net.IPv4(127, 0, 0, 1)
	outside  = net.IPv4(198, 51, 100, 1) // RFC 5737
	attacker = net.IPv4(127, 0, 0, 2)
)

// Isolated says whether attackers come from outside of the loopback network.
func Isolated() bool { return attacker.Equal(outside) }

// dialFrom connects to addr from one of this machine's addresses.
func dialFrom(from net.IP, addr string, limit time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: from}}
	return d.Dial("tcp", addr)
}

// attackLimit is how long an attacker waits for anything.
const attackLimit = 20 * time.Second

var errLeft = errors.New("the attackers have left")

// dial opens an attacker's connection, which stays open until the attackers leave.
func (t *Target) dial(addr string) (*link, error) {
	nc, err := dialFrom(attacker, addr, attackLimit)
	if err != nil {
		return nil, err
	}
	k := newLink(nc)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left {
		k.close()
		return nil, errLeft
	}
	t.open = append(t.open, k)
	return k, nil
}

// enter is dial for a client that has connected.
func (t *Target) enter(id string, expiry uint32) (*link, error) {
	k, err := t.dial(t.attacked)
	if err != nil {
		return nil, err
	}
	return k, k.connect(id, expiry, attackLimit)
}

// enterDeaf is enter for a client that will not read: what is sent to it stays with
// the server.
func (t *Target) enterDeaf(id string) (*link, error) {
	k, err := t.enter(id, 0)
	if err != nil {
		return nil, err
	}
	return k, k.nc.(*net.TCPConn).SetReadBuffer(4 << 10)
}

// leave closes all of the attackers' connections.
func (t *Target) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = true
	for _, k := range t.open {
		k.close()
	}
	t.open = nil
}

// each runs do for 0 to n-1, so many at a time, until the attack is broken off,
// and says how many succeeded. An attacker that the server turns away is a
// success of the server's, so errors end nothing.
func (t *Target) each(n, atOnce int, do func(i int) error) (done int) {
	var next, succeeded atomic.Int64
	var wg sync.WaitGroup
	for range min(n, atOnce) {
		wg.Go(func() {
			for t.ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if do(i) == nil {
					succeeded.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(succeeded.Load())
}

// hold waits while the attackers do nothing, or what they do in the background.
func (t *Target) hold(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	}
}

// Options of Run.
type Options struct {
	Binary  string   // the built program
	Flags   []string // more flags of holdfast serve
	Size    Size
	Ceiling int64 // MiB of resident memory at which the server is killed, to protect the machine
	Dir     string
}

// Result is what was measured, and what did not hold.
type Result struct {
	Name        string
	What        string
	Quiet       Service // beforehand
	Attacked    Service // while under attack
	Idle        int64   // bytes of resident memory beforehand
	Peak        int64   // while under attack
	Left        int64   // when the attackers had left and the server had come to rest
	Rest        time.Duration
	AtRest      bool          // within restIn
	Charged     [2]int64      // bytes that clients were charged with, as $SYS says: beforehand, and when they had left
	Took        time.Duration // the attack
	Lines       int           // logged during it
	Newcomer    string        // what kept a new client out: empty if nothing
	Operator    string        // what kept the control socket from answering
	Stopped     time.Duration
	StoppedIn   bool     // within stopIn of SIGTERM
	Ended       string   // how the server ended before its time: empty if it did not
	Broken      []string // what did not hold
	lastWords   string
	attackError error
}

// stopIn is how long the program may take to end; it gives its clients 10 s.
const stopIn = 15 * time.Second

// Run starts the program, attacks it, and reports. An error means that nothing
// could be measured, or that ctx has ended meanwhile, so that part of the attack is
// missing.
func Run(ctx context.Context, a *Attack, o Options) (*Result, error) {
	dir, err := os.MkdirTemp(o.Dir, "holdfast-abuse-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	flags := append([]string{"--sys-interval", "1s"}, a.FullFlags...) // to see soon what clients are charged with
	if o.Size == Small {
		flags = append([]string{"--sys-interval", "100ms"}, a.SmallFlags...)
	}
	flags = append(flags, o.Flags...)
	s, err := startServer(o.Binary, dir, a.Descriptors[o.Size], flags)
	if err != nil {
		return nil, err
	}
	defer s.Kill()
	attack, cancel := context.WithTimeout(ctx, longestAttack[o.Size])
	defer cancel()
	t := &Target{Addr: s.addr[0], WebSocket: s.webSocket[0], Size: o.Size, ctx: attack}
	t.attacked, t.attackedWS = s.addr[len(s.addr)-1], s.webSocket[len(s.webSocket)-1]
	defer t.leave()
	r := &Result{Name: a.Name, What: a.What}
	if err := r.measure(a, t, s, o, cancel); err != nil {
		return nil, fmt.Errorf("%s: %w; the program said:\n%s", a.Name, err, s.Output())
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s was interrupted: %w", a.Name, err)
	}
	r.lastWords = s.Output()
	r.judge(a, o.Size)
	return r, nil
}

// longestAttack breaks an attack off, by size.
var longestAttack = [2]time.Duration{20 * time.Second, 3 * time.Minute}

func (r *Result) measure(a *Attack, t *Target, s *server, o Options, breakOff func()) error {
	if a.Prepare != nil {
		if err := a.Prepare(t); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	b, err := newBystander(t.Addr, pick(t, 10*time.Second, 30*time.Second))
	if err != nil {
		return fmt.Errorf("bystander: %w", err)
	}
	defer b.link.close()
	b.begin()
	time.Sleep(pick(t, 200*time.Millisecond, 2*time.Second))
	r.Quiet = b.end()
	if b.err != nil {
		return fmt.Errorf("bystander, before the attack: %w", b.err)
	}
	r.Idle = s.resident()
	r.Charged[0] = charged(t.Addr)

	watch := watchMemory(s, o.Ceiling<<20, breakOff)
	lines, begun := s.Lines(), time.Now()
	b.begin()
	visits := r.visitWhile(a, t, s)
	r.attackError = a.Launch(t)
	visits()
	r.Took, r.Lines = time.Since(begun), s.Lines()-lines
	if t.Size == Full && errors.Is(t.ctx.Err(), context.DeadlineExceeded) {
		r.Broken = append(r.Broken, fmt.Sprintf("the attack was not complete after %v", longestAttack[t.Size]))
	}
	t.leave()
	r.Attacked = b.end()
	r.rest(t, s)
	r.Peak = watch()
	if b.err != nil {
		r.Broken = append(r.Broken, fmt.Sprintf("the bystander was not served: %v", b.err))
	}
	if a.Check != nil && s.Running() {
		if err := a.Check(t); err != nil {
			r.Broken = append(r.Broken, err.Error())
		}
	}
	if !s.Running() {
		r.Ended = "the program ended: " + s.State().String()
		if r.Peak >= o.Ceiling<<20 {
			r.Ended = fmt.Sprintf("killed at %d MiB", o.Ceiling)
		}
		return nil
	}
	begun = time.Now()
	r.StoppedIn = s.Stop(stopIn)
	r.Stopped = time.Since(begun)
	return nil
}

// visitWhile lets a newcomer and an operator come again and again during the
// attack. The function that it returns lets them come a last time, which counts.
func (r *Result) visitWhile(a *Attack, t *Target, s *server) (last func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	limit := pick(t, 5*time.Second, 10*time.Second)
	n := 0
	once := func() {
		n++
		r.Newcomer, r.Operator = "", ""
		if err := visit(t.Addr, fmt.Sprintf("newcomer-%d", n), limit); err != nil {
			r.Newcomer = err.Error()
		} else if a.OverWS {
			if err := visitWebSocket(t.WebSocket, limit); err != nil {
				r.Newcomer = "WebSocket: " + err.Error()
			}
		}
		if err := s.operate(limit); err != nil {
			r.Operator = err.Error()
		}
	}
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(pick(t, 250*time.Millisecond, time.Second)):
				once()
			}
		}
	}()
	return func() { close(stop); <-done; once() }
}

// restIn is how long the server may need to come to rest, by size.
var restIn = [2]time.Duration{3 * time.Second, 20 * time.Second}

// rest waits until the server has come to rest: it uses less than a fifth of a
// processor, and its memory is near what it was or shrinks no more.
func (r *Result) rest(t *Target, s *server) {
	const look = 250 * time.Millisecond
	begun := time.Now()
	used := s.processor()
	for s.Running() && time.Since(begun) < restIn[t.Size] {
		time.Sleep(look)
		now := s.processor()
		busy := now-used > look/5
		used = now
		if !busy {
			r.AtRest = true
			break
		}
	}
	r.Rest = time.Since(begun)
	until := begun.Add(restIn[t.Size])
	for r.Charged[1] = charged(t.Addr); s.Running() && r.Charged[1] > r.Charged[0]+leftover && time.Now().Before(until); {
		time.Sleep(look)
		r.Charged[1] = charged(t.Addr)
	}
	if t.Size == Full { // the runtime takes its time to give memory back
		for near := r.Idle + r.Idle/2; s.resident() > near && time.Now().Before(until); {
			time.Sleep(look)
		}
	}
	r.Left = s.resident()
}

// leftover is how many bytes more may be charged than before the attack: what the
// bystander does goes on.
const leftover = 1 << 20

// charged is how many bytes the server says that clients hold; 0 if it doesn't say.
func charged(addr string) int64 {
	const limit = time.Second
	nc, err := dialFrom(loopback, addr, limit)
	if err != nil {
		return 0
	}
	k := newLink(nc)
	defer k.close()
	if k.connect("", 0, limit) != nil || k.subscribe(0, limit, "$SYS/broker/memory/used") != nil {
		return 0
	}
	p, err := k.await(mqtt.PUBLISH, time.Now().Add(limit))
	if err != nil {
		return 0
	}
	var m mqtt.Publish
	if m.DecodeDelivery(mqtt.V5, p.header, p.body) != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(m.Payload), 10, 64)
	return n
}

// watchMemory looks at the resident memory, and kills the server where it passes
// the ceiling. The function that it returns gives the highest seen.
func watchMemory(s *server, ceiling int64, breakOff func()) (peak func() int64) {
	stop, done := make(chan struct{}), make(chan struct{})
	var most int64
	go func() {
		defer close(done)
		for {
			now := s.resident()
			most = max(most, now)
			if now >= ceiling {
				s.Kill()
				breakOff()
			}
			select {
			case <-stop:
				return
			case <-s.Ended():
				breakOff()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() int64 { close(stop); <-done; return most }
}

// judge says what did not hold.
func (r *Result) judge(a *Attack, size Size) {
	broken := func(format string, args ...any) { r.Broken = append(r.Broken, fmt.Sprintf(format, args...)) }
	if r.Ended != "" {
		broken("%s; it said last:\n%s", r.Ended, r.lastWords)
	}
	if ceiling := a.Ceiling[size] << 20; r.Peak > ceiling {
		broken("%d MiB were resident, more than %d", r.Peak>>20, ceiling>>20)
	}
	if r.Charged[1] > r.Charged[0]+leftover && !a.Keeps {
		broken("clients were still charged with %d KiB, with %d before the attack", r.Charged[1]>>10, r.Charged[0]>>10)
	}
	if longest := a.Longest[size].duration(); r.Attacked.worst() > longest {
		broken("a round trip of the bystander took %v, longer than %v", r.Attacked.worst().Round(time.Millisecond), longest)
	}
	if r.Newcomer != "" && (Isolated() || !a.FromOutside) {
		broken("a newcomer was not served: %s", r.Newcomer)
	}
	if r.Operator != "" {
		broken("an operator was not served: %s", r.Operator)
	}
	if r.Ended == "" && !r.AtRest {
		broken("%v after the attackers had left the server was still at work", r.Rest.Round(time.Second))
	}
	if r.Ended == "" && !r.StoppedIn {
		broken("the server did not end within %v of SIGTERM", stopIn)
	}
	allowed := a.LinesPerSec
	if allowed == 0 {
		allowed = maxLines
	}
	if perSec := r.linesPerSec(); perSec > allowed {
		broken("%.0f lines were logged a second, more than %.0f", perSec, allowed)
	}
	if r.attackError != nil {
		broken("the attack could not be made: %v", r.attackError)
	}
}

func (r *Result) linesPerSec() float64 { return float64(r.Lines) / max(1, r.Took.Seconds()) }
