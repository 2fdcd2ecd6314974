package abuse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Size is how large an attack is.
type Size int

const (
	Small Size = iota // against small bounds, in a second or two
	Full              // against the default settings
)

// Attack is what a few malicious clients do to a server, and what must hold meanwhile and
// afterwards.
type Attack struct {
	Name string // of its row in the report
	What string // what the attackers do, at full size

	SmallFlags  []string   // of holdfast serve at small size
	FullFlags   []string   // of holdfast serve at full size, for settings whose default depends on the machine
	Descriptors [2]int     // the server's limit of open files, by size; 0: that of this process
	Ceiling     [2]int64   // bound of the server's resident memory in MiB, by size
	Longest     [2]seconds // bound of a round trip of the bystander, by size
	LinesPerSec float64    // bound of the lines that the server logs a second; 0: maxLines
	OverWS      bool       // the newcomer also connects over WebSocket
	Negotiates  bool       // the server also has listeners for TLS and for a balancer, where newcomers connect as well
	Policy      string     // the server's policy file; empty: every client may do everything
	Returns     [2]int64   // MiB that may stay resident above what was resident before, by size; 0: no bound
	Keeps       bool       // the server rightly keeps what the attackers left: sessions, their queues
	FromOutside bool       // newcomers must be served only if attackers have an address outside of loopback, see Isolated

	// Prepare prepares the server for the attack, before the first measurement; may be nil.
	Prepare func(t *Target) error
	// Launch attacks. It returns when all attackers are at work (if the attack is a state),
	// when they are done (if it is an action), or when the time limit is over. The
	// connections that it opened stay open until the measurement ends.
	Launch func(t *Target) error
	// Check checks what else must hold once the attackers have left; may be nil.
	Check func(t *Target) error
}

type seconds float64

func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// maxLines is how many lines a second a server may log, if the attack says nothing else.
const maxLines = 100

// Target is the server under attack, as the attackers see it.
type Target struct {
	Addr      string // where ordinary clients connect
	WebSocket string // where they connect over WebSocket
	Size      Size

	overTLS              string // where ordinary clients connect over TLS, if the attack Negotiates
	attacked, attackedWS string // where attackers connect, the second over WebSocket
	attackedTLS          string // where attackers connect over TLS, if the attack Negotiates
	attackedProxy        string // where attackers connect to the listener behind a balancer, likewise

	ctx  context.Context // ends when the attack must stop
	mu   sync.Mutex
	open []*link // guarded by mu: the attackers' connections
	left bool    // guarded by mu: the attackers have left
	hall *hall   // of the attack with slow consumers: a publisher and its subscribers, some of which stop reading; nil: another attack
}

// pick returns small or full, as the target's Size is.
func pick[T any](t *Target, small, full T) T {
	if t.Size == Full {
		return full
	}
	return small
}

// Addresses from which clients connect. OwnNetwork sets attacker to outside.
var (
	loopback = net.IPv4(127, 0, 0, 1)    // the bystander, newcomers
	outside  = net.IPv4(198, 51, 100, 1) // not a loopback address, from RFC 5737
	attacker = net.IPv4(127, 0, 0, 2)
)

// Isolated says whether attackers have an address outside of the loopback network.
func Isolated() bool { return attacker.Equal(outside) }

// dialFrom connects to addr from one of this machine's addresses.
func dialFrom(from net.IP, addr string, limit time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: from}}
	return d.Dial("tcp", addr)
}

// attackLimit is the time limit of each operation of an attacker.
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

// enter dials, and connects as an MQTT client.
func (t *Target) enter(id string, expiry uint32) (*link, error) {
	k, err := t.dial(t.attacked)
	if err != nil {
		return nil, err
	}
	return k, k.connect(id, expiry, attackLimit)
}

// enterDeaf is enter for a client that will not read. Its receive buffer is small, so that
// messages to it stay with the server.
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

// each calls do with 0 to n-1 on atOnce goroutines, until the attack must stop. It returns
// how many calls succeeded. Errors do not end it: the server may rightly refuse attackers.
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

// hold waits for d, or until the attack must stop. The attackers' connections stay open.
func (t *Target) hold(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	}
}

// Options of Run.
type Options struct {
	Binary  string   // path of the built program
	Flags   []string // more flags of holdfast serve
	Size    Size
	Ceiling int64  // MiB of resident memory at which the server is killed, to protect the machine
	Dir     string // in which Run makes a temporary directory; empty: that of the system
}

