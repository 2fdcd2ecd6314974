package crashtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"holdfast/hlc"
	"holdfast/internal/mqtt"
	"holdfast/internal/protocol"
	"holdfast/internal/statestore"
)

// processors work together on the messages of a few keys, each message once, with
// LOAD, STORE and DONE (protocol, section 8). They take up each other's messages, so
// that one message is often processed by several of them, in the same life or later.
const (
	processors      = 3
	processorKeys   = 4  // in a chapter of the ledger
	processorWindow = 8  // messages that one of them has under way, at most
	ledgersKept     = 10 // which a settlement looks at again
)

// processor processes messages. The state of a key is the list of the messages that
// were committed to it, in order: so it tells by itself which were, and how often.
type processor struct {
	historian // whose history nobody judges: the ledger does that at once
	ledger    *ledger
	auditor   bool // it looks at everything when the run settles
}

func newProcessor(number int, rng *rand.Rand, l *ledger) *processor {
	return &processor{historian: newHistorian(fmt.Sprintf("processor%d", number), rng), ledger: l, auditor: number == 0}
}

func (a *processor) live(l *life) error {
	if l.settle && !a.auditor {
		return nil
	}
	s, err := dialStore(l, a.name, a.clock)
	if err != nil {
		return l.ended(a.name, err)
	}
	l.news.count()
	if l.settle {
		if err := a.audit(l, s); err != nil {
			return a.over(l, s, err)
		}
		return s.goodbye(mqtt.Disconnect{})
	}
	for err == nil {
		err = a.process(l, s)
	}
	return a.over(l, s, err)
}

// over ends a connection that failed. What was under way is taken up in a later life.
func (a *processor) over(l *life, s *storeLink, cause error) error {
	err := a.historian.over(l, s, cause)
	a.take()
	return err
}

// process does some messages: LOAD, then STORE of those that are new, then DONE of
// most that are committed. The others wait for somebody to take them up.
func (a *processor) process(l *life, s *storeLink) error {
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
		switch m.count {
		case statestore.NewMessage:
			st := a.step(statestore.Store, m.message)
			st.base, st.version = m.value, m.answer.version
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
		if m.kind != statestore.NotApplied && a.rng.IntN(3) > 0 {
			done = append(done, a.step(statestore.Done, m.message))
		}
	}
	_, err = a.exchange(l, s, done)
	return err
}

func (a *processor) step(verb statestore.Verb, m *input) step {
	return step{request: a.request(verb, m.key), message: m}
}

// step is one request for a message.
type step struct {
	request
	message *input
	base    string        // of a STORE: the state to go on from
	version hlc.Timestamp // … and its version
	before  known         // what was known of the message when it was sent
}

// stepped is a step with its answer.
type stepped struct {
	step
	answer
}

// exchange sends some steps at once and has the ledger judge every answer.
func (a *processor) exchange(l *life, s *storeLink, steps []step) (all []stepped, err error) {
	sent := map[*pending]step{}
	for _, st := range steps {
		st.before = a.ledger.begin(st.message, st.verb)
		p := &pending{request: st.request}
		p.client, p.call = s.client, now()
		s.publish(p, st.payload())
		sent[p] = st
	}
	for len(s.waiting) > 0 {
		p, err := a.await(l, s)
		if err != nil {
			return nil, err
		}
		m := stepped{sent[p], p.answer}
		if err := a.ledger.enter(&m); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", errBroken, a.name, err)
		}
		all = append(all, m)
	}
	a.take()
	return all, nil
}

