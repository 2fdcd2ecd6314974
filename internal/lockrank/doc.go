// Package lockrank gives every mutex of the server its place in one order, and
// checks that order when it is asked to.
//
// A mutex is declared with the type that names its place:
//
//	mu lockrank.Mutex[lockrank.Session]
//
// The order is the list in order.go and stands nowhere else. A goroutine may only
// acquire a lock whose place comes after the places of all locks that it holds;
// then no set of goroutines can wait for each other in a circle.
//
// Built with the tag lockrank, which the race run of CI sets, acquiring a lock
// against the order panics and names both locks. So does acquiring a second lock of
// the same place, as no order is declared between those. Without the tag Mutex is
// sync.Mutex and RWMutex is sync.RWMutex: the types are aliases, so there is
// nothing to pay.
//
// The check costs two short critical sections for each lock, and allocates nothing.
// It sees what a goroutine does, and not what it could do: an order that no
// test takes is not checked.
package lockrank