// Result is what Run measured, and what did not hold.
type Result struct {
	Name        string
	What        string
	Quiet       Service       // of the bystander, before the attack
	Attacked    Service       // of the bystander, during the attack
	Idle        int64         // bytes of resident memory before the attack
	Peak        int64         // the most bytes of resident memory during the attack
	Left        int64         // bytes of resident memory when the wait for rest ended, after the attackers had left
	Rest        time.Duration // from the attackers' leaving until the server was at rest, or until restIn if it did not come to rest
	AtRest      bool          // the server came to rest within restIn
	Charged     [2]int64      // bytes that clients were charged with, from $SYS: before the attack, and after the attackers had left
	Took        time.Duration // duration of the attack
	Lines       int           // log lines during the attack
	Newcomer    string        // error of a new client; empty: none
	Operator    string        // error of a command on the control socket; empty: none
	Stopped     time.Duration // from SIGTERM until the server had ended
	StoppedIn   bool          // the server ended within stopIn of SIGTERM
	Ended       string        // how the server ended during the measurement; empty: it did not
	Broken      []string      // what did not hold
	lastOutput  string        // of the server
	attackError error
}

// stopIn is how long the program may take to end after SIGTERM. The program gives its
// clients 10 s of that.
const stopIn = 30 * time.Second

