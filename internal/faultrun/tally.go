package faultrun

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
)

// Messages of one key that share a commit. The shift captures values and the ledger cancels timers, so
// their messages are committed one by one. The tally does neither, and at any time nearly all of its
// messages are of one key or two: they wait for each other, and share transactions, or STOREs.

const (
	tallyName = "tally"
	copies    = "copies/"  // begins topics, of the second output of the shift
	tallied   = "tallied/" // begins topics
)

// perTally is how many messages, one sent behind the other, have one key of the tally.
const perTally = 200

// tallyKey is the key of the tally for the message with an ID.
func tallyKey(id string) string {
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return ""
	}
	return fmt.Sprint(n / perTally)
}

// registerTally registers the handler of copies. It is not deterministic on those of which the shift
// was not either.
func registerTally(p *consistent.Processor, disturb func(), noise func() int) {
	_ = consistent.Handle(p, copies+"+", func(r result) string { return tallyKey(r.ID) }, func(c *consistent.Context, s shift, r result) (shift, []consistent.Message, error) {
		disturb()
		out := result{ID: r.ID, Key: r.Key, Which: 4, N: s.N, Chain: s.Chain, Roll: c.Rand().Uint64(), UUID: c.ID()}
		if r.Noise != 0 {
			out.Noise = noise()
		}
		s.add(r.ID)
		return s, []consistent.Message{consistent.JSON(tallied+c.Key(), out)}, nil
	})
}

// shared counts what messages of one key have shared.
type shared struct {
	Transactions int // with several messages
	Stores       int // likewise
	Replays      int // messages of such a STORE that were found stored and not confirmed
}

func (s *shared) add(more shared) {
	s.Transactions += more.Transactions
	s.Stores += more.Stores
	s.Replays += more.Replays
}

// sharing is a connection that publishes what is shared by it. What it has not published when its
// process is killed is lost.
type sharing struct {
	*consistent.Connection
	more chan struct{} // has room for one; something is counted

	mu    sync.Mutex
	count shared // under mu: not published yet
}

// sharedTopic is the topic of a shared as JSON.
const sharedTopic = "shared"

func newSharing(ctx context.Context, conn *consistent.Connection) *sharing {
	s := &sharing{Connection: conn, more: make(chan struct{}, 1)}
	go func() {
		for {
			select {
			case <-s.more:
				s.mu.Lock()
				m := consistent.JSON(sharedTopic, s.count)
				s.count = shared{}
				s.mu.Unlock()
				_ = conn.Publish(ctx, m)
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

func (s *sharing) add(n shared) {
	if n == (shared{}) {
		return
	}
	s.mu.Lock()
	s.count.add(n)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Transact implements consistent.Conn.
func (s *sharing) Transact(ctx context.Context, r consistent.TxnRequest) (consistent.TxnResult, error) {
	result, err := s.Connection.Transact(ctx, r)
	if err == nil && result.Outcome == txn.Committed {
		var n shared
		for _, of := range append([]consistent.TxnRequest{r}, r.Also...) {
			switch {
			case len(of.Messages) < 2:
			case of.Open:
				n.Stores++
			default:
				n.Transactions++
			}
		}
		s.add(n)
	}
	return result, err
}

// withStateBefore is the first byte of what STORE keeps for a replay, if it has the state that the
// message was processed on: the message was stored behind another one.
const withStateBefore = 3

// Load implements consistent.Conn.
func (s *sharing) Load(ctx context.Context, key, messageID string) (client.LoadResult, error) {
	known, err := s.Connection.Load(ctx, key, messageID)
	if err == nil && known.Status == client.Duplicate && len(known.Captured) > 0 && known.Captured[0] == withStateBefore {
		s.add(shared{Replays: 1})
	}
	return known, err
}

// countShared adds what a sharing has published. The caller holds mu.
func (r *run) countShared(payload []byte) {
	var more shared
	if err := json.Unmarshal(payload, &more); err != nil {
		r.evidence.unreadable = append(r.evidence.unreadable, fmt.Sprintf("cannot decode the message that was published to %s: %q", sharedTopic, payload))
		return
	}
	r.summary.Shared.add(more)
}
