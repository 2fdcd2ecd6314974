package statestore

import (
	"bytes"
	"cmp"
	"math"

	"github.com/holdfast-mqtt/holdfast/hlc"
)

// Apply decides a command: the reply, the new state of the key, and the events for
// its watchers. It fills res and changes nothing else. It copies nothing: res refers to
// bytes of cmd and of cell, so a caller that keeps res for longer copies them
// (Entry.Clone, Memo.Own).
//
// The checks come in the order of the protocol, section 6, from authorization
// on; the ones before are the parser's. For KEYNOTIFY and SCAN it judges only
// authorization and, for SCAN, the token: the reply is OK, and the caller registers
// or scans and makes the real reply.
//
// A key whose deadline has passed is absent to every command. A SET or STORE that
// takes its place deletes it first, so that watchers get both events in their order;
// any other command leaves it to Expire. A remembered message whose time has come
// is new to every command.
func Apply(cmd *Command, cell Cell, env *Env, res *Result) {
	res.begin(cell.Entry, env)
	res.Memo = cell.Memo
	live := cell.Entry.Live(env.NowMs)
	if cmd.Denied {
		res.fail(NotAuthorized)
		return
	}
	switch cmd.Verb {
	case Get:
		res.get(live)
	case Set:
		res.set(cmd, cell.Entry, live, env)
	case Del, VDel:
		res.delete(cmd, live, env)
	case KeyNotify:
		res.Reply.Kind = OK
	case Scan:
		if cmd.HasToken && !validToken(cmd.Key, cmd.Value) {
			res.fail(MalformedToken)
			return
		}
		res.Reply.Kind = OK
	case Load:
		res.load(live, cell.Memo.Live(env.NowMs))
	case Store:
		res.store(cmd, cell, live, env)
	case Done:
		res.done(cmd, cell.Memo.Live(env.NowMs), env)
	default:
		res.fail(UnknownCommand)
	}
}

// Expire deletes a key whose deadline has come, like a DEL without a client: res
// holds the event and no reply. If the deadline hasn't come, or there is none, it returns
// false and nothing changes.
func Expire(key []byte, e *Entry, env *Env, res *Result) (due bool) {
	res.begin(e, env)
	if !e.expired(env.NowMs) {
		return false
	}
	res.remove(key, e, env)
	return true
}

// expired reports whether the entry's deadline has come: from then on the key is
// absent (protocol, section 6, Expiry). No entry is not expired.
func (e *Entry) expired(nowMs int64) bool {
	return e != nil && e.DeadlineMs != 0 && nowMs >= e.DeadlineMs
}

// Live returns the entry if its deadline has not come yet, else nil: the key is absent.
func (e *Entry) Live(nowMs int64) *Entry {
	if e.expired(nowMs) {
		return nil
	}
	return e
}

// begin makes res say that nothing has happened yet.
func (res *Result) begin(e *Entry, env *Env) {
	for i := range res.NumEvents {
		res.Events[i] = Event{}
	}
	res.NumEvents = 0
	res.Reply = Reply{}
	res.Changed = false
	res.Entry = e
	res.Last = env.Last
	res.MemoChanged = false
	res.Memo = nil
}

func (res *Result) fail(f Fault) {
	res.Reply = Reply{Kind: Error, Fault: f}
}

// failTime is fail for a fault of the request's timestamp. The reply says what the time
// is, so that the client can correct its own.
func (res *Result) failTime(f Fault, env *Env) {
	res.fail(f)
	if f == TimestampAhead {
		res.Reply.TimeMs = env.WallMs
	}
}

func (res *Result) exceed(b Bound) {
	res.Reply = Reply{Kind: Error, Fault: QuotaExceeded, Bound: b}
}

func (res *Result) notApplied(kind ReplyKind, live *Entry) {
	res.Reply.Kind = kind
	if live != nil {
		res.Reply.Version = live.Version // .NET requires it
	}
}

func (res *Result) get(live *Entry) {
	if live == nil {
		res.Reply.Kind = Nil
		return
	}
	res.Reply.Kind = Value
	res.Reply.Value = live.Value
	res.Reply.Version = live.Version
}

// set decides a SET. stored is the record that it would replace, live the same
// if its deadline hasn't come.
func (res *Result) set(cmd *Command, stored, live *Entry, env *Env) {
	if f := JudgeTime(cmd.Time, env); f != None {
		res.failTime(f, env)
		return
	}
	if f := judgeToken(cmd.Token, live, env); f != None {
		res.fail(f)
		return
	}
	if !cmd.conditionHolds(live) {
		res.notApplied(NotApplied, live)
		return
	}
	if b := env.Room.refuses(cmd, stored); b != NoBound {
		res.exceed(b)
		return
	}
	res.replace(cmd, stored, live, env.deadline(cmd.ExpiryMs), env)
}

// replace puts the command's value in the key's place: all that a SET and a STORE
// do to it once nothing speaks against it.
func (res *Result) replace(cmd *Command, stored, live *Entry, deadlineMs int64, env *Env) {
	if stored != live {
		res.remove(cmd.Key, stored, env)
	}
	res.next = Entry{
		Value:      cmd.Value,
		Version:    res.issue(stored, cmd.Time.At, env),
		Token:      cmd.newToken(live),
		DeadlineMs: deadlineMs,
	}
	e := &res.next
	res.Changed = true
	res.Entry = e
	res.Reply.Kind = OK
	res.Reply.Version = e.Version
	res.tell(Event{Kind: KeySet, Key: cmd.Key, Value: e.Value, Version: e.Version})
}