// payload is the request on the wire.
func (st *step) payload() []byte {
	args := [][]byte{[]byte(st.verb.String()), []byte(st.key)}
	if st.verb != statestore.Store {
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
func (a *processor) audit(l *life, s *storeLink) error {
	for _, c := range a.ledger.chapters {
		for _, key := range slices.Sorted(keysOf(c)) {
			messages := c[key]
			steps := []step{a.step(statestore.Load, &input{key: key, id: "nobody"})}
			for _, m := range messages {
				steps = append(steps, a.step(statestore.Load, m))
			}
			all, err := a.exchange(l, s, steps)
			if err != nil {
				return err
			}
			for _, m := range all {
				if m.message.id == "nobody" {
					if err := complete(key, m.value, messages); err != nil {
						return fmt.Errorf("%w: %s: %w", errBroken, a.name, err)
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
		return fmt.Errorf("messages were committed to key %s that nobody sent: %v", key, count)
	}
	return nil
}

// ledger is what all processors together know.
type ledger struct {
	mu       sync.Mutex
	chapters []chapterOfMessages // the last one is open; guarded by mu, between lives by nobody
	number   int                 // guarded by mu: chapters opened
	counts   ProcessorCounts     // guarded by mu
}

type chapterOfMessages map[string][]*input // by key

// input is a message to be processed.
type input struct {
	key, id string
	known   // guarded by the ledger's mu
}

// known is what may never be otherwise again, however often the broker is killed.
type known struct {
	version hlc.Timestamp // of its commit; zero: not known to be committed
	asked   bool          // somebody has sent a DONE
	done    bool          // … and had its answer
}

func newLedger() *ledger {
	g := &ledger{}
	g.open()
	return g
}

// open begins a chapter.
func (g *ledger) open() {
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

// pick chooses a new message, or one that somebody has taken up before.
func (g *ledger) pick(rng *rand.Rand) *input {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := fmt.Sprintf("messages%d/key%d", g.number, rng.IntN(processorKeys))
	open := g.chapters[len(g.chapters)-1]
	if n := len(open[key]); n > 0 && rng.IntN(2) == 0 {
		return open[key][n-1-rng.IntN(min(n, 1+rng.IntN(n)))] // rather one of the last
	}
	m := &input{key: key, id: fmt.Sprint("m", len(open[key]))}
	open[key] = append(open[key], m)
	return m
}

// begin is called before a request is sent.
func (g *ledger) begin(m *input, verb statestore.Verb) known {
	g.mu.Lock()
	defer g.mu.Unlock()
	if verb == statestore.Done {
		m.asked = true
	}
	return m.known
}

// enter judges an answer by what was known when it was asked for, and enters what it
// says.
func (g *ledger) enter(m *stepped) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.kind == statestore.Error {
		return fmt.Errorf("%v of message %s of key %s was refused: %v", m.verb, m.message.id, m.key, m.fault)
	}
	switch m.verb {
	case statestore.Load:
		err = g.load(m)
	case statestore.Store:
		err = g.store(m)
	default:
		err = g.done(m)
	}
	if err != nil {
		return fmt.Errorf("%v of message %s of key %s: %w", m.verb, m.message.id, m.key, err)
	}
	return nil
}

func (g *ledger) load(m *stepped) error {
	g.counts.Loads++
	committed := false
	for id := range strings.FieldsSeq(m.value) {
		committed = committed || id == m.message.id
	}
	switch {
	case m.kind != statestore.Loaded:
		return fmt.Errorf("the answer is %v", m.answer)
	case m.count == statestore.NewMessage && (committed || !m.before.version.IsZero()):
		return fmt.Errorf("it was committed as version %v, and is forgotten", m.before.version)
	case m.count == statestore.NewMessage:
		return nil
	case m.count == statestore.Duplicate && m.before.done:
		return fmt.Errorf("it was done, and is not any more")
	case m.count == statestore.Duplicate && (committed || m.context != captured(m.message, m.value)):
		return fmt.Errorf("the state before it is %q, and its context %q", m.value, m.context)
	case m.count == statestore.Confirmed && !m.message.asked:
		return fmt.Errorf("it is done, which nobody has said")
	}
	return g.commit(m)
}

func (g *ledger) store(m *stepped) error {
	switch {
	case m.kind == statestore.NotApplied && !m.before.version.IsZero():
		return fmt.Errorf("it was committed as version %v, and is refused for the key's version", m.before.version)
	case m.kind == statestore.NotApplied:
		g.counts.Conflicts++
		return nil
	case m.kind == statestore.OK && !m.before.version.IsZero():
		return fmt.Errorf("it was committed as version %v, and again as %v", m.before.version, m.answer.version)
	case m.kind == statestore.OK:
		g.counts.Commits++
	case m.kind != statestore.Count || m.count != 0:
		return fmt.Errorf("the answer is %v", m.answer)
	}
	return g.commit(m)
}

// commit enters a message's version, of which there is one.
func (g *ledger) commit(m *stepped) error {
	version := m.answer.version
	if before := m.message.version; version.IsZero() || !before.IsZero() && before != version {
		return fmt.Errorf("it was committed as version %v, and now as %v", before, version)
	}
	m.message.version = version
	return nil
}

func (g *ledger) done(m *stepped) error {
	switch {
	case m.kind != statestore.Count:
		return fmt.Errorf("the answer is %v", m.answer)
	case m.count == 1:
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
