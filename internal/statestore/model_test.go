package statestore_test

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// model is the store once more, read off the protocol page as naively as can be:
// one map, text for versions, no sharing with the rules. It says of every command
// what the fixture of the other tests says: the reply, the version it carries,
// the events.
type model struct {
	keys  map[string]record
	memos map[[2]string]memo // by key and message ID
	last  version

	wall, now, skew               int64
	maxKeys, maxContent, maxMemos int // maxMemos: bytes of remembered messages
}

// memo is what is remembered of a message (protocol, section 8). What LOAD answers is kept
// as it will be spelled.
type memo struct {
	state, context string // a quoted blob, or nil
	content        int    // bytes of both
	done           bool
	version        version
	deadline       int64
}

type record struct {
	value    string
	version  version
	token    version // "" for none
	deadline int64   // 0 for none
}

// version is a timestamp as text, padded so that the order of the texts is the
// order of the versions. "" is none.
type version string

func versionOf(wall, counter uint64, node string) version {
	return version(fmt.Sprintf("%020d:%020d:%s", wall, counter, node))
}

func (v version) parts() (wall, counter uint64, node string) {
	if v == "" {
		return 0, 0, ""
	}
	fmt.Sscanf(string(v[:41]), "%d:%d", &wall, &counter)
	return wall, counter, string(v[42:])
}

// short is like the other short: the distance from start.
func (v version) short() string {
	wall, counter, node := v.parts()
	text := fmt.Sprintf("%d:%d", int64(wall)-start, counter)
	if node != "StateStore" {
		text += ":" + node
	}
	return text
}

// issue is the rule of protocol, section 4, in its own words.
func (m *model) issue(ts version) version {
	tsWall, tsCounter, _ := ts.parts()
	lastWall, lastCounter, _ := m.last.parts()
	w := uint64(m.wall)
	for _, other := range []uint64{tsWall, lastWall} {
		if other > w {
			w = other
		}
	}
	largest := uint64(0)
	if ts != "" && tsWall == w && tsCounter > largest {
		largest = tsCounter
	}
	if m.last != "" && lastWall == w && lastCounter > largest {
		largest = lastCounter
	}
	if largest >= 2147483648-2-1 {
		w, largest = w+1, 0
	}
	m.last = versionOf(w, largest+1, "StateStore")
	return m.last
}

// dropExpired removes key if its time has run out and returns the notification.
func (m *model) dropExpired(key string) string {
	if r, ok := m.keys[key]; !ok || r.deadline == 0 || m.now < r.deadline {
		return ""
	}
	delete(m.keys, key)
	return " | DELETE " + key + " @" + m.issue("").short()
}

// request is what a client asks for, in the model's terms.
type request struct {
	verb, key, value string
	nx, nex          bool
	compare          string
	px               int64
	ver              string // "" for none, "-", or a version
	ts, ft           string // "" for none, "bad", or a version
	message, context string // of protocol, section 8; context "" for none
	keep             int64
	remove           bool // of a STORE
	unauthorized     bool
}

// execute runs one request and says what comes of it. An expired key is absent:
// if the request takes its place, its deletion is told first; if nothing changes,
// that is left for later, and so all is put back.
func (m *model) execute(q request) string {
	before := model{keys: maps.Clone(m.keys), memos: maps.Clone(m.memos), last: m.last}
	deletion := m.dropExpired(q.key)
	said, changed := m.decide(q, &before)
	if !changed {
		m.keys, m.last = before.keys, before.last
		return said
	}
	reply, event, any := strings.Cut(said, " | ")
	if !any {
		return reply + deletion
	}
	return reply + deletion + " | " + event
}

func (m *model) decide(q request, before *model) (said string, changed bool) {
	r, ok := m.keys[q.key]
	if q.unauthorized {
		return "not authorized", false
	}
	if q.verb == "GET" {
		if !ok {
			return "nil", false
		}
		return fmt.Sprintf("%q @%s", r.value, r.version.short()), false
	}
	if q.verb == "LOAD" {
		return m.load(q), false
	}
	if q.verb == "DONE" {
		return m.done(q), false
	}
	if refusal := m.refuse(q, before.last); refusal != "" {
		return refusal, false
	}
	if q.verb == "SET" {
		return m.set(q, before)
	}
	if q.verb == "STORE" {
		return m.store(q, before)
	}
	switch {
	case !ok:
		return "0", false
	case q.verb == "VDEL" && q.value != r.value:
		return "-1 @" + r.version.short(), false
	}
	delete(m.keys, q.key)
	return "1 @" + r.version.short() + " | DELETE " + q.key + " @" + m.issue("").short(), true
}

