package webhook

import (
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"net"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// answers are those that are remembered, up to a number of bytes: beyond it, the one goes that
// was asked for longest ago. They are found by a keyed hash of the question, so that no
// password is in memory for longer than its question.
type answers struct {
	secret     [32]byte
	max        int64 // bytes
	generation atomic.Uint64

	mu    lockrank.Mutex[lockrank.WebhookAnswers]
	by    map[answerKey]*list.Element // of remembered; guarded by mu, as below
	order list.List                   // of *remembered; what was asked for last is in front
	bytes int64
}

type answerKey [sha256.Size]byte

// remembered is an answer with what it counts.
type remembered struct {
	key    answerKey
	answer *Answer
	until  time.Time
	bytes  int64
}

// aroundAnswer is what an answer takes besides the bytes of its JSON, of which each may take
// some times as many in memory.
const (
	aroundAnswer   = 400
	answerInMemory = 4
)

func newAnswers(max int64) *answers {
	a := &answers{max: max, by: make(map[answerKey]*list.Element)}
	_, _ = rand.Read(a.secret[:]) // never fails
	return a
}

// key is where the answer to a question is found. The port that a client comes from does not
// count: it is another one each time.
func (a *answers) key(q *Question) (k answerKey) {
	same := *q
	if host, _, err := net.SplitHostPort(q.Remote); err == nil {
		same.Remote = host
	}
	text, err := json.Marshal(&same)
	if err != nil {
		return k
	}
	h := hmac.New(sha256.New, a.secret[:])
	h.Write(text)
	h.Sum(k[:0])
	return k
}

// get gives what is remembered; nil: nothing.
func (a *answers) get(k answerKey, now time.Time) *Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.by[k]
	if e == nil {
		return nil
	}
	r := e.Value.(*remembered)
	if !now.Before(r.until) {
		a.remove(e)
		return nil
	}
	a.order.MoveToFront(e)
	return r.answer
}

// put remembers an answer, unless forget was called since the question's generation was read.
func (a *answers) put(k answerKey, answer *Answer, size int64, until time.Time, generation uint64) {
	r := &remembered{key: k, answer: answer, until: until, bytes: aroundAnswer + answerInMemory*size}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.generation.Load() != generation || r.bytes > a.max {
		return
	}
	if e := a.by[k]; e != nil {
		a.remove(e)
	}
	for a.bytes+r.bytes > a.max {
		a.remove(a.order.Back())
	}
	a.by[k] = a.order.PushFront(r)
	a.bytes += r.bytes
}

// remove forgets one answer; mu is held.
func (a *answers) remove(e *list.Element) {
	r := a.order.Remove(e).(*remembered)
	delete(a.by, r.key)
	a.bytes -= r.bytes
}

// forget forgets all answers, also those to questions that are under way.
func (a *answers) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.generation.Add(1)
	a.by = make(map[answerKey]*list.Element)
	a.order.Init()
	a.bytes = 0
}

// size is how many answers there are, and their bytes.
func (a *answers) size() (n, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(len(a.by)), a.bytes
}
