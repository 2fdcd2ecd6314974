package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Processors process the messages of a few keys, each message once, with LOAD, STORE and
// DONE (protocol, section 8). They pick the same messages, so that several of them often
// process one message, in the same life or in later ones.
const (
	Processors      = 3
	processorKeys   = 4  // in a chapter of the ledger
	processorWindow = 8  // messages that one of them has under way, at most
	ledgersKept     = 10 // which a settlement looks at again
)

// Processor processes messages. The state of a key is the list of the messages that were
// committed to it, in order, so it shows how often each was committed.
type Processor struct {
	historian // its requests are not kept: the ledger checks each answer at once
	ledger    *Ledger
	auditor   bool // it reads all keys and messages when the run settles
}

// NewProcessor makes a processor that shares a ledger with others; the first is also the auditor.
func NewProcessor(number int, rng *rand.Rand, l *Ledger) *Processor {
	return &Processor{historian: newHistorian(fmt.Sprintf("processor%d", number), rng), ledger: l, auditor: number == 0}
}

// Counts is what the processors of one ledger were answered.
func (a *Processor) Counts() ProcessorCounts { return a.ledger.counts }

// Live implements lives.Actor.
func (a *Processor) Live(l *lives.Life) error {
	if l.Settle && !a.auditor {
		return nil
	}
	s, err := a.dial(l)
	if err != nil {
		return a.ended(l, err)
	}
	l.Arrivals.Count()
	if l.Settle {
		if err := a.audit(l, s); err != nil {
			return a.over(l, s, err)
		}
		return s.Disconnect(mqtt.Disconnect{})
	}
	for err == nil {
		err = a.process(l, s)
	}
	return a.over(l, s, err)
}

// over ends a connection that failed. Processors pick the messages that were under way
// again in a later life.
func (a *Processor) over(l *lives.Life, s *storeLink, cause error) error {
	err := a.historian.over(l, s, cause)
	a.Take()
	return err
}

// process does some messages: LOAD, then STORE of those that are new, then DONE of
// most that are committed. The others stay until a processor picks them again.
func (a *Processor) process(l *lives.Life, s *storeLink) error {
	var steps []step
	for range 1 + a.rng.IntN(processorWindow) {
		steps = append(steps, a.step(statestore.Load, a.ledger.pick(a.rng)))
	}
	loaded, err := a.exchange(l, s, steps)
	if err != nil {
		return err
	}
	steps = steps[:0]
	var done []step
	for i, m := range loaded {
		switch m.Count {
		case statestore.NewMessage:
			st := a.step(statestore.Store, m.message)
			st.base, st.version = m.Value, m.Answer.Version
			steps = append(steps, st)
		case statestore.Duplicate:
			done = append(done, a.step(statestore.Done, loaded[i].message))
		}
	}
	stored, err := a.exchange(l, s, steps)
	if err != nil {
		return err
	}
	for _, m := range stored {
		if m.Kind != statestore.NotApplied && a.rng.IntN(3) > 0 {
			done = append(done, a.step(statestore.Done, m.message))
		}
	}
	_, err = a.exchange(l, s, done)
	return err
}

func (a *Processor) step(verb statestore.Verb, m *input) step {
	return step{Request: a.request(verb, m.key), message: m}
}

// step is one request for a message.
type step struct {
	history.Request
	message *input
	base    string        // of a STORE: the state to go on from
	version hlc.Timestamp // … and its version
	before  known         // what was known of the message when it was sent
}

// stepped is a step with its answer.
type stepped struct {
	step
	history.Answer
}

// exchange sends some steps at once, and the ledger checks every answer.
func (a *Processor) exchange(l *lives.Life, s *storeLink, steps []step) (all []stepped, err error) {
	sent := map[*pending]step{}
	for _, st := range steps {
		st.before = a.ledger.begin(st.message, st.Verb)
		p := &pending{Request: st.Request}
		p.Client, p.Call = s.client, lives.Now()
		s.publish(p, st.payload())
		sent[p] = st
	}
	for len(s.waiting) > 0 {
		p, err := a.await(l, s)
		if err != nil {
			return nil, err
		}
		m := stepped{sent[p], p.Answer}
		if err := a.ledger.enter(&m); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", lives.ErrBroken, a.name, err)
		}
		all = append(all, m)
	}
	a.Take()
	return all, nil
}