// recall is the sentence of protocol, section 8, on how long a message is remembered.
func (m *model) recall(q request) (r memo, remembered bool) {
	r, ok := m.memos[[2]string{q.key, q.message}]
	return r, ok && m.now < r.deadline
}

func (m *model) load(q request) string {
	known, remembered := m.recall(q)
	if remembered && known.done {
		return "2 nil " + known.context + " @" + known.version.short()
	}
	if remembered {
		return "1 " + known.state + " " + known.context + " @" + known.version.short()
	}
	if r, ok := m.keys[q.key]; ok {
		return fmt.Sprintf("0 %q nil @%s", r.value, r.version.short())
	}
	return "0 nil nil"
}

func (m *model) done(q request) string {
	known, remembered := m.recall(q)
	if !remembered || q.ver != "" && q.ver != string(known.version) {
		return "0"
	}
	if known.done {
		return "1"
	}
	if grown := len(q.context) - known.content; grown > 0 && m.memoBytes()+grown > m.maxMemos {
		return "the quota has been exceeded"
	}
	known.done, known.state, known.context, known.content = true, "", "nil", len(q.context)
	if q.context != "" {
		known.context = fmt.Sprintf("%q", q.context)
	}
	m.memos[[2]string{q.key, q.message}] = known
	return "1"
}

// memoBytes is what remembered messages count (protocol, section 9).
func (m *model) memoBytes() (n int) {
	for name, r := range m.memos {
		n += 2*(len(name[0])+len(name[1])) + r.content + 64
	}
	return n
}

// store is a STORE that has passed fencing: remembered, version, quota, and then
// it is a SET without any option that remembers what it has replaced.
func (m *model) store(q request, before *model) (said string, changed bool) {
	if known, remembered := m.recall(q); remembered {
		return "0 @" + known.version.short(), false
	}
	r, ok := m.keys[q.key]
	if ok && q.ver != string(r.version) {
		return "conflict @" + r.version.short(), false
	}
	if !ok && q.ver != "-" {
		return "conflict", false
	}
	next := memo{state: "nil", context: "nil", deadline: m.now + 7*day}
	if ok {
		next.state, next.content = fmt.Sprintf("%q", r.value), len(r.value)
	}
	if q.context != "" {
		next.context = fmt.Sprintf("%q", q.context)
		next.content += len(q.context)
	}
	if q.keep != 0 {
		next.deadline = m.now + min(q.keep, 30*day)
	}
	grown := 2*(len(q.key)+len(q.message)) + next.content + 64
	if place, taken := m.memos[[2]string{q.key, q.message}]; taken {
		grown = next.content - place.content
	}
	if grown > 0 && m.memoBytes()+grown > m.maxMemos {
		return "the quota has been exceeded", false
	}
	if q.remove {
		next.version = m.remove(q, before)
		m.memos[[2]string{q.key, q.message}] = next
		if !ok {
			return "OK @" + next.version.short(), true
		}
		return "OK @" + next.version.short() + " | DELETE " + q.key + " @" + next.version.short(), true
	}
	said, changed = m.set(request{verb: "SET", key: q.key, value: q.value, px: q.px, ts: q.ts, ft: q.ft}, before)
	if changed {
		next.version = m.keys[q.key].version
		m.memos[[2]string{q.key, q.message}] = next
	}
	return said, changed
}

// remove deletes the key of a STORE. One that has expired is deleted by that already; of
// one that does not exist the message gets a version all the same.
func (m *model) remove(q request, before *model) version {
	_, stored := before.keys[q.key]
	_, live := m.keys[q.key]
	delete(m.keys, q.key)
	switch {
	case live:
		return m.issue("")
	case stored:
		return m.last
	}
	return m.issue(version(q.ts))
}

