package interop

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/iot-operations-sdks/go/protocol/hlc"
	"github.com/Azure/iot-operations-sdks/go/services/statestore"
	storeerrors "github.com/Azure/iot-operations-sdks/go/services/statestore/errors"
)

// How a server may end under live clients. After both of them everything that was
// answered is there, and the clients carry on: the SDK gives up for good unless
// its session has survived.
var endings = []struct {
	name string
	end  func(*testing.T, *server)
}{
	{"kill -9", func(_ *testing.T, s *server) { s.kill() }},
	{"SIGTERM", func(t *testing.T, s *server) {
		if err := s.stop(); err != nil {
			t.Errorf("shutting down: %v", err)
		}
	}},
}

func TestSDKCarriesOnAfterARestart(t *testing.T) {
	t.Parallel()
	for _, ending := range endings {
		t.Run(ending.name, func(t *testing.T) {
			t.Parallel()
			s := ownServer(t)
			holder, other := connectSDK(t, s), connectSDK(t, s)
			name := uniqueKey("key")
			kept, deleted, long, short, watched, protected := name+"kept", name+"deleted", name+"long", name+"short", name+"watched", name+"protected"

			// Given keys of every kind, a watch, and a lock with a key that it protects.
			keptAt := holder.set(t, kept, "kept")
			holder.set(t, deleted, "deleted")
			if res, err := holder.Del(deadline(t), deleted); err != nil || res.Value != 1 {
				t.Fatalf("DEL: %+v, %v", res, err)
			}
			holder.set(t, long, "long", statestore.WithExpiry(time.Hour))
			holder.set(t, short, "short", statestore.WithExpiry(time.Second))
			watchedAt := other.set(t, watched, "before")
			notifications := holder.watch(t, watched)
			ofHolder, ofOther := newLock(holder, name+"lock"), newLock(other, name+"lock")
			if err := ofHolder.Lock(deadline(t), time.Hour); err != nil {
				t.Fatalf("lock: %v", err)
			}
			held := token(t, ofHolder.Lease)
			last := holder.set(t, protected, "protected", statestore.WithFencingToken(held))

			// When the server ends and starts again under both clients.
			ending.end(t, s)
			s.restart(t)
			holder.awaitConnection(t)
			other.awaitConnection(t)

			// Then keys are as they were, deadlines have gone on, and versions rise.
			value, version := holder.get(t, kept)
			if value != "kept" {
				t.Errorf("a key holds %q after the restart", value)
			}
			mustEqual(t, "a key after the restart", version, keptAt)
			if _, version := holder.get(t, deleted); !version.IsZero() {
				t.Error("a deleted key is back")
			}
			if _, version := other.get(t, long); version.IsZero() {
				t.Error("a key expired before its time")
			}
			eventually(t, "a key's deadline passes", func() bool {
				_, version := other.get(t, short)
				return version.IsZero()
			})
			mustRise(t, "the first SET after the restart", last, holder.set(t, kept, "rewritten"))

			// The SDK has registered again and reported what the key holds; later
			// changes are notified.
			n := receive(t, notifications, "the SDK's report after reconnecting")
			if n.Operation != "SET" || n.Value != "before" {
				t.Errorf("after reconnecting the SDK reports %s %q", n.Operation, n.Value)
			}
			mustEqual(t, "the SDK's report after reconnecting", n.Version, watchedAt)
			after := other.set(t, watched, "after")
			n = receive(t, notifications, "the notification of a SET after the restart")
			if n.Value != "after" {
				t.Errorf("notified of %q, want %q", n.Value, "after")
			}
			mustEqual(t, "the notification of a SET after the restart", n.Version, after)

			// The lock is still held and still fences.
			if acquire(t, ofOther.Lease, time.Hour) {
				t.Fatal("another client got the lock that is held")
			}
			mustBeHeldBy(t, ofOther.Lease, holder.ID())
			_, err := other.Set(deadline(t), protected, "unfenced")
			mustFailWith(t, "a write without the lock's token", err, storeerrors.MissingFencingToken)
			holder.set(t, protected, "still fenced", statestore.WithFencingToken(held))
			if !acquire(t, ofHolder.Lease, time.Hour) {
				t.Fatal("the holder could not renew its lock")
			}
			mustRise(t, "the renewed lock", held, token(t, ofHolder.Lease))

			// And it is handed over as ever.
			locked := make(chan error, 1)
			ctx := deadline(t)
			go func() { locked <- ofOther.Lock(ctx, time.Hour) }()
			if err := ofHolder.Unlock(ctx); err != nil {
				t.Fatalf("unlock: %v", err)
			}
			if err := receive(t, locked, "the other client's lock"); err != nil {
				t.Fatalf("the other client locks: %v", err)
			}
			_, err = holder.Set(ctx, protected, "too late", statestore.WithFencingToken(held))
			if err != nil {
				t.Errorf("the former holder's token protects until a newer one comes: %v", err)
			}
			other.set(t, protected, "fenced anew", statestore.WithFencingToken(token(t, ofOther.Lease)))
			_, err = holder.Set(ctx, protected, "too late", statestore.WithFencingToken(held))
			mustFailWith(t, "the former holder's write", err, storeerrors.FencingTokenLowerVersion)
		})
	}
}

