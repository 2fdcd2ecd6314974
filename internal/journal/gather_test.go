package journal

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// slowLog is a Log whose commits take a time, and which counts them.
type slowLog struct {
	takes   time.Duration
	commits uint64
}

func (l *slowLog) open(LogOptions) (Log, error)                        { return l, nil }
func (l *slowLog) Replay(func(number uint64, rows []byte) error) error { return nil }
func (l *slowLog) Begin() error                                        { return nil }
func (l *slowLog) Sync() error                                         { return nil }
func (l *slowLog) Trim(uint64) error                                   { return nil }
func (l *slowLog) Check() error                                        { return nil }
func (l *slowLog) Close() error                                        { return nil }

func (l *slowLog) Commit([]byte) (number uint64, err error) {
	time.Sleep(l.takes)
	l.commits++
	return l.commits, nil
}

// Callers that write again soon after their batch has completed share the commits; one that comes
// seldom holds up no other for long. The times are those of the bubble.
func TestCommitterGathersCallers(t *testing.T) {
	const commit, rounds = 4 * time.Millisecond, 100
	eight := make([]time.Duration, 8)
	for i := range eight {
		eight[i] = time.Duration(i) * commit / 40
	}
	fifteen := make([]time.Duration, 15)
	fifteen[0] = commit / 16
	seldom := make([]time.Duration, 64) // two of them come in the time of a commit
	for i := range seldom {
		seldom[i] = 32*commit + time.Duration(i)*commit/11
	}
	for _, test := range []struct {
		name     string
		thinking []time.Duration // of each caller, between its writes
		commits  uint64          // at most
		lasts    time.Duration   // at most
		cluster  bool            // only the log of a cluster is worth the wait
	}{
		{"one", []time.Duration{100 * time.Microsecond}, rounds, rounds * (commit + 100*time.Microsecond), false},
		{"two", []time.Duration{100 * time.Microsecond, 200 * time.Microsecond}, rounds + 5, (rounds + 5) * (commit + 200*time.Microsecond), false},
		{"eight", eight, rounds + 5, (rounds + 5) * (commit + 7*commit/40), false},
		{"fifteen of whom one comes a little later", fifteen, rounds + 5, (rounds + 5) * (commit + commit/16), false},
		{"one that comes seldom", []time.Duration{0, 50 * time.Millisecond}, 2 * rounds, rounds * (50*time.Millisecond + commit + commit/4), false},
		{"many that come seldom", seldom, 64 * rounds, rounds * (32*commit + 63*commit/11 + 7*commit/4), false},
		{"one that comes half a commit later", []time.Duration{0, commit / 2}, rounds + 5, (rounds + 5) * (commit + commit/2), true},
	} {
		for _, cluster := range []bool{false, true} {
			name := test.name + ", one machine"
			if cluster {
				name = test.name + ", cluster"
			}
			if test.cluster && !cluster {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					log := &slowLog{takes: commit}
					j := mustOpen(t, Options{FS: vfs.NewMem(), Log: log.open})
					j.mu.Lock()
					j.gathering.cluster = cluster // the committer waits for the first write
					j.mu.Unlock()
					begun := time.Now()
					var callers sync.WaitGroup
					for i, thinking := range test.thinking {
						callers.Go(func() {
							done := make(signal, 1)
							for n := range rounds {
								key := binary.BigEndian.AppendUint32([]byte{'k', byte(i)}, uint32(n))
								a := j.Begin()
								a.Set(key, nil)
								a.End(done)
								<-done
								time.Sleep(thinking)
							}
						})
					}
					callers.Wait()
					took := time.Since(begun)
					mustClose(t, j)
					if log.commits > test.commits || took > test.lasts {
						t.Errorf("%d commits in %v, want at most %d in %v", log.commits, took, test.commits, test.lasts)
					}
				})
			})
		}
	}
}

// The committer of a cluster is patient with callers that have one write under way each.
func TestPatience(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cluster bool
		rows    uint32 // of a batch with two callers
		want    patience
	}{
		{false, 2, usualPatience},
		{true, 2, clusterPatience},
		{true, 7, clusterPatience},
		{true, 8, usualPatience},
	} {
		g := newGathering(test.cluster)
		g.call(make(signal, 1))
		g.call(make(signal, 1))
		g.complete(test.rows, nil)
		if got := g.patience(); got != test.want {
			t.Errorf("cluster %v, %d rows of two callers: %+v, want %+v", test.cluster, test.rows, got, test.want)
		}
	}
}

// The committer does not keep a caller that has gone in memory until others have come.
func TestCallersAreNotKept(t *testing.T) {
	t.Parallel()
	g := newGathering(true)
	gone := make(chan struct{})
	func() {
		w := &counted{}
		runtime.AddCleanup(w, func(gone chan struct{}) { close(gone) }, gone)
		g.call(w)
		g.complete(1, nil)
		if !g.last.has(w) {
			t.Error("a caller of the last batch is not known")
		}
	}()
	for end := time.Now().Add(10 * time.Second); ; {
		runtime.GC()
		select {
		case <-gone:
			return
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the caller is still in memory")
		}
	}
}

type counted struct{ n [4]int }

func (c *counted) Durable(Seq) { c.n[0]++ }

// What is gathered is committed at once when it is as large as a batch may be, and when the journal is
// closed.
func TestGatheringEndsEarly(t *testing.T) {
	const commit = 10 * time.Second // a quarter of which is bounded by maxGatherPause
	for name, end := range map[string]func(*Journal){
		"a large batch": func(j *Journal) {
			a := j.Begin()
			a.Set([]byte("large"), make([]byte, 2000))
			a.End(nil)
		},
		"the last caller": func(j *Journal) {
			a := j.Begin()
			a.End(make(signal, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := &slowLog{takes: commit}
				j := mustOpen(t, Options{FS: vfs.NewMem(), Log: log.open, BatchBytes: 1000, CommitTimeout: time.Hour})
				defer mustClose(t, j)
				write := func(w Waiter) {
					a := j.Begin()
					a.Set([]byte("k"), nil)
					a.End(w)
				}
				done := make(signal, 2)
				write(done)
				synctest.Wait() // the first is being committed
				write(done)
				<-done
				synctest.Wait() // the committer waits for the first caller
				begun := time.Now()
				end(j)
				<-done
				if took := time.Since(begun); took != commit {
					t.Errorf("the batch was complete after %v, want %v", took, commit)
				}
			})
		})
	}
}
