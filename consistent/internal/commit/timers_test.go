package commit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/hlc"
)

// pieces notes how many messages come together, and in which order all come.
type pieces struct {
	sizes   []int
	order   []string
	within  []bool // whether each request has a deadline
	refuses int    // the piece that is refused, from 1
}

func (p *pieces) Publish(ctx context.Context, messages ...client.Message) error {
	if len(p.sizes)+1 == p.refuses {
		return client.ErrNotConnected
	}
	p.sizes = append(p.sizes, len(messages))
	for i := range messages {
		p.order = append(p.order, messages[i].Topic)
	}
	_, has := ctx.Deadline()
	p.within = append(p.within, has)
	return nil
}

func (p *pieces) Transact(ctx context.Context, _ Request) (Result, error) {
	_, has := ctx.Deadline()
	p.within = append(p.within, has)
	return Result{Outcome: txn.Committed}, nil
}

// Outputs are published in pieces that each have the timeout, in their order, and timers before them.
func TestPublishInPieces(t *testing.T) {
	t.Parallel()
	of := func(n, bytes int) (outputs []client.Message) {
		for i := range n {
			outputs = append(outputs, client.Message{Topic: fmt.Sprint(i), Payload: make([]byte, bytes)})
		}
		return outputs
	}
	for _, tc := range []struct {
		outputs []client.Message
		want    string
	}{
		{of(1, 10<<20), "[1]"},
		{of(pieceMessages, 1), "[1024]"},
		{of(pieceMessages+1, 1), "[1024 1]"},
		{of(3, pieceBytes/2), "[1 1 1]"},
		{of(5, pieceBytes/2-100), "[2 2 1]"},
		{append(of(2, 1), timerOutput("a"), timerOutput("")), "[2]"},
	} {
		var p pieces
		if err := Publish(t.Context(), &p, "marks/", hlc.Timestamp{Wall: 1, Node: "n"}, time.Hour, time.Minute, tc.outputs); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(p.sizes); got != tc.want {
			t.Errorf("pieces %s, want %s", got, tc.want)
		}
		for i, name := range p.order {
			if name != fmt.Sprint(i) {
				t.Fatalf("message %s came in place %d", name, i)
			}
		}
		for _, has := range p.within {
			if !has {
				t.Error("a request has no deadline")
			}
		}
	}
	p := pieces{refuses: 2}
	if err := Publish(t.Context(), &p, "", hlc.Timestamp{}, time.Hour, time.Minute, of(3000, 1)); !errors.Is(err, client.ErrNotConnected) || len(p.sizes) != 1 {
		t.Errorf("%v after %d pieces, want an error after one", err, len(p.sizes))
	}
}

func timerOutput(id string) client.Message {
	m := client.Message{Topic: "later"}.After(time.Hour)
	if id != "" {
		m = m.WithTimerID(id)
	}
	return m
}
