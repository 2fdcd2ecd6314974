package statestore

// LOAD, STORE and DONE (protocol, section 8): a message is processed once because
// the commit of its outcome also remembers that it was processed, and what the
// state was before. A client that LOADs the message again gets that state, processes
// it again, and so comes to the same outputs.

// Live returns the memo if its time has not come yet, else nil: after it the
// message is new again.
func (m *Memo) Live(nowMs int64) *Memo {
	if m == nil || nowMs >= m.DeadlineMs {
		return nil
	}
	return m
}

func (res *Result) load(live *Entry, memo *Memo) {
	res.Reply.Kind = Loaded
	switch {
	case memo == nil:
		res.Reply.Count = NewMessage
		if live != nil {
			res.Reply.Value = present(live.Value)
			res.Reply.Version = live.Version
		}
	case memo.Done:
		res.Reply.Count = Confirmed
		res.Reply.Context = memo.Context
		res.Reply.Version = memo.Version
	default:
		res.Reply.Count = Duplicate
		res.Reply.Value = memo.State
		res.Reply.Context = memo.Context
		res.Reply.Version = memo.Version
	}
}

// store decides a STORE. Its own message comes before the version: a retry after
// a lost reply finds the version that it made itself, and must not be told that
// another client was faster.
func (res *Result) store(cmd *Command, cell Cell, live *Entry, env *Env) {
	if f := JudgeTime(cmd.Time, env); f != None {
		res.failTime(f, env)
		return
	}
	if f := judgeToken(cmd.Token, live, env); f != None {
		res.fail(f)
		return
	}
	if memo := cell.Memo.Live(env.NowMs); memo != nil {
		res.Reply.Kind = Count
		res.Reply.Version = memo.Version
		return
	}
	if !cmd.Version.holds(live) {
		res.notApplied(Conflict, live)
		res.Reply.KeepMs = env.Granted(cmd.KeepMs)
		return
	}
	memo := &Memo{Context: cmd.Context, DeadlineMs: env.MemoDeadline(cmd.KeepMs)}
	if live != nil {
		memo.State = present(live.Value)
	}
	// What is remembered is new on the disk, whatever the value is.
	b := NoBound
	if !cmd.Remove {
		b = env.Room.refuses(cmd, cell.Entry)
	}
	name := len(cmd.Key) + len(cmd.Message)
	switch {
	case b == NoBound && env.Room.Disk != DiskFree:
		b = DiskReserve
	case b == NoBound:
		b = env.Room.refusesMemo(memo.Size(name) - cell.Memo.Size(name))
	}
	if b != NoBound {
		res.exceed(b)
		return
	}
	if cmd.Remove {
		res.storeNothing(cmd, cell.Entry, env)
	} else {
		res.replace(cmd, cell.Entry, live, env.deadline(cmd.ExpiryMs), env)
	}
	res.Reply.KeepMs = env.Granted(cmd.KeepMs)
	memo.Version = res.Reply.Version
	res.MemoChanged = true
	res.Memo = memo
}

// storeNothing deletes the key. If there is none, the message gets a version all the
// same, which is that of a deletion without an event.
func (res *Result) storeNothing(cmd *Command, stored *Entry, env *Env) {
	if stored != nil {
		res.remove(cmd.Key, stored, env)
	} else {
		res.issue(nil, cmd.Time.At, env)
		res.Changed, res.Entry = true, nil
	}
	res.Reply.Kind, res.Reply.Version = OK, res.Last
}

// refusesMemo returns the bound that is in the way of remembering so many bytes more. A memo
// whose time has come counts until it is gone, so one that takes its place and is no larger
// needs no room.
func (r *Room) refusesMemo(grown int64) Bound {
	switch {
	case grown <= 0:
		return NoBound
	case r.Disk != DiskFree:
		return DiskReserve
	case grown > r.Memos:
		return MaxRemembered
	}
	return NoBound
}

// keepMs is how long a message is remembered that asks for it.
func (env *Env) keepMs(asked int64) int64 {
	if asked == 0 {
		asked = env.KeepMs
	}
	return max(1, min(asked, env.MaxKeepMs))
}

// Granted is for how long a message is remembered that has asked for askedMs, 0: for
// nothing; or 0 if that is what it has asked for.
func (env *Env) Granted(askedMs int64) int64 {
	if granted := env.keepMs(askedMs); granted != askedMs {
		return granted
	}
	return 0
}

// MemoDeadline is when a message is forgotten that is remembered now; KEEP has asked for
// askedMs, 0: for nothing.
func (env *Env) MemoDeadline(askedMs int64) int64 { return env.deadline(env.keepMs(askedMs)) }

// done drops what is remembered of a message but its ID and its version, and puts the
// context of DONE in the place of STORE's. A DONE with a version is about the message that
// has made it, and not about one that was stored under the same ID once that was forgotten.
// It needs room only if its context has more bytes than what it drops.
func (res *Result) done(cmd *Command, memo *Memo, env *Env) {
	res.Reply.Kind = Count
	confirmed, known := memo.Confirm(cmd.Version, cmd.Context)
	if !known {
		return
	}
	res.Reply.Count = 1
	if confirmed == nil {
		return
	}
	if b := env.Room.refusesMemo(confirmed.Size(0) - memo.Size(0)); b != NoBound {
		res.exceed(b)
		return
	}
	res.MemoChanged, res.Memo = true, confirmed
}

// Confirm decides a DONE with the given version and context about a live memo, or nil. known is
// false if it is about another message; confirmed is nil if nothing changes.
func (m *Memo) Confirm(version VersionCheck, context []byte) (confirmed *Memo, known bool) {
	switch {
	case m == nil || version.Given && m.Version != version.At:
		return nil, false
	case m.Done:
		return nil, true
	}
	return &Memo{Version: m.Version, Done: true, Context: context, DeadlineMs: m.DeadlineMs}, true
}

// present returns an empty slice for nil, since nil stands for no value.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
