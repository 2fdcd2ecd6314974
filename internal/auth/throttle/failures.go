package throttle

import (
	"hash/maphash"
	"net"
	"net/netip"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// Options of NewFailures. All must be above 0.
type Options struct {
	// Burst is how many failed logins an address has with one user name before it must
	// wait, and a tenth of those that it has with all user names together: one device
	// with a wrong password doesn't lock out others that share its address.
	Burst int
	// Interval is after how long it has one more; with all user names together, a tenth
	// of it.
	Interval time.Duration
	// Entries bounds the table.
	Entries int
	Now     func() time.Time // nil: time.Now
}

// shared is how many times more failures an address has than one user name of it.
const shared = 10

// Failures counts failed logins by client address, and by address and user name. Its
// methods are safe for concurrent use.
//
// What is counted is a point in time for each key: each failure moves it by Interval, and
// when it is more than Burst intervals ahead, the key has none left. A key whose time has
// passed is like one that never failed, and goes when the table is full; if there is no
// such key, any other one goes. That may favour an attacker with very many addresses, whom
// no count by address stops: what it costs the server is bounded by [Checks].
type Failures struct {
	o    Options
	seed maphash.Seed

	mu   lockrank.Mutex[lockrank.LoginFailures]
	full map[key]time.Time // when the key has all its failures again; guarded by mu
}

// key is an address, with a user name or, with user 0, with all.
type key struct {
	addr netip.Prefix
	user uint64
}

// NewFailures makes an empty table.
func NewFailures(o Options) *Failures {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Failures{o: o, seed: maphash.MakeSeed(), full: make(map[key]time.Time)}
}

// Network is what counts as the client's address: of IPv6 its /64, which one customer of
// a provider has for himself.
func Network(addr net.Addr) netip.Prefix {
	var ip netip.Addr
	switch a := addr.(type) {
	case nil:
	case *net.TCPAddr:
		ip, _ = netip.AddrFromSlice(a.IP)
	default:
		if port, err := netip.ParseAddrPort(addr.String()); err == nil {
			ip = port.Addr()
		}
	}
	ip = ip.Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits)
	return p // zero for what has no address: together they are one
}

func (f *Failures) keys(addr netip.Prefix, user string) (one, all key) {
	return key{addr, maphash.String(f.seed, user) | 1}, key{addr, 0}
}

// Allowed says whether the address may try to log in with the user name.
func (f *Failures) Allowed(addr netip.Prefix, user string) bool {
	one, all := f.keys(addr, user)
	now := f.o.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.full[one].Sub(now) <= time.Duration(f.o.Burst-1)*f.o.Interval &&
		f.full[all].Sub(now) <= time.Duration(shared*f.o.Burst-1)*(f.o.Interval/shared)
}

// Failed counts a failed login.
func (f *Failures) Failed(addr netip.Prefix, user string) {
	one, all := f.keys(addr, user)
	now := f.o.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.add(one, now, f.o.Interval)
	f.add(all, now, f.o.Interval/shared)
}

// add counts a failure of one key; mu is held.
func (f *Failures) add(k key, now time.Time, interval time.Duration) {
	full, known := f.full[k]
	if !known && len(f.full) >= f.o.Entries {
		f.makeRoom(now)
	}
	if full.Before(now) {
		full = now
	}
	f.full[k] = full.Add(interval)
}

// makeRoom lets go of what no longer counts among some entries, or of one that does; mu
// is held.
func (f *Failures) makeRoom(now time.Time) {
	var any key
	looked, dropped := 0, 0
	for k, full := range f.full { // begins anywhere
		if full.Before(now) {
			delete(f.full, k)
			dropped++
		} else {
			any = k
		}
		if looked++; looked == 64 {
			break
		}
	}
	if dropped == 0 {
		delete(f.full, any)
	}
}

// Len is how many keys the table has.
func (f *Failures) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.full)
}