// set is a SET that nothing but its conditions and the quota can stop.
func (m *model) set(q request, before *model) (said string, changed bool) {
	r, ok := m.keys[q.key]
	holds := !(q.nx && ok) && !(q.nex && ok && r.value != q.compare)
	if q.ver == "-" && ok || q.ver != "" && q.ver != "-" && (!ok || q.ver != string(r.version)) {
		holds = false
	}
	if !holds && ok {
		return "-1 @" + r.version.short(), false
	}
	if !holds {
		return "-1", false
	}
	next := record{value: q.value, token: r.token}
	if q.ft != "" && version(q.ft) > r.token {
		next.token = version(q.ft)
	}
	if q.px != 0 {
		next.deadline = m.now + q.px
	}
	m.keys[q.key] = next
	moreKeys, moreContent := len(m.keys) > len(before.keys), m.content() > before.content()
	if moreKeys && len(m.keys) > m.maxKeys || moreContent && m.content() > m.maxContent {
		return "the quota has been exceeded", false
	}
	next.version = m.issue(version(q.ts))
	m.keys[q.key] = next
	return fmt.Sprintf("OK @%s | SET %s=%s @%s", next.version.short(), q.key, q.value, next.version.short()), true
}

// refuse is protocol, sections 4 and 5, up to the conditions; last is what it was before the
// request.
func (m *model) refuse(q request, last version) string {
	if q.verb == "SET" || q.verb == "STORE" {
		wall, _, _ := version(strings.Replace(q.ts, "bad", "", 1)).parts()
		switch {
		case q.ts == "":
			return "missing timestamp"
		case q.ts == "bad":
			return "malformed timestamp"
		case int64(wall)-m.wall > m.skew:
			return "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
		}
	}
	if q.ft == "bad" {
		return "malformed timestamp"
	}
	tokenWall, _, _ := version(q.ft).parts()
	lastWall, _, _ := last.parts()
	if int64(tokenWall) > max(m.wall, int64(lastWall))+m.skew {
		return "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
	}
	stored := m.keys[q.key].token
	switch {
	case stored != "" && q.ft == "":
		return "a fencing token is required for this request"
	case version(q.ft) < stored:
		return "the request fencing token is a lower version than the fencing token protecting the resource"
	}
	return ""
}

func (m *model) content() (size int) {
	for key, r := range m.keys {
		size += len(key) + len(r.value)
	}
	return size
}

var verbs = map[string]statestore.Verb{
	"SET": statestore.Set, "GET": statestore.Get, "DEL": statestore.Del, "VDEL": statestore.VDel,
	"LOAD": statestore.Load, "STORE": statestore.Store, "DONE": statestore.Done,
}

// command is the request as the rules take it.
func (q request) command() *statestore.Command {
	cmd := &statestore.Command{
		Verb:     verbs[q.verb],
		Key:      []byte(q.key),
		Value:    []byte(q.value),
		ExpiryMs: q.px,
		Time:     stampOf(q.ts),
		Token:    stampOf(q.ft),
		Denied:   q.unauthorized,
		Message:  []byte(q.message),
		KeepMs:   q.keep,
		Remove:   q.remove,
	}
	if q.context != "" {
		cmd.Context = []byte(q.context)
	}
	switch {
	case q.nx:
		cmd.Condition = statestore.IfAbsent
	case q.nex:
		cmd.Condition, cmd.Compare = statestore.IfAbsentOrEqual, []byte(q.compare)
	}
	if q.ver != "" {
		cmd.Version = statestore.VersionCheck{Given: true, Absent: q.ver == "-", At: stampOf(q.ver).At}
	}
	return cmd
}

// stampOf gives the text of a version without its padding, as the rules take it.
func stampOf(text string) statestore.Stamp {
	switch text {
	case "":
		return statestore.Stamp{}
	case "bad", "-":
		return statestore.Stamp{State: statestore.Malformed}
	}
	at, err := hlc.Parse(text)
	if err != nil {
		panic(err)
	}
	return statestore.Stamp{State: statestore.Given, At: at}
}