// payload is the request on the wire.
func (st *step) payload() []byte {
	args := [][]byte{[]byte(st.Verb.String()), []byte(st.Key)}
	if st.Verb != statestore.Store {
		return protocol.AppendCommand(nil, append(args, []byte(st.message.id))...)
	}
	base := []byte("-")
	if !st.version.IsZero() {
		base = st.version.Append(nil)
	}
	return protocol.AppendCommand(nil, append(args, []byte(st.base+st.message.id+" "), []byte(st.message.id), base,
		[]byte("CTX"), []byte(captured(st.message, st.base)))...)
}

// captured is the context of a message that was processed on a state: the two must
// come back together.
func captured(m *input, base string) string { return m.id + " on " + base }

// audit looks at all messages, and at the states, and begins a new chapter.
func (a *Processor) audit(l *lives.Life, s *storeLink) error {
	for _, c := range a.ledger.chapters {
		for _, key := range slices.Sorted(maps.Keys(c)) {
			messages := c[key]
			steps := []step{a.step(statestore.Load, &input{key: key, id: "unsent"})}
			for _, m := range messages {
				steps = append(steps, a.step(statestore.Load, m))
			}
			all, err := a.exchange(l, s, steps)
			if err != nil {
				return err
			}
			for _, m := range all {
				if m.message.id == "unsent" {
					if err := complete(key, m.Value, messages); err != nil {
						return fmt.Errorf("%w: %s: %w", lives.ErrBroken, a.name, err)
					}
				}
			}
		}
	}
	a.ledger.open()
	return nil
}

// complete compares a key's state with the messages that are known to be committed:
// each is in it exactly once, and nothing else is.
func complete(key, state string, messages []*input) error {
	count := map[string]int{}
	for _, id := range strings.Fields(state) {
		count[id]++
	}
	for _, m := range messages {
		want := 0
		if !m.version.IsZero() {
			want = 1
		}
		if count[m.id] != want {
			return fmt.Errorf("message %s of key %s was committed %d times, want %d", m.id, key, count[m.id], want)
		}
		delete(count, m.id)
	}
	if len(count) > 0 {
		return fmt.Errorf("messages were committed to key %s that no processor sent: %v", key, count)
	}
	return nil
}

// Ledger is what the processors know of all messages.
type Ledger struct {
	mu       sync.Mutex
	chapters []chapterOfMessages // the last one is open; guarded by mu during a life, and not shared between lives
	number   int                 // guarded by mu: chapters opened
	counts   ProcessorCounts     // guarded by mu
}

type chapterOfMessages map[string][]*input // by key

// input is a message to be processed.
type input struct {
	key, id string
	known   // guarded by the ledger's mu
}

// known is what is known of a message, and must stay true over all kills.
type known struct {
	version hlc.Timestamp // of its commit; zero: not known to be committed
	asked   bool          // a processor has sent a DONE
	done    bool          // a DONE was answered
}

// NewLedger makes a ledger.
func NewLedger() *Ledger {
	g := &Ledger{}
	g.open()
	return g
}

// open begins a chapter.
func (g *Ledger) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.number++
	c := chapterOfMessages{}
	for i := range processorKeys {
		c[fmt.Sprintf("messages%d/key%d", g.number, i)] = nil
	}
	g.chapters = append(g.chapters, c)
	g.chapters = g.chapters[max(0, len(g.chapters)-ledgersKept):]
}

