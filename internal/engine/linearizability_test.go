package engine

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// Sessions work on a few keys at the same time, the machine loses its power at
// some moment, the next life begins with what the disk has, and at the end a
// reader looks at everything. What every session saw, over all lives, must be
// what one key after the other, one command after the other, would have done:
// nothing that was replied is lost, and no reply shows what was.

type request struct {
	verb       statestore.Verb
	condition  statestore.Condition
	key, value string
}

type response struct {
	known bool // false: the power was gone before the reply
	kind  statestore.ReplyKind
	value string
	count int
}

// absent is the model's state of a key that is not there.
const absent = "\x00absent"

var keyModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			k := op.Input.(request).key
			byKey[k] = append(byKey[k], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return absent },
	Step: func(state, input, output any) (bool, any) {
		want, next := step(state.(string), input.(request))
		got := output.(response)
		return !got.known || got == want, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// step is what a key does, in the plainest words.
func step(state string, in request) (response, string) {
	out := response{known: true}
	switch in.verb {
	case statestore.Get:
		if state == absent {
			out.kind = statestore.Nil
			return out, state
		}
		out.kind, out.value = statestore.Value, state
		return out, state
	case statestore.Set:
		refused := in.condition == statestore.IfAbsent && state != absent ||
			in.condition == statestore.IfAbsentOrEqual && state != absent && state != in.value
		if refused {
			out.kind = statestore.NotApplied
			return out, state
		}
		out.kind = statestore.OK
		return out, in.value
	default: // DEL, VDEL
		switch {
		case state == absent:
			out.kind = statestore.Count
			return out, state
		case in.verb == statestore.VDel && state != in.value:
			out.kind = statestore.NotApplied
			return out, state
		}
		out.kind, out.count = statestore.Count, 1
		return out, absent
	}
}

// history collects operations. The power is cut under its lock, so that a reply
// is either noted before the cut, or unknown.
type history struct {
	mu  sync.Mutex
	ops []porcupine.Operation
	off bool
}

// call is one operation in flight.
type call struct {
	h      *history
	client int
	in     request
	began  int64
	done   chan struct{}
}

var began = time.Now()

func now() int64 { return int64(time.Since(began)) }

func (c *call) reply(r *statestore.Reply) {
	c.note(response{known: true, kind: r.Kind, value: string(r.Value), count: r.Count})
	close(c.done)
}

func (c *call) note(out response) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	ended := now()
	if c.h.off {
		// It may have taken effect, or not: as if it were still under way.
		out, ended = response{}, math.MaxInt64
	}
	c.h.ops = append(c.h.ops, porcupine.Operation{ClientId: c.client, Input: c.in, Output: out, Call: c.began, Return: ended})
}

func (c *call) command(wallMs int64) *statestore.Command {
	cmd := &statestore.Command{Verb: c.in.verb, Condition: c.in.condition, Key: []byte(c.in.key), Value: []byte(c.in.value)}
	cmd.Compare = cmd.Value
	cmd.Time = statestore.Stamp{State: statestore.Given, At: hlc.Timestamp{Wall: uint64(wallMs), Node: "client"}}
	return cmd
}

func TestLinearizableAcrossCrashes(t *testing.T) {
	t.Parallel()
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			checkHistory(t, seed)
		})
	}
}

func checkHistory(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	const lives, clients = 5, 6
	var ops []porcupine.Operation
	var last hlc.Timestamp
	mem := vfs.NewCrashableMem()
	for life := range lives {
		w := &world{t: t, mem: mem, clock: newFakeClock(), log: &logbook{}}
		w.start()
		if got := w.e.Stats().Last; got.Compare(last) < 0 {
			t.Errorf("life %d begins at version %v, %v was seen before", life, got, last)
		}
		h := &history{}
		mem, last = liveUntilPowerIsCut(w, h, life*clients, clients, rng)
		w.stop()
		ops = append(ops, h.ops...)
	}
	if result := porcupine.CheckOperationsTimeout(keyModel, ops, 3*time.Minute); result != porcupine.Ok {
		t.Errorf("%d operations: %s", len(ops), result)
	}
}

// liveUntilPowerIsCut runs clients, each with a few commands in flight, until a
// random number of replies was given. It returns what the disk has then, and the
// last version that is known to be on it.
func liveUntilPowerIsCut(w *world, h *history, firstID, clients int, rng *rand.Rand) (*vfs.MemFS, hlc.Timestamp) {
	stop := make(chan struct{})
	cut := make(chan struct{})
	var replies atomic.Int64
	enough := int64(20 + rng.IntN(150))
	var wg sync.WaitGroup
	for id := range clients {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 2))
		wg.Go(func() {
			s := w.open(Origin{})
			defer s.Close()
			for n := 0; ; n++ {
				var inFlight []*call
				for range 1 + rng.IntN(3) {
					c := &call{h: h, client: firstID + id, in: randomRequest(rng, fmt.Sprint(firstID+id, ".", n)), began: now(), done: make(chan struct{})}
					s.replies.do(s.Session, c.command(startMs), c.reply)
					inFlight = append(inFlight, c)
				}
				for _, c := range inFlight {
					<-c.done
					if replies.Add(1) == enough {
						close(cut)
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	<-cut
	h.mu.Lock()
	left := w.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	h.off = true
	h.mu.Unlock()
	close(stop)
	wg.Wait()
	return left, metaOf(w.t, left)
}

// metaOf reads the last version that a crashed disk has.
func metaOf(t testing.TB, fs *vfs.MemFS) hlc.Timestamp {
	j, err := journal.Open(journal.Options{Dir: "data", FS: fs, ReadOnly: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	meta, err := rows.DecodeMeta(j.Meta())
	if err != nil {
		t.Fatal(err)
	}
	return meta.Last
}

func randomRequest(rng *rand.Rand, unique string) request {
	in := request{key: string(rune('a' + rng.IntN(3))), value: unique}
	if rng.IntN(3) == 0 {
		in.value = "common"
	}
	switch rng.IntN(8) {
	case 0, 1, 2:
		in.verb, in.value = statestore.Get, ""
	case 3:
		in.verb, in.value = statestore.Del, ""
	case 4:
		in.verb = statestore.VDel
	case 5:
		in.verb, in.condition = statestore.Set, statestore.IfAbsent
	case 6:
		in.verb, in.condition = statestore.Set, statestore.IfAbsentOrEqual
	case 7:
		in.verb = statestore.Set
	}
	return in
}