// draw draws requests that meet: few keys and values, versions that are
// stored somewhere, times around the clock and around its bounds.
func (m *model) draw(t *rapid.T) request {
	q := request{
		verb:         rapid.SampledFrom([]string{"SET", "SET", "SET", "SET", "GET", "DEL", "VDEL", "LOAD", "LOAD", "STORE", "STORE", "STORE", "DONE"}).Draw(t, "verb"),
		key:          rapid.SampledFrom([]string{"k", "l", "mm"}).Draw(t, "key"),
		value:        rapid.SampledFrom([]string{"", "a", "b", "long value"}).Draw(t, "value"),
		ts:           m.drawVersion(t, "__ts", 10),
		ft:           m.drawVersion(t, "__ft", 3),
		unauthorized: rapid.IntRange(0, 30).Draw(t, "authorized") == 30,
	}
	switch q.verb {
	case "LOAD":
		q.message = drawMessage(t)
		return q
	case "DONE":
		q.message = drawMessage(t)
		q.context = rapid.SampledFrom([]string{"", "left"}).Draw(t, "CTX")
		if rapid.Bool().Draw(t, "has VER") {
			q.ver = string(m.memos[[2]string{q.key, drawMessage(t)}].version)
		}
		return q
	case "STORE":
		m.drawStore(t, &q)
		return q
	case "GET", "DEL", "VDEL":
		return q
	}
	switch rapid.IntRange(0, 3).Draw(t, "condition") {
	case 1:
		q.nx = true
	case 2:
		q.nex, q.compare = true, q.value
	case 3:
		q.nex, q.compare = true, rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "compare")
	}
	if rapid.Bool().Draw(t, "has PX") {
		q.px = rapid.Int64Range(1, 60).Draw(t, "PX")
	}
	switch rapid.IntRange(0, 5).Draw(t, "VER") {
	case 0:
		q.ver = "-"
	case 1, 2:
		q.ver = string(m.keys[q.key].version)
	}
	return q
}

func drawMessage(t *rapid.T) string {
	return rapid.SampledFrom([]string{"m", "n", "o"}).Draw(t, "message")
}

func (m *model) drawStore(t *rapid.T, q *request) {
	q.message = drawMessage(t)
	q.context = rapid.SampledFrom([]string{"", "captured"}).Draw(t, "CTX")
	q.keep = rapid.SampledFrom([]int64{0, 1, 20, 60, 31 * day}).Draw(t, "KEEP")
	if q.remove = rapid.IntRange(0, 4).Draw(t, "DEL") == 0; !q.remove {
		q.px = rapid.SampledFrom([]int64{0, 0, 1, 30}).Draw(t, "PX")
	}
	q.ver = "-"
	if r, ok := m.keys[q.key]; ok && rapid.IntRange(0, 4).Draw(t, "version") > 0 {
		q.ver = string(r.version)
	}
}

// drawVersion draws a timestamp, or none in one of oneIn cases.
func (m *model) drawVersion(t *rapid.T, name string, oneIn int) string {
	if rapid.IntRange(1, oneIn).Draw(t, name+" absent") == oneIn {
		return ""
	}
	switch rapid.IntRange(0, 20).Draw(t, name+" kind") {
	case 0:
		return "bad"
	case 1, 2, 3:
		if m.last != "" {
			return string(m.last)
		}
	case 4, 5, 6:
		if r, ok := m.keys["k"]; ok {
			return string(max(r.version, r.token))
		}
	}
	distance := rapid.OneOf(rapid.Int64Range(-3, 3), rapid.Int64Range(-100, 100), rapid.SampledFrom([]int64{-m.skew, m.skew - 1, m.skew, m.skew + 1}))
	counter := rapid.OneOf(rapid.Uint64Range(0, 3), rapid.SampledFrom([]uint64{1<<31 - 5, 1<<31 - 4, 1<<31 - 3, 1<<31 - 2, math.MaxUint64}))
	node := rapid.SampledFrom([]string{"client", "StateStore", "z"})
	wall := max(0, m.wall+distance.Draw(t, name+" distance"))
	return string(versionOf(uint64(wall), counter.Draw(t, name+" counter"), node.Draw(t, name+" node")))
}

func TestRulesAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newStore(t)
		m := &model{keys: map[string]record{}, memos: map[[2]string]memo{}, wall: start, now: start, skew: 60_000, maxKeys: 2, maxContent: 15, maxMemos: 350}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) { bothExecute(t, s, m) },
			"expire":  func(t *rapid.T) { bothExpire(t, s, m) },
			"forget":  func(t *rapid.T) { bothForget(t, s, m) },
			"time passes": func(t *rapid.T) {
				ms := rapid.Int64Range(0, 40).Draw(t, "ms")
				m.wall, m.now = m.wall+ms, m.now+ms
			},
			"wall clock is stepped": func(t *rapid.T) {
				ms := rapid.OneOf(rapid.Int64Range(-50, 50), rapid.Int64Range(-130_000, 130_000))
				m.wall += ms.Draw(t, "ms")
			},
			"": func(t *rapid.T) { sameState(t, s, m) },
		})
	})
}

func bothExecute(t *rapid.T, s *store, m *model) {
	q := m.draw(t)
	s.look(m)
	before := m.last
	got, want := s.do(q.command()), m.execute(q)
	if got != want {
		t.Fatalf("%+v at %d:\nrules %s\nmodel %s", q, m.wall-start, got, want)
	}
	if m.last < before {
		t.Fatalf("the last version went back from %s to %s", before, m.last)
	}
}

func bothExpire(t *rapid.T, s *store, m *model) {
	key := rapid.SampledFrom([]string{"k", "l", "mm"}).Draw(t, "key")
	s.look(m)
	got, want := s.expire(key), strings.TrimSpace(m.dropExpired(key))
	if got != want {
		t.Fatalf("expiry of %s at %d:\nrules %s\nmodel %s", key, m.now-start, got, want)
	}
}

// bothForget gives back the place of a message that is new again, or does nothing:
// what the clean-up does, and what must make no difference.
func bothForget(t *rapid.T, s *store, m *model) {
	key := rapid.SampledFrom([]string{"k", "l", "mm"}).Draw(t, "key")
	message := [2]string{key, drawMessage(t)}
	if r, ok := m.memos[message]; ok && m.now >= r.deadline {
		delete(m.memos, message)
		delete(s.memos, message)
	}
}

// look gives the rules the model's clocks, and the room that is left in the store.
func (s *store) look(m *model) {
	s.env.WallMs, s.env.NowMs, s.env.MaxSkewMs = m.wall, m.now, m.skew
	s.env.Room = statestore.Room{Keys: int64(m.maxKeys - len(s.cells)), Bytes: int64(m.maxContent), Memos: int64(m.maxMemos - m.memoBytes())}
	for key, e := range s.cells {
		s.env.Room.Bytes -= int64(len(key) + len(e.Value))
	}
}

func sameState(t *rapid.T, s *store, m *model) {
	if len(s.cells) != len(m.keys) {
		t.Fatalf("the rules hold %d keys, the model %d", len(s.cells), len(m.keys))
	}
	for key, r := range m.keys {
		e := s.cells[key]
		if e == nil {
			t.Fatalf("the rules don't hold %s", key)
		}
		got := record{string(e.Value), padded(e.Version), padded(e.Token), e.DeadlineMs}
		if got != r {
			t.Fatalf("%s:\nrules %+v\nmodel %+v", key, got, r)
		}
	}
	sameMemos(t, s, m)
	if padded(s.env.Last) != m.last {
		t.Fatalf("last: rules %s, model %s", padded(s.env.Last), m.last)
	}
}

func sameMemos(t *rapid.T, s *store, m *model) {
	if len(s.memos) != len(m.memos) {
		t.Fatalf("the rules remember %d messages, the model %d", len(s.memos), len(m.memos))
	}
	for message, want := range m.memos {
		kept := s.memos[message]
		got := memo{done: kept.Done, version: padded(kept.Version), deadline: kept.DeadlineMs, context: spellBlob(kept.Context), content: len(kept.State) + len(kept.Context)}
		if !kept.Done {
			got.state = spellBlob(kept.State)
		} else if kept.State != nil {
			t.Fatalf("%s: done, and %+v", message, kept)
		}
		if got != want {
			t.Fatalf("%s:\nrules %+v\nmodel %+v", message, got, want)
		}
	}
}

func padded(at hlc.Timestamp) version {
	if at.IsZero() {
		return ""
	}
	return versionOf(at.Wall, at.Counter, at.Node)
}
