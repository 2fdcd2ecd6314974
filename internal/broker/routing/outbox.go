package routing

import (
	"slices"

	"github.com/holdfast-mqtt/holdfast/internal/broker/delayed"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/retained"
	"github.com/holdfast-mqtt/holdfast/internal/broker/rows"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/broker/settle"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// Outbox is what a transaction does besides keys: the messages that it publishes, and the
// deliveries that it acknowledges.
//
//	Prepare ──▶ Append ──▶ Commit ──▶ (the batch is durable) Durable
//	   └──────▶ Withdraw
//
// Prepare puts the messages into queues and into the store of retained messages, where no
// client is sent them: the slots of queues are unsaved, which also holds back what comes
// behind them, and the locks of the topics under which messages are retained stay locked.
// Nothing else is needed to take everything out again: Withdraw. Messages that are to be
// published later become timers (package delayed) by the same batch.
//
// Commit makes the messages like any others, but for their AfterBatch: sessions, backlogs of
// shared subscriptions and replays send them when that batch is durable, and not before. What
// has no place to wait in is left to Durable: messages at QoS 0, and deletions of retained
// messages.
type Outbox struct {
	rt       *Router
	t        *session.Turn // the reader's
	messages []message.Outgoing
	held     *session.Held
	stripes  []int             // of topics, locked from Prepare to Commit
	retained []retained.Change // in the order of the messages
	matched  int               // subscriptions

	timers  []delayed.Timer
	cancels []delayed.Cancel
	places  []int           // of messages, then of timers, then of cancels, the number by which a refusal names them; nil: as they are
	change  *delayed.Change // nil: no timer is set or cancelled
	timer   [2][]byte       // keys of the rows of the timer whose message this is; nil: it is none's

	ids      []uint16 // packet identifiers of the deliveries to be acknowledged
	find     func(ids []uint16) (found settle.Deliveries, missing int, ok bool)
	settling settle.Deliveries
}

// Refusal says why an Outbox can't be prepared.
type Refusal uint8

const (
	NotRefused         Refusal = iota
	QueueFull                  // of a session or shared subscription that would get the message
	RetainedFull               // it can't be retained
	DiskLow                    // it would need the disk
	TooManyDeliveries          // with it, the transaction has more than MaxTxnDeliveries
	NotUnderWay                // the refused delivery, not message, is none that can be acknowledged
	TimersFull                 // there are as many timers as there may be
	TimersOfClientFull         // or as its client may have
	TimerTwice                 // another operation of the transaction sets or cancels the same timer
	TimerUnreadable            // the disk can't be read
)

// refusals are what Refusals of package delayed mean here.
var refusals = [...]Refusal{
	delayed.TooMany: TimersFull, delayed.TooManyOfClient: TimersOfClientFull, delayed.Twice: TimerTwice, delayed.Unreadable: TimerUnreadable,
}

// NewOutbox takes messages, which it completes, and packet identifiers of deliveries to be
// acknowledged, with a function that finds these. Identifiers and the bytes of
// the messages are used until Prepare returns. The turn is that of the goroutine that calls Prepare, Append, Commit and
// Withdraw.
func (rt *Router) NewOutbox(t *session.Turn, messages []message.Outgoing, settles []uint16, find func(ids []uint16) (settle.Deliveries, int, bool)) *Outbox {
	return &Outbox{rt: rt, t: t, messages: messages, held: rt.NewHeld(), ids: settles, find: find}
}

// Later adds messages that are to be published later, and timers that are to be cancelled.
// places are the numbers by which Prepare names what is refused: of the messages that go at
// once, then of these, then of the cancels.
func (x *Outbox) Later(timers []delayed.Timer, cancels []delayed.Cancel, places []int) {
	x.timers, x.cancels, x.places = timers, cancels, places
}

// Ended says, once the Outbox is prepared, whether there was a timer to be cancelled, by its
// number.
func (x *Outbox) Ended(cancel int) bool { return x.change.Found(len(x.timers) + cancel) }

// place is the number by which the caller knows a message, or a timer behind the messages.
func (x *Outbox) place(i int) int {
	if x.places == nil {
		return i
	}
	return x.places[i]
}

// Prepare routes and stores the messages, as yet without effect. If one is refused it says
// which, from 0, and nothing is changed; otherwise whether there are rows to append. Only
// stripes of keys may be locked.
func (x *Outbox) Prepare() (hasRows bool, refused int, why Refusal) {
	if len(x.ids) > 0 {
		var ok bool
		if x.settling, refused, ok = x.find(x.ids); !ok {
			return false, refused, NotUnderWay
		}
		x.ids, hasRows = nil, x.settling.HaveRows()
	}
	x.rt.Commit(x.t, nil) // what the turn has left of other messages gets a batch of its own
	if refused, why = x.setTimers(); why != NotRefused {
		return false, x.place(len(x.messages) + refused), why
	}
	x.lock()
	refused, why = x.store()
	if why == RetainedFull {
		x.unlock()
		made := x.rt.Retained.MakeRoom()
		x.lock()
		if made {
			refused, why = x.store()
		}
	}
	for i := 0; i < len(x.messages) && why == NotRefused; i++ {
		if why = x.route(&x.messages[i]); why != NotRefused {
			refused = i
		}
	}
	x.t.Worked += x.matched / session.MatchesPerUnit
	if why != NotRefused {
		refused = x.place(refused)
		x.Withdraw()
		return false, refused, why
	}
	hasRows = x.held.Number() || hasRows || len(x.retained) > 0 || x.change != nil && x.change.HasRows() || x.timer[0] != nil
	return hasRows, 0, NotRefused
}

// setTimers sets and cancels the timers, as yet without effect.
func (x *Outbox) setTimers() (refused int, why Refusal) {
	if len(x.timers)+len(x.cancels) == 0 {
		return 0, NotRefused
	}
	if len(x.timers) > 0 && x.rt.Journal.Low() {
		return 0, DiskLow
	}
	var unset delayed.Refusal
	x.change, refused, unset = x.rt.Timers.Prepare(x.timers, x.cancels)
	return refused, refusals[unset]
}

// lock locks the topics under which messages are to be retained.
func (x *Outbox) lock() {
	if x.stripes == nil {
		for i := range x.messages {
			if o := &x.messages[i]; o.Retain {
				x.stripes = append(x.stripes, x.rt.Retained.StripeOf(o.Topic))
			}
		}
		slices.Sort(x.stripes)
		x.stripes = slices.Compact(x.stripes)
	}
	for _, i := range x.stripes {
		x.rt.Retained.Stripe(i).Lock()
	}
}

func (x *Outbox) unlock() {
	for _, i := range x.stripes {
		x.rt.Retained.Stripe(i).Unlock()
	}
}

// store stores what is to be retained, or nothing of it.
func (x *Outbox) store() (refused int, why Refusal) {
	for i := range x.messages {
		o := &x.messages[i]
		if !o.Retain {
			continue
		}
		if len(o.Payload) > 0 && x.rt.Journal.Low() {
			x.undoStore()
			return i, DiskLow
		}
		c, ok := x.rt.Retained.Change(o)
		if !ok {
			x.undoStore()
			return i, RetainedFull
		}
		x.retained = append(x.retained, c)
	}
	return 0, NotRefused
}

// undoStore undoes store, the last change first.
func (x *Outbox) undoStore() {
	for _, c := range slices.Backward(x.retained) {
		x.rt.Retained.Undo(c)
	}
	x.retained = nil
}

// route puts a message into the queues of the sessions and shared subscriptions that match.
func (x *Outbox) route(o *message.Outgoing) Refusal {
	rt, t := x.rt, x.t
	if o.QoS > 0 && rt.Journal.Low() && rt.NeedsDisk(t, o, new(message.PublishRows)) {
		return DiskLow
	}
	if o.QoS > 0 && rt.refuses(t, o) {
		return QueueFull
	}
	t.Promises.Return() // hold looks at each queue under the lock under which it fills it
	matches := rt.Match(t, o.Topic)
	x.matched += len(matches)
	if len(matches) == 0 {
		return NotRefused
	}
	chain := ChainMatches(t, matches)
	for i := range matches {
		if chain[i].Follows {
			continue
		}
		if !x.hold(matches, i, o) {
			return QueueFull
		}
		if x.held.Len() > rt.Limits().MaxTxnDeliveries {
			return TooManyDeliveries
		}
	}
	return NotRefused
}

// hold is DeliverTo for a transaction. It returns false if there is no room.
func (x *Outbox) hold(matches []*session.Subscription, i int, o *message.Outgoing) bool {
	first := matches[i]
	if first.Session == nil {
		return groupOf(first).Hold(x.t, x.held, o)
	}
	s := first.Session
	s.Mu.Lock()
	defer s.Mu.Unlock()
	qos, retain, any := gather(x.t, matches, i, o)
	return !any || s.Hold(x.t, x.held, first, o, min(o.QoS, qos), o.Retain && retain)
}

// Append appends the rows.
func (x *Outbox) Append(a journal.Append) {
	x.settling.Append(a)
	x.held.Append(x.t, a)
	if x.change != nil {
		x.change.Append(a)
	}
	if x.timer[0] != nil {
		a.Delete(x.timer[0])
		a.Delete(x.timer[1])
	}
	var row []byte
	for _, c := range x.retained {
		key := rows.RetainedKey(c.Message.Topic())
		if len(c.Message.Payload()) == 0 {
			a.Delete(key)
		} else {
			row = c.Message.AppendRetainedRow(row[:0], x.rt.Wall())
			a.Set(key, row)
		}
	}
}

// Commit lets the messages go once the batch is durable, which is that of the rows if there
// are any. It returns a later batch for which the reply to the transaction must wait as
// well; 0: none.
func (x *Outbox) Commit(batch journal.Seq) (later journal.Seq) {
	for i := range x.messages {
		if m := x.messages[i].Msg; m != nil {
			m.AfterBatch = batch
		}
	}
	x.unlock()
	if x.change != nil {
		x.change.Commit(batch)
	}
	x.settling.Commit(batch)
	later = x.held.Commit(x.t, batch)
	if x.change != nil && x.change.Looked > max(batch, later) {
		later = x.change.Looked // the reply says whether there were such timers; without rows batch may be earlier
	}
	x.done()
	if x.settling.Len() > 0 {
		x.t.WhenFlushed((&places{x.rt, x.settling, max(batch, later)}).await)
	}
	if !x.rt.Journal.Await(batch, x) {
		x.finish()
		x.held.Release(x.t)
	}
	return later
}

// done lets go of the messages that no queue has.
func (x *Outbox) done() {
	for i := range x.messages {
		x.messages[i].Done()
	}
	x.messages = nil
}

// Withdraw takes back what Prepare has done.
func (x *Outbox) Withdraw() {
	x.undoStore()
	x.unlock()
	if x.change != nil {
		x.change.Withdraw()
	}
	x.held.Withdraw(x.t)
	x.done()
}

// directByCommitter is how many messages at QoS 0 the journal's committer sends by itself:
// a goroutine sends more, so that the replies to others don't wait for it.
const directByCommitter = 1024

// Durable implements journal.Waiter.
func (x *Outbox) Durable(journal.Seq) {
	t := x.rt.LockDeferred()
	x.finish()
	if x.held.Direct() <= directByCommitter {
		x.held.Release(t)
		x.rt.UnlockDeferred()
		return
	}
	x.rt.UnlockDeferred()
	x.rt.Background(func(t *session.Turn) { x.held.Release(t) })
}

// finish does what may be done when the batch is durable, but for messages at QoS 0.
func (x *Outbox) finish() {
	for _, c := range x.retained {
		x.rt.Retained.Durable(c)
	}
}

// places are the places in the client's Receive Maximum of the deliveries that a transaction
// has acknowledged. They are returned behind the reply, for until then the client counts them:
// the reader has them wait for the batch of the reply at the end of its turn, when the reply
// waits for that as well, or is in the output.
type places struct {
	rt       *Router
	settling settle.Deliveries
	batch    journal.Seq
}

func (p *places) await(t *session.Turn) {
	if !p.rt.Journal.Await(p.batch, p) {
		p.giveBack(t)
	}
}

// Durable implements journal.Waiter.
func (p *places) Durable(journal.Seq) {
	t := p.rt.LockDeferred()
	t.WhenFlushed(p.giveBack)
	p.rt.UnlockDeferred()
}

func (p *places) giveBack(t *session.Turn) { p.settling.ReturnPlaces(t) }
