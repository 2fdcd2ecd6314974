// Package acks keeps the acknowledgements of a connection in the order of the packets
// that they answer [MQTT-4.6.0-2], although some of them must wait until the journal has
// made something durable.
//
// It knows neither packets nor clients: an [Output] writes what has become ready.
package acks

import (
	"sync/atomic"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Ack is one acknowledgement, with the response that travels behind it.
type Ack struct {
	Type     mqtt.Type
	ID       uint16
	Code     mqtt.ReasonCode
	Reason   string
	Codes    []mqtt.ReasonCode // of SUBACK and UNSUBACK
	Response *message.Message  // nil: none
	ask      uint32            // with waits: until the journal has called so many times, see Ring
	waits    bool              // for the disk, not only for those before it
	Counted  bool              // has a place in our Receive Maximum, to be given back
}

// Waited says whether the acknowledgement has waited for the disk.
func (a *Ack) Waited() bool { return a.waits }

// Output takes what is ready, with the ring's lock held.
type Output interface {
	// Write writes the acknowledgement to the client.
	Write(t *session.Turn, a *Ack)
	// Respond routes the response, and takes it over: after Write, or when the client is
	// gone.
	Respond(t *session.Turn, a *Ack)
	// Charge charges bytes of responses that wait to the pool of memory.
	Charge(bytes int64)
}

// Ring has the acknowledgements of one connection that wait, in their order.
//
// An acknowledgement that needn't wait, while none before it waits, never gets
// here: the reader writes it at once. Otherwise the reader puts it at the tail, and the
// goroutine that makes the head ready writes out everything ready behind it: nearly always
// the journal's committer. Only the reader puts, so what it reads of Pending can only fall
// meanwhile.
//
// A place may wait for a batch of the journal. The connection asks the journal once for each
// such batch (journal.Await), and a Handler may ask in its name; the journal's answer is the
// call of Durable. Each ask is for the same batch as the one before or for a later one, so
// the answers come in the order of the asks, and it is enough to count both.
type Ring struct {
	pending atomic.Int32 // places taken
	closed  bool         // the connection is gone: acknowledgements are dropped, responses are routed; guarded by mu
	awaited journal.Seq  // the reader's: the newest batch that was asked for
	asked   uint32       // the reader's: how often the journal was asked

	answered uint32 // how often the journal has answered; guarded by mu
	mu       lockrank.Mutex[lockrank.Acks]
	places   []Ack // ring, its length a power of two; guarded by mu, as all below
	head     uint64
	tail     uint64
	waiting  int64 // bytes of responses in places
}

// Pending is how many acknowledgements wait.
func (r *Ring) Pending() int { return int(r.pending.Load()) }

// Waiting is how many bytes of responses wait.
func (r *Ring) Waiting() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// Cap is how many acknowledgements have room: as many as ever waited at once, rounded up
// to a power of two.
func (r *Ring) Cap() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.places)
}

// Ask notes that an acknowledgement is to wait for the batch, and says whether the
// journal must be asked for that: it need not if it was asked for this batch or a later
// one. The reader's.
func (r *Ring) Ask(batch journal.Seq) (must bool) {
	must = batch > r.awaited
	if must {
		r.Asked(batch)
	}
	return must
}

// Asked notes that the journal was asked for the batch. The reader's.
func (r *Ring) Asked(batch journal.Seq) {
	r.awaited = max(r.awaited, batch)
	r.asked++
}

// Put has the acknowledgement wait for those before it. The reader's.
func (r *Ring) Put(t *session.Turn, out Output, a Ack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(out, a)
	r.emit(t, out) // those before it may have been released since the look
}

// PutWaiting has the acknowledgement wait for those before it, and until the journal has
// answered everything that it has been asked so far. The reader's.
func (r *Ring) PutWaiting(t *session.Turn, out Output, a Ack) {
	a.ask, a.waits = r.asked, true
	r.Put(t, out, a)
}

// Answered notes that the journal has answered once more.
func (r *Ring) Answered(t *session.Turn, out Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered++
	r.emit(t, out)
}

// Close says that the connection is gone: acknowledgements are dropped, responses go out
// in the order of their requests, when they are ready.
func (r *Ring) Close(t *session.Turn, out Output) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.emit(t, out)
}

// put takes the next place; mu is held.
func (r *Ring) put(out Output, a Ack) {
	if a.Response != nil {
		r.count(out, a.Response.Size())
	}
	if int(r.tail-r.head) == len(r.places) {
		bigger := make([]Ack, max(8, 2*len(r.places)))
		for i := r.head; i < r.tail; i++ {
			bigger[i&uint64(len(bigger)-1)] = *r.at(i)
		}
		r.places = bigger
	}
	*r.at(r.tail) = a
	r.tail++
	r.pending.Add(1)
}

func (r *Ring) at(i uint64) *Ack { return &r.places[i&uint64(len(r.places)-1)] }

// ready says whether a needs to wait for nothing but those before it; mu is held.
//
// Both counts may wrap around, so the sign of their difference is compared.
func (r *Ring) ready(a *Ack) bool { return !a.waits || int32(r.answered-a.ask) >= 0 }

// emit writes out the ready acknowledgements at the head, and routes their responses; mu
// is held. Once the connection is gone it only routes the responses.
func (r *Ring) emit(t *session.Turn, out Output) {
	for r.head < r.tail {
		a := r.at(r.head)
		if !r.ready(a) {
			return
		}
		if !r.closed {
			out.Write(t, a)
		}
		if a.Response != nil {
			r.count(out, -a.Response.Size())
			out.Respond(t, a)
		}
		*a = Ack{}
		r.head++
		r.pending.Add(-1)
	}
}

// chargeStep is the step, in bytes, in which waiting responses are charged: a connection
// with few of them does not touch the shared counter.
const chargeStep = 64 << 10

// count counts bytes of responses that came, or with n below 0 went; mu is held.
func (r *Ring) count(out Output, n int64) {
	before := r.waiting / chargeStep
	r.waiting += n
	if now := r.waiting / chargeStep; now != before {
		out.Charge((now - before) * chargeStep)
	}
}
