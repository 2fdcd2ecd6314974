package engine

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/engine/rows"
)

// forgetAll runs rounds until nothing is due, and returns how many there were.
func (w *world) forgetAll() (rounds int) {
	for w.e.ForgetDue() {
		rounds++
	}
	w.settle()
	return rounds + 1
}

func TestForgetting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Remember: time.Hour})
	c := w.client("c")
	c.store("OK", "k", "a", "short", "KEEP=1000")
	c.store("OK", "k", "b", "short-and-done", "KEEP=1000")
	c.want("1", "DONE k short-and-done")
	c.store("OK", "k", "c", "default", "")
	w.clock.advance(999)
	w.forgetAll()
	w.wantRemembered(3)
	c.want("1 nil nil", "LOAD k short")
	w.clock.advance(1)
	c.want("0 c nil", "LOAD k short") // at once, before the clean-up comes
	c.want("0", "DONE k short-and-done")
	w.wantRemembered(3)
	w.forgetAll()
	w.wantRemembered(1)
	c.want("0 c nil", "LOAD k short")
	c.want("1 b nil", "LOAD k default")
	w.clock.advance(time.Hour.Milliseconds() - 1000)
	w.forgetAll()
	w.wantRemembered(0)
	if got := w.e.Stats().Forgotten; got != 3 {
		t.Errorf("%d were forgotten, want 3", got)
	}
	c.want("c", "GET k")
}

// Clean-up runs in the background, bounded per round.
func TestForgettingIsBoundedPerRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	const n = 2*forgetAtOnce + 10
	var last *answer
	for i := range n {
		last = c.do(fmt.Sprintf("STORE k%d v m - KEEP=100", i))
	}
	<-last.done
	w.clock.advance(100)
	for _, left := range []int{n - forgetAtOnce, n - 2*forgetAtOnce} {
		if !w.e.ForgetDue() {
			t.Error("ForgetDue says that there is no more")
		}
		w.wantRemembered(left)
	}
	if w.e.ForgetDue() {
		t.Error("ForgetDue says that there is more")
	}
	w.wantRemembered(0)
}

// A message whose time has come may be stored again before the clean-up sees it:
// what was remembered anew stays, on disk too.
func TestForgettingSparesWhatWasStoredAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m", "KEEP=100")
	w.clock.advance(100)
	c.store("OK", "k", "b", "m", "KEEP=100")
	w.wantRemembered(1)
	w.forgetAll()
	c.want("1 a nil", "LOAD k m")
	w.restart()
	c = w.client("c")
	c.want("1 a nil", "LOAD k m")
	w.clock.advance(100)
	w.forgetAll()
	w.wantRemembered(0)
	c.store("OK", "k", "c", "m", "KEEP=1") // right behind what was swept
	w.clock.advance(1)
	w.forgetAll()
	w.wantRemembered(0)
}

func TestDeadlinesOfMessagesSurviveRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m", "KEEP=1000")
	c.store("OK", "k", "b", "n", "KEEP=2000")
	w.stop()
	w.clock.advance(1000)
	w.start()
	c = w.client("c")
	c.want("0 b nil", "LOAD k m")
	c.want("1 a nil", "LOAD k n")
	w.forgetAll()
	w.wantRemembered(1)
}

// A step of the wall clock neither forgets early nor makes the message last, and
// what was stored after it has the right time after a restart too.
func TestMessagesDoNotFollowStepsOfTheWallClock(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	for name, step := range map[string]int64{"forward": 500 * hour, "back": -500 * hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{AllowClockRegression: true})
			c := w.client("c")
			c.store("OK", "k", "a", "before", fmt.Sprint("KEEP=", 2*hour))
			w.settle()
			w.clock.wallMs.Add(step)
			c.store("OK", "k", "b", "after", fmt.Sprint("KEEP=", 2*hour))
			w.settle()
			w.clock.advance(hour)
			w.forgetAll()
			c.want("1 nil nil", "LOAD k before")
			c.want("1 a nil", "LOAD k after")
			c.want("1", "DONE k after")
			w.wantRemembered(2)
			w.clock.advance(hour)
			c.want("0 b nil", "LOAD k before")
			c.want("0 b nil", "LOAD k after")
			w.clock.advance(-hour) // what the next start finds is the wall clock's
			w.restart()
			c = w.client("c")
			c.want("2 nil nil", "LOAD k after")
			w.clock.advance(hour)
			c.want("0 b nil", "LOAD k after")
			w.clock.advance(1000 * hour) // late, but for certain
			w.restart()
			w.forgetAll()
			w.wantRemembered(0)
		})
	}
}

// With the wall clock stepped back, a new deadline would come to lie before those
// that the clean-up has gone past, where it never looks again.
func TestNothingIsIndexedBehindTheCleanUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m", "KEEP=10")
	w.clock.advance(10)
	w.forgetAll()
	w.wantRemembered(0)
	w.clock.wallMs.Add(-5000)
	c.store("OK", "k", "b", "n", "KEEP=10")
	w.clock.advance(10)
	c.want("0 b nil", "LOAD k n") // in time all the same
	w.clock.advance(5000)
	w.forgetAll()
	w.wantRemembered(0)
}