// delete decides a DEL or VDEL.
func (res *Result) delete(cmd *Command, live *Entry, env *Env) {
	if f := judgeToken(cmd.Token, live, env); f != None {
		res.fail(f)
		return
	}
	if live == nil {
		res.Reply.Kind = Count
		return
	}
	if cmd.Verb == VDel && !bytes.Equal(live.Value, cmd.Value) {
		res.notApplied(NotApplied, live)
		return
	}
	res.remove(cmd.Key, live, env)
	res.Reply.Kind = Count
	res.Reply.Count = 1
	res.Reply.Version = live.Version
}

// remove deletes the stored entry. The event carries a version of its own, later
// than the deleted value's (protocol, section 4).
func (res *Result) remove(key []byte, stored *Entry, env *Env) {
	version := res.issue(stored, hlc.Timestamp{}, env)
	res.Changed = true
	res.Entry = nil
	res.tell(Event{Kind: KeyDeleted, Key: key, Version: version})
}

func (res *Result) tell(ev Event) {
	res.Events[res.NumEvents] = ev
	res.NumEvents++
}

// issue gives out the next version. It follows the stored one too: a single node
// has never issued a later one than Last, but where several nodes write, each
// with a Last of its own, one key's versions must still rise.
func (res *Result) issue(stored *Entry, ts hlc.Timestamp, env *Env) hlc.Timestamp {
	last := res.Last
	if stored != nil && stored.Version.Compare(last) > 0 {
		last = stored.Version
	}
	res.Last = hlc.Next(env.wallMs(), last, ts, env.Node)
	return res.Last
}

func (env *Env) wallMs() uint64 { return uint64(max(0, env.WallMs)) }

// JudgeTime judges the __ts of a SET or STORE: it must be there, parse, and not be too far
// ahead of the wall clock. Were it the HLC, clocks that run ahead could push it
// on and on, each by another 60 s (protocol, section 4).
func JudgeTime(ts Stamp, env *Env) Fault {
	switch {
	case ts.State == Missing:
		return MissingTimestamp
	case ts.State == Malformed:
		return MalformedTimestamp
	case ahead(ts.At.Wall, env.wallMs(), env.MaxSkewMs):
		return TimestampAhead
	}
	return None
}

// judgeToken judges the __ft of a write: its form, its skew, then the fencing
// rule (protocol, section 5). The store's own versions are never too far ahead:
// they may well be tokens.
func judgeToken(token Stamp, live *Entry, env *Env) Fault {
	switch {
	case token.State == Malformed:
		return MalformedTimestamp
	case token.State == Given && ahead(token.At.Wall, max(env.wallMs(), env.Last.Wall), env.MaxSkewMs):
		return TokenAhead
	case live == nil || live.Token.IsZero():
		return None
	case token.State == Missing:
		return TokenRequired
	case token.At.Compare(live.Token) < 0:
		return TokenTooLow
	}
	return None
}

// ahead reports whether wall is more than skewMs after base.
func ahead(wall, base uint64, skewMs int64) bool {
	return wall > base && wall-base > uint64(max(0, skewMs))
}

// conditionHolds reports whether all of NX, NEX and VER that were given hold.
func (cmd *Command) conditionHolds(live *Entry) bool {
	switch cmd.Condition {
	case IfAbsent:
		if live != nil {
			return false
		}
	case IfAbsentOrEqual:
		if live != nil && !bytes.Equal(live.Value, cmd.Compare) {
			return false
		}
	}
	return !cmd.Version.Given || cmd.Version.holds(live)
}

// holds reports whether the key has the version that is demanded.
func (check *VersionCheck) holds(live *Entry) bool {
	if check.Absent {
		return live == nil
	}
	return live != nil && live.Version == check.At
}

// refuses returns the bound that the SET or STORE would pass, NoBound if none: it may
// grow the store by what room there is, and one that doesn't grow it is allowed while
// the disk has room to replace anything. A stored entry counts until it is gone, even
// if its deadline has passed.
func (room *Room) refuses(cmd *Command, stored *Entry) Bound {
	whole := int64(len(cmd.Key)) + int64(len(cmd.Value))
	keys, size := int64(1), whole
	if stored != nil {
		keys = 0
		size = int64(len(cmd.Value)) - int64(len(stored.Value))
	}
	switch grows := keys > 0 || size > 0; {
	case room.Disk == DiskScarce, room.Disk == DiskLow && grows:
		return DiskReserve
	case keys > 0 && keys > room.Keys:
		return MaxKeys
	case size > 0 && size > room.Bytes:
		return cmp.Or(room.BytesBy, MaxBytes)
	}
	client := &room.Client
	if client.Bounded && !client.Own { // the key becomes the client's
		keys, size = 1, whole
	}
	switch {
	case client.Bounded && keys > 0 && keys > client.Keys:
		return MaxKeysOfClient
	case client.Bounded && size > 0 && size > client.Bytes:
		return MaxBytesOfClient
	}
	return NoBound
}

// newToken returns the token that protects the key after an applied SET: the
// request's if it is newer.
func (cmd *Command) newToken(live *Entry) hlc.Timestamp {
	var stored hlc.Timestamp
	if live != nil {
		stored = live.Token
	}
	if cmd.Token.State != Given || !stored.IsZero() && cmd.Token.At.Compare(stored) <= 0 {
		return stored
	}
	return cmd.Token.At
}

// deadline returns when a key set now with PX ms is absent; 0 is never. A time
// beyond the calendar is its end. A key never goes early, so if now was cut to a whole
// millisecond, its time counts from the next.
func (env *Env) deadline(expiryMs int64) int64 {
	from := env.NowMs + env.CutMs
	switch {
	case expiryMs <= 0:
		return 0
	case from > math.MaxInt64-expiryMs:
		return math.MaxInt64
	default:
		return max(1, from+expiryMs)
	}
}
