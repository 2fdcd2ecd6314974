package faultrun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// A store that certainly refuses something. While faults happen, the store is full now and then,
// but the processors whose keys take little may be granted what they ask for. So before that, a
// processor gets messages whose states are more together than any client is granted beyond a full
// store: at least one attempt is refused, and all are processed once there is room again.

const overflowName = "overflow"

// padded is a state of overflow: how often its message was processed, and what makes it large.
type padded struct {
	N   int
	Pad string
}

// grantedBytes is how many bytes of keys and values a client has at most in a full store of so many
// bytes: less than a sixteenth of them, and as much again.
func grantedBytes(store int) int { return store / 8 }

// overflow has the store refuse attempts, and returns when all messages have been processed.
func (r *run) overflow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	conn, err := consistent.Dial(ctx, r.addresses[0], through(r.addresses), client.WithClientID(overflowName), client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer conn.Close()
	var path []consistent.Option
	if r.Path == State || r.Path == Both && r.Seed%2 == 0 {
		path = append(path, consistent.Replay())
	}
	log := &quotaErrors{first: make(chan struct{})}
	p, err := consistent.New(conn, overflowName, append(path, consistent.WithDeadLetterTopic("dead-letters/"+overflowName), consistent.WithBackoff(2*time.Millisecond, 200*time.Millisecond),
		consistent.WithLogger(slog.New(log)))...)
	if err != nil {
		return err
	}
	size := min(r.storeBytes()/32, 1<<20)
	_ = consistent.Handle(p, overflowName+"/+", func(id string) string { return id }, func(_ *consistent.Context, s padded, _ string) (padded, []consistent.Message, error) {
		return padded{s.N + 1, strings.Repeat("x", size)}, nil, nil
	})
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
		return fmt.Errorf("the processor that fills the store: %w", err)
	}
	messages := grantedBytes(r.storeBytes())/size + 2
	r.fill(func() {
		for i := range messages {
			id := fmt.Sprint(i)
			if err = conn.Publish(ctx, consistenttest.Event(id, consistent.JSON(overflowName+"/"+id, id))); err != nil {
				return
			}
		}
		select {
		case <-log.first:
		case <-ctx.Done():
			err = errors.New("a full store has refused nothing")
		}
	})
	if err != nil {
		return err
	}
	for i := range messages {
		key := fmt.Sprint(overflowName, "/", i)
		var s padded
		if err := poll(ctx, func() (bool, error) {
			found, err := stateOf(ctx, r.filler, key, &s)
			return found, err
		}); err != nil {
			return fmt.Errorf("message %d, which was refused because the store was full, is not processed: %w", i, err)
		}
		if s.N != 1 {
			r.evidence.overflowed = append(r.evidence.overflowed, fmt.Sprintf("1: message %d of a full store was committed %d times", i, s.N))
		}
		if _, err := r.filler.Del(ctx, key, client.RetryWrites()); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.summary.StoreRefused += int(log.count.Load())
	return nil
}

// quotaErrors is a log that counts the errors about a full store.
type quotaErrors struct {
	count atomic.Int64
	once  sync.Once
	first chan struct{} // closed by the first one
}

func (*quotaErrors) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (q *quotaErrors) WithAttrs([]slog.Attr) slog.Handler         { return q }
func (q *quotaErrors) WithGroup(string) slog.Handler              { return q }

func (q *quotaErrors) Handle(_ context.Context, line slog.Record) error {
	line.Attrs(func(a slog.Attr) bool {
		if err, is := a.Value.Any().(error); is && errors.Is(err, client.ErrQuotaExceeded) {
			q.count.Add(1)
			q.once.Do(func() { close(q.first) })
		}
		return true
	})
	return nil
}
