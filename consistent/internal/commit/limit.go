package commit

import "sync/atomic"

// defaultOperations is how many operations of a kind a transaction of several messages has at most,
// as long as no server has said that they are too many: a little less than the default of
// --max-txn-operations.
const defaultOperations = 120

// Limit is how many operations of a kind a transaction may have that messages share. It is safe for
// concurrent use.
type Limit struct {
	learned atomic.Int64 // 0: nothing
}

// Most is the limit.
func (l *Limit) Most() int {
	if n := l.learned.Load(); n > 0 {
		return int(n)
	}
	return defaultOperations
}

// Learn halves the limit if an error says that so many operations were too many.
func (l *Limit) Learn(err error, operations int) bool {
	if RefusedFor(err) != QuotaOperations {
		return false
	}
	l.learned.Store(int64(max(operations/2, 1)))
	return true
}
