package client

import (
	"fmt"
	"time"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

// SetOption configures one [Client.Set].
type SetOption interface{ applySet(*setArgs) }

// DelOption configures one [Client.Del].
type DelOption interface{ applyDel(*delArgs) }

// StoreOption configures one [Client.Store].
type StoreOption interface{ applyStore(*storeArgs) }

// DoneOption configures one [Client.Done].
type DoneOption interface{ applyDone(*doneArgs) }

// WriteOption configures any write of a key: see [Fencing].
type WriteOption interface {
	SetOption
	DelOption
	StoreOption
}

// ValueCondition is a condition on the stored value: see [IfValue].
type ValueCondition interface {
	SetOption
	DelOption
}

// RetryOption configures one request, or all of a client: see [RetryWrites].
type RetryOption interface {
	Option
	WriteOption
	DoneOption
}

// writeArgs is what all writes have in common.
type writeArgs struct {
	token *hlc.Timestamp
	retry bool
}

type setArgs struct {
	writeArgs
	condition string // the one of IfAbsent, IfAbsentOrEqual, … that was given; "": none
	second    string // another one, which is an error
	compare   []byte // operand of IfAbsentOrValue and IfValue
	expiry    time.Duration
	expires   bool
	version   hlc.Timestamp
	versions  int // how many IfVersion were given
}

type delArgs struct {
	writeArgs
	values int // how many IfValue were given
	value  []byte
}

type storeArgs struct {
	writeArgs
	captured []byte // nil: none
	keep     time.Duration
	keeps    bool
	expiry   time.Duration
	expires  bool
	deletes  bool
}

type storeFunc func(*storeArgs)

func (f storeFunc) applyStore(a *storeArgs) { f(a) }

type setFunc func(*setArgs)

func (f setFunc) applySet(a *setArgs) { f(a) }

type writeFunc func(*writeArgs)

func (f writeFunc) applySet(a *setArgs)     { f(&a.writeArgs) }
func (f writeFunc) applyDel(a *delArgs)     { f(&a.writeArgs) }
func (f writeFunc) applyStore(a *storeArgs) { f(&a.writeArgs) }

// The conditions of a SET, by the names of the functions that give them.
const (
	ifAbsent        = "IfAbsent"
	ifAbsentOrEqual = "IfAbsentOrEqual"
	ifAbsentOrValue = "IfAbsentOrValue"
	ifValue         = "IfValue"
)

func condition(name string, compare []byte) setFunc {
	return func(a *setArgs) {
		if a.condition != "" {
			a.second = name
			return
		}
		a.condition, a.compare = name, compare
	}
}

// IfAbsent applies the Set only if the key does not exist. On the wire it is NX.
func IfAbsent() SetOption { return condition(ifAbsent, nil) }

// IfAbsentOrEqual applies the Set only if the key does not exist or already has the
// value that is being set: the way to renew one's own lock. On the wire it is NEX.
func IfAbsentOrEqual() SetOption { return condition(ifAbsentOrEqual, nil) }

// IfAbsentOrValue applies the Set only if the key does not exist or has the value old.
// On the wire it is NEX with an operand.
func IfAbsentOrValue(old []byte) SetOption {
	return condition(ifAbsentOrValue, append([]byte{}, old...))
}

// IfValue applies the Set or Del only if the key exists and has the value old.
//
// A Del with it is one request, VDEL on the wire. A Set with it is two, because the
// protocol has no such condition: the client reads the key and, if it has the value,
// sets it on condition of the version that it has read ([IfVersion], an extension of
// Holdfast); if the key has changed in between, it starts over. So the Set is atomic,
// but costs a second round trip and transfers the old value. Prefer [IfVersion] where
// the version is known.
func IfValue(old []byte) ValueCondition { return valueCondition(append([]byte{}, old...)) }

type valueCondition []byte

func (v valueCondition) applySet(a *setArgs) { condition(ifValue, v)(a) }
func (v valueCondition) applyDel(a *delArgs) { a.value, a.values = v, a.values+1 }

// IfVersion applies the Set only if the key exists with exactly this version:
// compare-and-set that sees every change in between. The zero version, which
// is what a Get that found nothing returns, means that the key must not exist.
// Together with another condition, both must hold. On the wire it is VER, an
// extension of Holdfast.
func IfVersion(v hlc.Timestamp) SetOption {
	return setFunc(func(a *setArgs) { a.version = v; a.versions++ })
}

// Expiry lets the key disappear after d, which must be positive and is rounded
// up to whole milliseconds. A Set without it removes any expiry the key had. On the
// wire it is PX.
func Expiry(d time.Duration) SetOption {
	return setFunc(func(a *setArgs) { a.expiry, a.expires = d, true })
}

// Fencing sends a fencing token with a write (protocol, section 5): the
// version under which the writer got its lock. A key that was ever set with a
// token refuses writes with a lower one ([ErrTokenTooLow]) or none
// ([ErrTokenRequired]).
func Fencing(token hlc.Timestamp) WriteOption {
	return writeFunc(func(a *writeArgs) { a.token = &token })
}

// Captured has a [Client.Store] remember value with the message, for [Client.Load]
// to give back to a duplicate: what the first processing took from outside, such as
// the time. It is dropped by [Client.Done].
func Captured(value []byte) StoreOption {
	return storeFunc(func(a *storeArgs) { a.captured = append([]byte{}, value...) })
}

// Keep sets for how long a [Client.Store] remembers its message, which must be
// positive and is rounded up to whole milliseconds. The server has a maximum; it
// remembers the message of a Store without Keep for 7 days, unless it is configured
// otherwise.
func Keep(d time.Duration) StoreOption {
	return storeFunc(func(a *storeArgs) { a.keep, a.keeps = d, true })
}

type retryWrites struct{}

func (retryWrites) applyClient(c *config)   { c.retryWrites = true }
func (retryWrites) applySet(a *setArgs)     { a.retry = true }
func (retryWrites) applyDel(a *delArgs)     { a.retry = true }
func (retryWrites) applyStore(a *storeArgs) { a.retry = true }
func (retryWrites) applyDone(a *doneArgs)   { a.retry = true }

// RetryWrites sends a write again, until its context ends, when the connection
// broke before the answer came. It may then take effect twice, and other
// clients' writes may lie between: a plain Set can overwrite what another client
// wrote after the first time, and a conditional one can fail with [ErrNotApplied]
// although it was this very write, the first time, that changed the key. A
// [Client.Store] or [Client.Done] can do no harm: the store remembers the
// first time. Give it for one write or, to [Dial] and [New], for all.
func RetryWrites() RetryOption { return retryWrites{} }

func (a *setArgs) check() error {
	switch {
	case a.second == a.condition && a.second != "":
		return fmt.Errorf("%w: %s is given twice: give it once", ErrInvalidOption, a.second)
	case a.second != "":
		return fmt.Errorf("%w: %s and %s exclude each other: give one of them", ErrInvalidOption, a.condition, a.second)
	case a.versions > 1:
		return fmt.Errorf("%w: IfVersion is given twice: give it once", ErrInvalidOption)
	case a.expires && a.expiry <= 0:
		return fmt.Errorf("%w: Expiry(%v): it must be positive; a Set without Expiry never expires", ErrInvalidOption, a.expiry)
	}
	return nil
}

func (a *delArgs) check() error {
	if a.values > 1 {
		return fmt.Errorf("%w: IfValue is given twice: give it once", ErrInvalidOption)
	}
	return nil
}

func (a *storeArgs) check() error {
	if a.keeps && a.keep <= 0 {
		return fmt.Errorf("%w: Keep(%v): it must be positive; without Keep the server decides", ErrInvalidOption, a.keep)
	}
	if a.expires && a.expiry <= 0 {
		return fmt.Errorf("%w: StateExpiry(%v): it must be positive; a Store without it never expires", ErrInvalidOption, a.expiry)
	}
	if a.expires && a.deletes {
		return fmt.Errorf("%w: StateExpiry and DeleteState exclude each other: give one of them", ErrInvalidOption)
	}
	return nil
}

// WatchOption configures one [Client.Watch] or [Client.WatchPattern].
type WatchOption interface{ applyWatch(*watchArgs) }

type watchArgs struct {
	queue  int
	rescan time.Duration
	paced  bool // Rescan was given
	binary bool
}

type watchFunc func(*watchArgs)

func (f watchFunc) applyWatch(a *watchArgs) { f(a) }

// Queue sets how many events wait for a slow consumer of this watch before newer events
// replace them (see [Client.Watch] and [Client.WatchPattern]). From 1; the default is 64.
func Queue(events int) WatchOption {
	return watchFunc(func(a *watchArgs) { a.queue = events })
}

// Rescan sets how often a [Client.WatchPattern] looks for new keys. At least 10 ms; the
// default is 1 s.
func Rescan(interval time.Duration) WatchOption {
	return watchFunc(func(a *watchArgs) { a.rescan, a.paced = interval, true })
}

const minRescan = 10 * time.Millisecond

func (a *watchArgs) check(pattern bool) error {
	switch {
	case a.queue < 1:
		return fmt.Errorf("%w: Queue(%d): it must be at least 1", ErrInvalidOption, a.queue)
	case pattern && a.rescan < minRescan:
		return fmt.Errorf("%w: Rescan(%v): it must be at least %v", ErrInvalidOption, a.rescan, minRescan)
	case !pattern && (a.paced || a.binary):
		return fmt.Errorf("%w: Rescan and BinaryKeys are options of WatchPattern, not of Watch", ErrInvalidOption)
	}
	return nil
}
