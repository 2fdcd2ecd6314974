package consistent_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// On the state-based path, STOREs and DONEs of different keys share transactions (package stores).

// shares counts the STOREs and DONEs of a transaction.
func shares(r consistent.TxnRequest) (stores, dones int) {
	for _, r := range requests(r) {
		stores += len(r.Messages)
		dones += len(r.Done)
	}
	return stores, dones
}

// expectConfirmed demands that the store knows messages of the last round as confirmed.
func expectConfirmed(t *testing.T, c *consistent.Connection, n int) {
	t.Helper()
	for i := range accounts {
		id := fmt.Sprintf("event:4:test%d-%d", n-1, i)
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			r, err := c.Load(t.Context(), "bank/"+accountNo(i), id)
			if err != nil {
				t.Fatal(err)
			}
			if r.Status == client.Confirmed {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("message %q: %+v", id, r)
			}
		}
	}
}

func TestStoresOfManyKeysShareTransactions(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	var both once
	c.several = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		result, err := carryOut()
		if stores, dones := shares(r); stores > 1 && dones > 1 {
			both.first()
		}
		if err != nil || result.Outcome != txn.Committed {
			t.Errorf("%+v, %v", result, err)
		}
		return result, err
	}
	m := &counts{}
	run(t, bank(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+")
	n := rounds(t, o, both.happened)
	expectBalances(t, c.Connection, n, 0)
	expectConfirmed(t, c.Connection, n)
	m.reach(t, consistent.CountProcessed, n*accounts)
	if m.get(consistent.CountRetry) != 0 || m.get(consistent.CountConflict) != 0 {
		t.Errorf("after %d rounds: %v", n, m.of)
	}
}

// Another instance changes the state of one key while those of many are stored: that message is
// handled again, and the others are stored.
func TestConflictOfOneStoreAmongMany(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	other := dial(t, addr)
	c := &conn{Connection: dial(t, addr)}
	var conflict once
	c.several = func(r consistent.TxnRequest, carryOut func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		of := requests(r)
		i := slices.IndexFunc(of, func(r consistent.TxnRequest) bool { return r.Open && isFor(odd)(r) })
		if stores, _ := shares(r); stores < 2 || i < 0 || of[i].Version.IsZero() || !conflict.first() {
			return carryOut()
		}
		changeOdd(t, other, of[i].Version)
		result, err := carryOut()
		if err != nil || result.Outcome != txn.ConditionFailed || result.Because != i+1 {
			t.Errorf("%+v, %v; want a conflict of request %d", result, err, i+1)
		}
		return result, err
	}
	m := &counts{}
	run(t, bank(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+")
	n := rounds(t, o, conflict.happened)
	expectBalances(t, other, n, 1000)
	expectConfirmed(t, other, n)
	m.reach(t, consistent.CountProcessed, n*accounts)
	if m.get(consistent.CountConflict) != 1 || m.get(consistent.CountRetry) != 0 {
		t.Errorf("after %d rounds: %v", n, m.of)
	}
}

// A server that lacks OPEN and DONE is asked once, and then gets STORE and DONE.
func TestStoresAtAnOlderServer(t *testing.T) {
	t.Parallel()
	addr := testserver.Start(t).Addr
	c := &conn{Connection: dial(t, addr)}
	var asked once
	c.several = func(consistent.TxnRequest, func() (consistent.TxnResult, error)) (consistent.TxnResult, error) {
		asked.first()
		return consistent.TxnResult{Because: 1}, &txn.OperationError{Operation: "OPEN", Number: 3, Err: client.ErrUnknownOperation}
	}
	m := &counts{}
	run(t, bank(t, c, consistent.WithMetrics(m)))
	o := observe(t, addr, "balances/+")
	n := rounds(t, o, asked.happened)
	expectBalances(t, c.Connection, n, 0)
	expectConfirmed(t, c.Connection, n)
	m.reach(t, consistent.CountProcessed, n*accounts)
	if c.counted("store") != n*accounts || m.get(consistent.CountRetry) != 0 {
		t.Errorf("%d STOREs after %d rounds: %v", c.counted("store"), n, m.of)
	}
}