// What has been answered is on disk: writers count in their own keys while the
// server is killed again and again, and no count ever falls behind an answer.
func TestSDKNothingAnsweredIsLost(t *testing.T) {
	t.Parallel()
	const clients, writersEach, kills = 3, 8, 3
	s := ownServer(t)
	name := uniqueKey("count")

	var (
		answered atomic.Int64 // by all writers
		stopped  = make(chan struct{})
		all      sync.WaitGroup
	)
	sdks := make([]*sdkClient, clients)
	for i := range sdks {
		sdks[i] = connectSDK(t, s)
		for j := range writersEach {
			w := counter{client: sdks[i], key: fmt.Sprint(name, i, ".", j)}
			ctx := deadline(t)
			all.Go(func() { w.run(t, ctx, stopped, &answered) })
		}
	}

	for range kills {
		before := answered.Load()
		eventually(t, "writers are answered", func() bool { return answered.Load() >= before+200 })
		s.kill()
		s.restart(t)
		for _, c := range sdks {
			c.awaitConnection(t)
		}
	}
	before := answered.Load()
	eventually(t, "writers are answered after the last restart", func() bool { return answered.Load() >= before+200 })
	close(stopped)
	all.Wait()
}

// counter is a writer that counts in a key of its own.
type counter struct {
	client *sdkClient
	key    string
}

// run writes 1, 2, 3, … until stopped and reads back between writes. A request
// may go unanswered around a crash, then the number is written again.
func (w counter) run(t *testing.T, ctx context.Context, stopped <-chan struct{}, answered *atomic.Int64) {
	var last hlc.HybridLogicalClock
	for n := 1; ; {
		select {
		case <-stopped:
			return
		case <-ctx.Done():
			t.Errorf("%s: stuck at %d", w.key, n)
			return
		default:
		}

		set, err := w.client.Set(ctx, w.key, strconv.Itoa(n), statestore.WithTimeout(2*time.Second))
		if err != nil {
			continue
		}
		if set.Version.Compare(last) <= 0 {
			t.Errorf("%s: SET answered version %v after %v", w.key, set.Version, last)
			return
		}
		last = set.Version
		answered.Add(1)

		get, err := w.client.Get(ctx, w.key, statestore.WithTimeout(2*time.Second))
		if err == nil && (get.Value != strconv.Itoa(n) || get.Version.Compare(last) < 0) {
			t.Errorf("%s: SET %d was answered with %v, GET reads %q with %v", w.key, n, last, get.Value, get.Version)
			return
		}
		n++
	}
}