// Run starts the program, attacks it, and measures. An error means that the measurement
// failed, or that ctx ended before the attack was complete.
func Run(ctx context.Context, a *Attack, o Options) (*Result, error) {
	dir, err := os.MkdirTemp(o.Dir, "holdfast-abuse-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	flags := append([]string{"--sys-interval", "1s"}, a.FullFlags...) // short, for Result.Charged
	if o.Size == Small {
		flags = append([]string{"--sys-interval", "100ms"}, a.SmallFlags...)
	}
	flags = append(flags, o.Flags...)
	if a.Policy != "" {
		file := filepath.Join(dir, "policy.yaml")
		if err := os.WriteFile(file, []byte(a.Policy), 0o600); err != nil {
			return nil, err
		}
		flags = append(flags, "--policy", file)
	}
	s, err := startServer(o.Binary, dir, a.Descriptors[o.Size], a.Negotiates, flags)
	if err != nil {
		return nil, err
	}
	defer s.Kill()
	attack, cancel := context.WithTimeout(ctx, longestAttack[o.Size])
	defer cancel()
	t := &Target{Addr: s.addr[0], WebSocket: s.webSocket[0], Size: o.Size, ctx: attack}
	t.attacked, t.attackedWS = s.addr[len(s.addr)-1], s.webSocket[len(s.webSocket)-1]
	if a.Negotiates {
		t.overTLS, t.attackedTLS, t.attackedProxy = s.tls[0], s.tls[len(s.tls)-1], s.proxy[len(s.proxy)-1]
	}
	defer t.leave()
	r := &Result{Name: a.Name, What: a.What}
	if err := r.measure(a, t, s, o, cancel); err != nil {
		return nil, fmt.Errorf("%s: %w; the program said:\n%s", a.Name, err, s.Output())
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s was interrupted: %w", a.Name, err)
	}
	r.lastOutput = s.Output()
	r.judge(a, o.Size)
	return r, nil
}

// longestAttack is the time limit of an attack, by size.
var longestAttack = [2]time.Duration{20 * time.Second, 3 * time.Minute}

// measure attacks the server, stops it, and fills in the result. stopAttack ends the
// attack early.
func (r *Result) measure(a *Attack, t *Target, s *server, o Options, stopAttack func()) error {
	if a.Prepare != nil {
		if err := a.Prepare(t); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	b, err := newBystander(t.Addr, 30*time.Second)
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

	peak := watchMemory(s, o.Ceiling<<20, stopAttack)
	lines, begun := s.Lines(), time.Now()
	b.begin()
	endVisits := r.startVisits(a, t, s)
	r.attackError = a.Launch(t)
	endVisits()
	r.Took, r.Lines = time.Since(begun), s.Lines()-lines
	if t.Size == Full && errors.Is(t.ctx.Err(), context.DeadlineExceeded) {
		r.Broken = append(r.Broken, fmt.Sprintf("the attack was not complete after %v", longestAttack[t.Size]))
	}
	t.leave()
	r.Attacked = b.end()
	r.rest(t, s)
	r.Peak = peak()
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

// startVisits starts a goroutine in which new clients connect and an operator uses the
// control socket, again and again. end ends the goroutine and makes a last visit, whose
// outcome is in the result.
func (r *Result) startVisits(a *Attack, t *Target, s *server) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	limit := pick(t, 30*time.Second, 10*time.Second)
	n := 0
	visitOnce := func() {
		n++
		r.Newcomer, r.Operator = "", ""
		if err := visit(t.Addr, fmt.Sprintf("newcomer-%d", n), limit); err != nil {
			r.Newcomer = err.Error()
		} else if a.OverWS {
			if err := visitWebSocket(t.WebSocket, limit); err != nil {
				r.Newcomer = "WebSocket: " + err.Error()
			}
		} else if a.Negotiates {
			if err := t.visitNegotiated(limit); err != nil {
				r.Newcomer = err.Error()
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
				visitOnce()
			}
		}
	}()
	return func() { close(stop); <-done; visitOnce() }
}

// restIn is the time limit within which the server must come to rest, by size.
var restIn = [2]time.Duration{30 * time.Second, 20 * time.Second}

// rest waits, for restIn at most, until the server has come to rest: it uses at most a fifth
// of a processor. Then it waits, within the same limit, until clients are charged with as much
// as before the attack, and at full size until its resident memory is at most half above.
func (r *Result) rest(t *Target, s *server) {
	const interval = 250 * time.Millisecond
	begun := time.Now()
	used := s.processor()
	for s.Running() && time.Since(begun) < restIn[t.Size] {
		time.Sleep(interval)
		now := s.processor()
		busy := now-used > interval/5
		used = now
		if !busy {
			r.AtRest = true
			break
		}
	}
	r.Rest = time.Since(begun)
	until := begun.Add(restIn[t.Size])
	for r.Charged[1] = charged(t.Addr); s.Running() && r.Charged[1] > r.Charged[0]+leftover && time.Now().Before(until); {
		time.Sleep(interval)
		r.Charged[1] = charged(t.Addr)
	}
	if t.Size == Full { // the Go runtime returns memory to the system with a delay
		for near := r.Idle + r.Idle/2; s.resident() > near && time.Now().Before(until); {
			time.Sleep(interval)
		}
	}
	r.Left = s.resident()
}

// leftover is how many bytes more than before the attack may be charged after it, because
// the bystander goes on working.
const leftover = 1 << 20

// charged is how many bytes clients are charged with, from the server's $SYS topic; 0 if
// the server does not answer.
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

// watchMemory starts a goroutine that samples the server's resident memory, and kills the
// server when it reaches the ceiling (in bytes). peak ends the goroutine and returns the
// highest sample.
func watchMemory(s *server, ceiling int64, stopAttack func()) (peak func() int64) {
	stop, done := make(chan struct{}), make(chan struct{})
	var most int64
	go func() {
		defer close(done)
		for {
			now := s.resident()
			most = max(most, now)
			if now >= ceiling {
				s.Kill()
				stopAttack()
			}
			select {
			case <-stop:
				return
			case <-s.Ended():
				stopAttack()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() int64 { close(stop); <-done; return most }
}

// judge compares the measurement with the attack's bounds, and fills in Broken.
func (r *Result) judge(a *Attack, size Size) {
	broken := func(format string, args ...any) { r.Broken = append(r.Broken, fmt.Sprintf(format, args...)) }
	if r.Ended != "" {
		broken("%s; its last output:\n%s", r.Ended, r.lastOutput)
	}
	if ceiling := a.Ceiling[size] << 20; r.Peak > ceiling {
		broken("%d MiB were resident, more than %d", r.Peak>>20, ceiling>>20)
	}
	if r.Charged[1] > r.Charged[0]+leftover && !a.Keeps {
		broken("clients were still charged with %d KiB, with %d before the attack", r.Charged[1]>>10, r.Charged[0]>>10)
	}
	if most := a.Returns[size] << 20; most > 0 && r.Left > r.Idle+most {
		broken("%d MiB stayed resident, with %d before the attack", r.Left>>20, r.Idle>>20)
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
		broken("the server was still at work %v after the attackers had left", r.Rest.Round(time.Second))
	}
	if r.Ended == "" && !r.StoppedIn {
		broken("the server did not end within %v of SIGTERM", stopIn)
	}
	allowed := a.LinesPerSec
	if allowed == 0 {
		allowed = maxLines
	}
	if perSec := r.LinesPerSec(); perSec > allowed {
		broken("%.0f lines were logged a second, more than %.0f", perSec, allowed)
	}
	if r.attackError != nil {
		broken("the attack could not be made: %v", r.attackError)
	}
}

// LinesPerSec is how many lines the server logged a second during the attack.
func (r *Result) LinesPerSec() float64 { return float64(r.Lines) / max(1, r.Took.Seconds()) }