// The clean-up passes over rows of the index that lead to no memo or can't be decoded.
func TestForgettingWithAStrayIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	a := w.j.Begin()
	a.Set(rows.AppendIndexRow(nil, startMs, rows.AppendMemoRow(nil, []byte("k"), []byte("gone"))), nil)
	a.Set([]byte("x|"), nil)
	a.Set(rows.AppendIndexRow(nil, startMs+1, []byte("r|\xff")), nil)
	a.End(nil)
	w.settle()
	c := w.client("c")
	c.store("OK", "k", "a", "m", "KEEP=5")
	w.clock.advance(10)
	w.forgetAll()
	c.want("0 a nil", "LOAD k m")
	if messages, index := w.rows("r"), w.rows("x"); messages != 0 || index != 2 {
		t.Errorf("%d messages and %d rows of the index are left, want 0 and the 2 that cannot be read", messages, index)
	}
}

// The messages of a transaction share a row of the index. Each is forgotten in time, whatever
// becomes of the others.
func TestForgettingTheMessagesOfATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.wantTxn("committed 2", "ONCE a m KEEP 100 ONCE b m KEEP 100 ONCE b n KEEP 100 SET a 1 SET b 2")
	c.wantTxn("committed 1", "ONCE c m KEEP 100 ONCE c n KEEP 200 SET c 1") // different deadlines
	c.wantTxn("committed 1", "ONCE d m KEEP 100 SET d 1")
	w.settle()
	if messages, index := w.rows("r"), w.rows("x"); messages != 6 || index != 4 {
		t.Errorf("%d messages, and %d rows of the index", messages, index)
	}
	c.want("2 nil nil", "LOAD b n")
	w.restart()
	c = w.client("c")
	c.want("2 nil nil", "LOAD b n")
	c.wantTxn("already done", "ONCE b n KEEP 100 SET b 9")
	w.clock.advance(100)
	c.wantTxn("committed 1", "ONCE b n KEEP 100 ONCE b o KEEP 100 SET b 3") // one is remembered again before it is forgotten
	c.store("OK", "b", "4", "m", "KEEP=100")
	w.settle()
	w.wantRemembered(7)
	w.forgetAll()
	w.wantRemembered(4) // n of c, and of b all three
	c.want("2 nil nil", "LOAD b n")
	c.want("1 3 nil", "LOAD b m")
	w.restart()
	c = w.client("c")
	c.want("2 nil nil", "LOAD b n")
	w.clock.advance(100)
	w.forgetAll()
	w.wantRemembered(0)
	if index := w.rows("x"); index != 0 {
		t.Errorf("%d rows of the index are left", index)
	}
	c.want("4", "GET b")
}

// A row of the index that many messages share is forgotten in one round, and a round is bounded by
// messages, not by rows.
func TestForgettingTransactionsIsBoundedPerRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	const each, all = 100, 3 * forgetAtOnce / 100
	for i := range all {
		text := ""
		for n := range each {
			text += fmt.Sprintf("ONCE k%d m%d KEEP 100 ", i, n)
		}
		c.wantTxn("committed 0", text)
	}
	w.clock.advance(100)
	for left := all*each - forgetAtOnce; left >= 0; left -= forgetAtOnce {
		if !w.e.ForgetDue() {
			t.Error("ForgetDue says that there is no more")
		}
		w.wantRemembered(left)
	}
	if w.e.ForgetDue() {
		t.Error("ForgetDue says that there is more")
	}
}

// STOREs of short-lived messages and DONEs against a clean-up that never rests:
// nothing is left, nothing is counted twice.
func TestForgettingUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	stop := make(chan struct{})
	var cleaner, workers sync.WaitGroup
	cleaner.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				w.clock.advance(1)
				w.e.ForgetDue()
			}
		}
	})
	for id := range 4 {
		c := w.client("c")
		workers.Go(func() {
			for i := range 300 {
				c.wait(fmt.Sprintf("STORE k%d-%d v m%d - KEEP=%d", id, i, i%7, 1+i%3))
				c.wait(fmt.Sprintf("DONE k%d-%d m%d", id, i, i%7))
				c.wait(fmt.Sprintf("STORE same%d v m%d - KEEP=1", i%3, i%5))
				c.wait(fmt.Sprintf("DEL same%d", i%3))
			}
		})
	}
	workers.Wait()
	close(stop)
	cleaner.Wait()
	w.clock.advance(100)
	w.forgetAll()
	w.wantRemembered(0)
}

func TestTheLoopForgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	c.store("OK", "k", "a", "m", "KEEP=1")
	w.clock.advance(1)
	again, err := Open(w.o) // with its loop, unlike the world's
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for deadline := time.Now().Add(time.Minute); again.Stats().Forgotten == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the message was not forgotten")
		}
	}
}
