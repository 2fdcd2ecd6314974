package acks

import (
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/broker/session"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
)

// output notes what it is given.
type output struct {
	written   []uint16
	responded []string
	charged   int64
}

func (o *output) Write(_ *session.Turn, a *Ack) { o.written = append(o.written, a.ID) }
func (o *output) Respond(_ *session.Turn, a *Ack) {
	o.responded = append(o.responded, string(a.Response.Topic()))
	a.Response.Release()
}
func (o *output) Charge(bytes int64) { o.charged += bytes }

func response(topic string, size int) *message.Message {
	c := message.Compose([]byte(topic), size)
	c.EndProperties()
	c.Buf = append(c.Buf, make([]byte, size)...)
	return c.Message()
}

// What is ready leaves when all before it is ready, however many wait.
func TestAcknowledgementsLeaveInTheOrderOfPackets(t *testing.T) {
	t.Parallel()
	var r Ring
	var out output
	var want []uint16
	for id := range uint16(20) {
		if id%2 == 0 {
			if !r.Ask(journal.Seq(id + 1)) {
				t.Fatal("the journal need not be asked for a later batch")
			}
			r.PutWaiting(nil, &out, Ack{ID: id})
		} else {
			r.Put(nil, &out, Ack{ID: id})
		}
		want = append(want, id)
	}
	if len(out.written) != 0 || r.Pending() != 20 || r.Cap() != 32 {
		t.Fatalf("%v were written, %d wait in %d places", out.written, r.Pending(), r.Cap())
	}
	for answers := range 10 {
		r.Answered(nil, &out)
		if n := 2 * (answers + 1); !slices.Equal(out.written, want[:n]) {
			t.Fatalf("after %d answers %v were written", answers+1, out.written)
		}
	}
	if r.Pending() != 0 {
		t.Errorf("%d wait at the end", r.Pending())
	}
}

// Several places may wait for one answer: the journal is asked once for each batch.
func TestTheJournalIsAskedOnceForABatch(t *testing.T) {
	t.Parallel()
	var r Ring
	if !r.Ask(5) || r.Ask(5) || r.Ask(4) || !r.Ask(6) {
		t.Error("the journal was not asked for each batch once")
	}
}

// When the client is gone nothing is written any more, and responses go out as soon as the
// journal has answered. Responses that wait are charged in large steps.
func TestResponsesOfAClientThatIsGone(t *testing.T) {
	t.Parallel()
	var r Ring
	var out output
	r.Ask(1)
	r.PutWaiting(nil, &out, Ack{ID: 1, Response: response("first", 2*chargeStep)})
	r.Ask(2)
	r.PutWaiting(nil, &out, Ack{ID: 2, Response: response("second", 10)})
	if out.charged != 2*chargeStep || r.Waiting() < 2*chargeStep {
		t.Errorf("%d bytes are charged, %d wait", out.charged, r.Waiting())
	}
	r.Close(nil, &out)
	r.Answered(nil, &out)
	r.Answered(nil, &out)
	if len(out.written) != 0 || !slices.Equal(out.responded, []string{"first", "second"}) {
		t.Errorf("written %v, responded %v", out.written, out.responded)
	}
	if out.charged != 0 || r.Waiting() != 0 {
		t.Errorf("at the end %d bytes are charged, %d wait", out.charged, r.Waiting())
	}
}
