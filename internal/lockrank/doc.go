// Package lockrank gives every mutex of the server its place in one order, and with
// the build tag lockrank checks that order.
//
// A mutex is declared with the type that names its place:
//
//	mu lockrank.Mutex[lockrank.Session]
//
// The order is the list in order.go, and nowhere else. A goroutine may only acquire a
// lock whose place comes after the places of all locks that it holds, so goroutines
// cannot deadlock.
//
// Built with the tag lockrank, which the race run of CI sets, acquiring a lock
// against the order panics and names both locks. So does acquiring a second lock of
// the same place, as no order is declared between those; but of the places in several,
// whose locks are the elements of one array, one that comes later in the array may be
// acquired. Without the tag Mutex is
// sync.Mutex and RWMutex is sync.RWMutex: the types are aliases, which cost nothing.
//
// The check costs two short critical sections for each lock, and allocates nothing.
// It checks the locks that goroutines acquire while the tests run, and no others.
package lockrank
