package engine

import (
	"slices"
	"testing"
)

// A message that ONCE … OPEN remembers is to LOAD, STORE and DONE what one of STORE is, through a
// crash and until it is forgotten, whether its transaction has one message or several.
func TestTxnRemembersAsStoreDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.client("c")
	for _, step := range []struct{ set, id, ctx string }{{"one", "m1", "CTX x"}, {"two", "m2", ""}} {
		c.store("OK", "stored", step.set, step.id, "KEEP=5000 "+withEquals(step.ctx))
		c.wantTxn("committed 2", "ONCE open "+step.id+" OPEN KEEP 5000 "+step.ctx+" SET open "+step.set+" ONCE beside "+step.id+" OPEN KEEP 5000 "+step.ctx+" SET beside "+step.set)
	}
	c.store("OK", "stored", "-", "m3", "KEEP=5000 DEL")
	c.wantTxn("committed 1", "ONCE open m3 OPEN KEEP 5000 DEL open")
	c.wantTxn("committed 1", "ONCE beside m3 KEEP 5000 OPEN DEL beside")
	for _, crash := range []bool{false, true} {
		if crash {
			w.crash()
			c = w.client("c")
		}
		for _, key := range []string{"stored", "open", "beside"} {
			c.want("1 nil x", "LOAD "+key+" m1")
			c.want("1 one nil", "LOAD "+key+" m2")
			c.want("1 two nil", "LOAD "+key+" m3")
			c.want("0", "STORE "+key+" again m2 -")
			c.wantTxn("already done", "ONCE "+key+" m2 SET "+key+" again")
		}
		w.wantRemembered(9)
	}
	c.want("1", "DONE open m2 left")
	c.want("2 nil left", "LOAD open m2")
	w.wantRemembered(9)
	w.clock.advance(5000)
	w.forgetAll()
	w.wantRemembered(0)
	if index := w.rows("x"); index != 0 {
		t.Errorf("%d rows of the index are left", index)
	}
}

func withEquals(option string) string {
	if option == "" {
		return ""
	}
	return "CTX=" + option[len("CTX "):]
}

// DONE of a transaction does what the command does, for messages of several keys, of STORE and of
// ONCE, and says of each whether it is remembered. It needs neither a timestamp nor room.
func TestTxnConfirms(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxRemembered: 4*(2*3+64) + 20})
	c := w.client("c")
	c.store("OK", "a", "1", "m1", "KEEP=5000 CTX=x")
	c.store("OK", "a", "2", "m2", "KEEP=5000")
	c.wantTxn("committed 2", "ONCE b m1 OPEN KEEP 5000 CTX x SET b 1 ONCE c m1 OPEN KEEP 5000 SET c 1")
	c.wantTxn("operation 1: max-remembered-bytes", "ONCE d m1 CTX 01234567890123456789 SET d 1")
	ended := func(text string, want ...bool) {
		t.Helper()
		if got := c.wantTxn("committed 0", text).Ended; !slices.Equal(got, want) {
			t.Errorf("TXN %s: %v, want %v", text, got, want)
		}
	}
	a1, b1 := c.wait("LOAD a m1").Version.String(), c.wait("LOAD b m1").Version.String()
	ended("DONE a m1 VER "+b1+" DONE b m1 VER "+a1+" DONE nothing m1", false, false, false)
	c.want("1 nil x", "LOAD a m1")
	ended("DONE b m1 CTX y VER "+b1+" DONE a m1 VER "+a1+" DONE a m2 DONE b m2", true, true, true, false)
	for range 2 {
		c.want("2 nil nil", "LOAD a m1")
		c.want("2 nil nil", "LOAD a m2")
		c.want("2 nil y", "LOAD b m1")
		c.want("1 nil nil", "LOAD c m1")
		w.wantRemembered(4)
		w.crash()
		c = w.client("c")
	}
	ended("DONE b m1 CTX other DONE a m1", true, true) // which changes nothing
	c.want("2 nil y", "LOAD b m1")
	c.wantTxn("operation 1: max-remembered-bytes", "DONE c m1 CTX 0123456789012345678901234567890123456789")
	c.want("1 nil nil", "LOAD c m1")

	// It is part of the transaction: with conditions, and beside ONCE of other messages.
	c.wantTxn("operation 1 failed: 1", "IF c VALUE 2 DONE c m1")
	c.want("1 nil nil", "LOAD c m1")
	c.wantTxn("already done", "DONE c m1 ONCE a m1 SET a 9")
	c.want("1 nil nil", "LOAD c m1")
	w.clock.advance(5000)
	ended("DONE a m1", false) // its time has come
	w.forgetAll()
	c.wantTxn("committed 1", "ONCE c m2 OPEN KEEP 5000 SET c 2")
	if got := c.wantTxn("committed 1", "ONCE c m3 OPEN KEEP 5000 SET c 3 DONE c m2").Ended; !slices.Equal(got, []bool{true}) {
		t.Errorf("beside a message of the key: %v", got)
	}
	c.want("2 nil nil", "LOAD c m2")
	c.want("1 2 nil", "LOAD c m3")
	w.clock.advance(5000)
	w.forgetAll()
	w.wantRemembered(0)
	if index := w.rows("x"); index != 0 {
		t.Errorf("%d rows of the index are left", index)
	}
}
