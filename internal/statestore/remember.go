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
		res.fail(f)
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
		return
	}
	// A memo whose time has come counts until it is gone, so taking its place
	// needs no room. What is remembered is new on the disk, whatever the value is.
	b := env.Room.refuses(cmd, cell.Entry)
	switch {
	case b == NoBound && env.Room.Disk != DiskFree:
		b = DiskReserve
	case b == NoBound && cell.Memo == nil && env.Room.Memos <= 0:
		b = MaxRemembered
	}
	if b != NoBound {
		res.exceed(b)
		return
	}
	memo := &Memo{Context: cmd.Context, DeadlineMs: env.MemoDeadline(cmd.KeepMs)}
	if live != nil {
		memo.State = present(live.Value)
	}
	res.replace(cmd, cell.Entry, live, 0, env)
	memo.Version = res.Entry.Version
	res.MemoChanged = true
	res.Memo = memo
}

// keepMs is how long a message is remembered that asks for it.
func (env *Env) keepMs(asked int64) int64 {
	if asked == 0 {
		asked = env.KeepMs
	}
	return max(1, min(asked, env.MaxKeepMs))
}

// MemoDeadline is when a message is forgotten that is remembered now; KEEP has asked for
// askedMs, 0: for nothing.
func (env *Env) MemoDeadline(askedMs int64) int64 { return env.deadline(env.keepMs(askedMs)) }

// done drops what is remembered of a message but its ID and its version.
func (res *Result) done(memo *Memo) {
	res.Reply.Kind = Count
	if memo == nil {
		return
	}
	res.Reply.Count = 1
	if !memo.Done {
		res.MemoChanged = true
		res.Memo = &Memo{Version: memo.Version, Done: true, DeadlineMs: memo.DeadlineMs}
	}
}

// present returns an empty slice for nil, since nil stands for no value.
func present(value []byte) []byte {
	if value == nil {
		return []byte{}
	}
	return value
}
