package faultrun

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// What a processor remembers for a short time only: messages come again when they are
// forgotten. One that says its time is a dead letter then, and one that does not is a new message.
const (
	briefName    = "brief"
	briefKeep    = 5 * time.Second
	briefSkew    = time.Second
	briefLetters = "dead-letters/brief"
)

// forget has messages processed, waits until the broker has forgotten them, and sends them again.
// It begins when the faults have stopped.
func (r *run) forget(ctx context.Context) error {
	messages := min(max(r.Messages/100, 10), 500)
	conn, err := consistent.Dial(ctx, r.addresses[0], through(r.addresses), client.WithClientID(briefName), client.WithSessionExpiry(briefKeep), client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer conn.Close()
	var path []consistent.Option
	if r.Path == State || r.Path == Both && r.rng.IntN(2) == 0 {
		path = append(path, consistent.Replay())
	}
	p, err := consistent.New(conn, briefName, append(path, consistent.WithKeep(briefKeep), consistent.WithMaxSkew(briefSkew), consistent.WithDeadLetterTopic(briefLetters),
		consistent.WithKeptDeadLetters(0, 0, 0), consistent.WithLogger(slog.New(slog.DiscardHandler)))...)
	if err != nil {
		return err
	}
	// Each message has a key of its own, and its state is how often it was processed.
	_ = consistent.Handle(p, "brief/+", func(id string) string { return id }, func(_ *consistent.Context, n int, _ string) (int, []consistent.Message, error) {
		return n + 1, nil, nil
	})
	if err := r.watcher.Subscribe(ctx, briefLetters); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	defer func() {
		stop()
		<-ended
	}()
	select {
	case <-p.Subscribed():
	case err := <-ended:
		ended <- nil
		return fmt.Errorf("the processor that forgets: %w", err)
	}
	var sent []consistent.Message
	for i := range messages {
		id := fmt.Sprint(i)
		m := consistenttest.Event(id, consistent.JSON("brief/"+id, id))
		if dated(i) {
			m = consistenttest.SentAt(time.Now(), m)
		}
		sent = append(sent, m)
	}
	if err := r.sendBriefly(ctx, conn, sent, 1); err != nil {
		return err
	}
	for i := range messages { // until it is forgotten
		if err := poll(ctx, func() (bool, error) {
			known, err := conn.Load(ctx, fmt.Sprint(briefName, "/", i), fmt.Sprint("event:4:test", i))
			return err == nil && known.Status == client.NewMessage, err
		}); err != nil {
			return fmt.Errorf("message %d is not forgotten: %w", i, err)
		}
	}
	if err := r.sendBriefly(ctx, conn, sent, 2); err != nil {
		return err
	}
	r.summary.Forgotten = messages
	return nil
}

func dated(i int) bool { return i%2 == 0 }

// sendBriefly sends all messages, for the times-th time, and waits until each was processed or is
// a dead letter as often as it was sent. Only a message without a time is processed again. It sends a
// portion at a time: a full queue refuses messages, and the publisher then sends again what was taken
// with them, of which each copy that is too old becomes a dead letter of its own.
func (r *run) sendBriefly(ctx context.Context, conn *consistent.Connection, sent []consistent.Message, times int) error {
	portion := min(100, r.queueBound()/2)
	for begin := 0; begin < len(sent); begin += portion {
		end := min(begin+portion, len(sent))
		if err := r.publisher.Publish(ctx, sent[begin:end]...); err != nil {
			return err
		}
		if err := r.awaitBrief(ctx, conn, begin, end, times); err != nil {
			return err
		}
	}
	return nil
}

// awaitBrief waits until each of the messages from begin to end was processed or is a dead letter as often
// as it was sent.
func (r *run) awaitBrief(ctx context.Context, conn *consistent.Connection, begin, end, times int) error {
	for i := begin; i < end; i++ {
		n, dead := 0, 0
		if err := poll(ctx, func() (bool, error) {
			v, found, err := conn.Client().Get(ctx, fmt.Sprint(briefName, "/", i))
			if err == nil && found {
				err = json.Unmarshal(v.Bytes, &n)
			}
			r.mu.Lock()
			dead = r.brief[fmt.Sprint(i)]
			r.mu.Unlock()
			return n+dead >= times, err
		}); err != nil {
			return fmt.Errorf("message %d was processed %d times and is a dead letter %d times, and was sent %d times: %w", i, n, dead, times, err)
		}
		if n+dead != times || dated(i) && n > 1 || !dated(i) && dead > 0 {
			r.evidence.forgotten = append(r.evidence.forgotten, fmt.Sprintf("KEEP: message %d (with a time: %v) was sent %d times, processed %d times, and is a dead letter %d times", i, dated(i), times, n, dead))
		}
	}
	return nil
}

// poll asks until the answer is yes, and for patience at most.
func poll(ctx context.Context, ask func() (bool, error)) error {
	for deadline := time.Now().Add(patience); ; {
		yes, err := ask()
		switch {
		case err != nil:
			return err
		case yes:
			return nil
		case time.Now().After(deadline):
			return context.DeadlineExceeded
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