// pick chooses a new message, or one that a processor has picked before.
func (g *Ledger) pick(rng *rand.Rand) *input {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := fmt.Sprintf("messages%d/key%d", g.number, rng.IntN(processorKeys))
	open := g.chapters[len(g.chapters)-1]
	if n := len(open[key]); n > 0 && rng.IntN(2) == 0 {
		return open[key][n-1-rng.IntN(min(n, 1+rng.IntN(n)))] // more likely a recent one
	}
	m := &input{key: key, id: fmt.Sprint("m", len(open[key]))}
	open[key] = append(open[key], m)
	return m
}

// begin is called before a request is sent.
func (g *Ledger) begin(m *input, verb statestore.Verb) known {
	g.mu.Lock()
	defer g.mu.Unlock()
	if verb == statestore.Done {
		m.asked = true
	}
	return m.known
}

// enter checks an answer against what was known when the request was sent, and enters
// what the answer says.
func (g *Ledger) enter(m *stepped) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.Kind == statestore.Error {
		return fmt.Errorf("%v of message %s of key %s was refused: %v", m.Verb, m.message.id, m.Key, m.Fault)
	}
	switch m.Verb {
	case statestore.Load:
		err = g.load(m)
	case statestore.Store:
		err = g.store(m)
	default:
		err = g.done(m)
	}
	if err != nil {
		return fmt.Errorf("%v of message %s of key %s: %w", m.Verb, m.message.id, m.Key, err)
	}
	return nil
}

func (g *Ledger) load(m *stepped) error {
	g.counts.Loads++
	committed := false
	for id := range strings.FieldsSeq(m.Value) {
		committed = committed || id == m.message.id
	}
	switch {
	case m.Kind != statestore.Loaded:
		return fmt.Errorf("the answer is %v", m.Answer)
	case m.Count == statestore.NewMessage && (committed || !m.before.version.IsZero()):
		return fmt.Errorf("it was committed as version %v, and is forgotten", m.before.version)
	case m.Count == statestore.NewMessage:
		return nil
	case m.Count == statestore.Duplicate && m.before.done:
		return fmt.Errorf("it was done, and is not any more")
	case m.Count == statestore.Duplicate && (committed || m.Context != captured(m.message, m.Value)):
		return fmt.Errorf("the state before it is %q, and its context %q", m.Value, m.Context)
	case m.Count == statestore.Confirmed && !m.message.asked:
		return fmt.Errorf("it is done, and no processor sent DONE")
	}
	return g.commit(m)
}

func (g *Ledger) store(m *stepped) error {
	switch {
	case m.Kind == statestore.NotApplied && !m.before.version.IsZero():
		return fmt.Errorf("it was committed as version %v, and is refused for the key's version", m.before.version)
	case m.Kind == statestore.NotApplied:
		g.counts.Conflicts++
		return nil
	case m.Kind == statestore.OK && !m.before.version.IsZero():
		return fmt.Errorf("it was committed as version %v, and again as %v", m.before.version, m.Answer.Version)
	case m.Kind == statestore.OK:
		g.counts.Commits++
	case m.Kind != statestore.Count || m.Count != 0:
		return fmt.Errorf("the answer is %v", m.Answer)
	}
	return g.commit(m)
}

// commit enters a message's version, of which there is one.
func (g *Ledger) commit(m *stepped) error {
	version := m.Answer.Version
	if before := m.message.version; version.IsZero() || !before.IsZero() && before != version {
		return fmt.Errorf("it was committed as version %v, and now as %v", before, version)
	}
	m.message.version = version
	return nil
}

func (g *Ledger) done(m *stepped) error {
	switch {
	case m.Kind != statestore.Count:
		return fmt.Errorf("the answer is %v", m.Answer)
	case m.Count == 1:
		g.counts.Done++
		m.message.done = true
	case !m.before.version.IsZero():
		return fmt.Errorf("it was committed as version %v, and is forgotten", m.before.version)
	}
	return nil
}

// ProcessorCounts counts what processors were answered.
type ProcessorCounts struct {
	Loads     int `json:"loads"`
	Commits   int `json:"commits"`
	Conflicts int `json:"conflicts"`
	Done      int `json:"done"`
}
