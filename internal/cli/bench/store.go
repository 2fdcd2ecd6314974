package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
)

// storeLoad writes or reads keys.
type storeLoad struct {
	*load
	cmd     *cobra.Command
	name    string
	value   []byte
	clients []*client.Client
	took    timings
	turn    atomic.Int64 // counts requests, for the key of each
}

func newStoreLoad(cmd *cobra.Command, l *load) *storeLoad {
	s := &storeLoad{load: l, cmd: cmd, name: randomName(), value: bytes.Repeat([]byte("x"), l.size), clients: make([]*client.Client, l.clients)}
	s.took.name = l.kind
	return s
}

// randomName keeps the keys and topics of a run apart from all others.
func randomName() string { return "bench/" + strings.ToLower(rand.Text()[:12]) + "/" }

func (s *storeLoad) key(n int64) string { return fmt.Sprint(s.name, n%int64(s.keys)) }

// keysLast is how long keys stay behind a run.
const keysLast = time.Minute

func (s *storeLoad) connect(ctx context.Context) error {
	err := s.each(connectsAtOnce, func(i int) (err error) {
		flags := *s.c // Dial changes them
		s.clients[i], err = flags.Dial(s.cmd)
		return err
	})
	if err == nil {
		err = s.probe(ctx)
	}
	if err != nil || s.kind == "set" {
		return err
	}
	var next atomic.Int64
	return s.each(s.load.clients, func(i int) error { // the keys, each once
		for {
			n := next.Add(1) - 1
			if n >= int64(s.keys) {
				return nil
			}
			if _, err := s.clients[i].Set(ctx, s.key(n), s.value, s.expiry()); err != nil {
				return connect.Explain(err)
			}
		}
	})
}

// probeTime is how long the first request may take, if --timeout is not less.
const probeTime = 5 * time.Second

// probe makes one request. A broker without a state store acknowledges it as any other
// publish, and nothing answers.
func (s *storeLoad) probe(ctx context.Context) error {
	limit := min(s.c.Timeout, probeTime)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, _, err := s.clients[0].Get(ctx, s.key(0))
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no state store has answered a first request within %v; does this broker have one? holdfast bench pub measures any broker", limit)
	}
	return connect.Explain(err)
}

func (s *storeLoad) expiry() client.SetOption { return client.Expiry(s.duration + keysLast) }

func (s *storeLoad) run(ctx, until context.Context) error {
	requests, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var group sync.WaitGroup
	for _, c := range s.clients {
		for range s.inflight {
			group.Go(func() {
				for first := true; first || until.Err() == nil && requests.Err() == nil; first = false {
					began := time.Now()
					if err := s.request(requests, c); err != nil {
						fail(err)
						return
					}
					s.took.observe(time.Since(began))
				}
			})
		}
	}
	group.Wait()
	if err := context.Cause(requests); err != nil && ctx.Err() == nil {
		return connect.Explain(err)
	}
	return nil
}

func (s *storeLoad) request(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	key := s.key(s.turn.Add(1))
	if s.kind == "set" {
		_, err := c.Set(ctx, key, s.value, s.expiry())
		return err
	}
	_, found, err := c.Get(ctx, key)
	if err == nil && !found {
		err = errors.New("a key that bench has written is not there: did it expire, or did another client delete it?")
	}
	return err
}

func (s *storeLoad) measured() []*timings { return []*timings{&s.took} }

func (s *storeLoad) close() {
	for _, c := range s.clients {
		if c != nil {
			_ = c.Close()
		}
	}
}
