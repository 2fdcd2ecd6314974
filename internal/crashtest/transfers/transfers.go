// Package transfers has the actors of a crash test that do everything in transactions
// (protocol, section 12): a clerk, and an auditor of what the clerk publishes.
//
// The clerk publishes orders and receives them at QoS 1. For each it does one TXN, which
// moves an amount from one account to another, publishes a receipt, and settles the order:
// nothing else acknowledges it. So after a kill exactly one of two things is true of each TXN
// whose reply was lost: both balances have changed, its receipt comes, and its order does not
// come again; or none of that. At the end all orders are done, and the sum of the balances,
// and the receipts, agree.
package transfers

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
)

const (
	accounts    = 6
	opening     = 1000 // balance of each account at the beginning
	mostUnread  = 12   // orders that the clerk has published and not yet been acknowledged
	mostAtWork  = 8    // TXNs under way
	ordersTopic = "transfers/orders"
	receipts    = "transfers/receipts"
)

// Books are what the clerk and the auditor of one run know.
type Books struct {
	mu       sync.Mutex
	begun    bool           // the accounts have been opened; the clerk's
	balances [accounts]int  // after all transfers that are known to be done; guarded by mu
	last     [accounts]int  // the order that changed each account last; 0: none. Guarded by mu
	done     map[int]string // receipts of orders that are known to be done; guarded by mu
	came     map[int]string // receipts that have come to the auditor; guarded by mu
	finished int            // all orders up to this number are over. Guarded by mu
	settled  chan struct{}  // closed when the clerk has done all of a life that settles

	orders   int          // numbers given
	accepted map[int]bool // published and acknowledged, and not known to be done; the clerk's
	unsure   []transfer   // whose replies the last kill has swallowed, in their order; the clerk's

	counts Counts // the clerk's
}

// Counts counts what the clerk did.
type Counts struct {
	Done    int `json:"done"`
	Unknown int `json:"unknown_at_a_kill"`  // the reply was lost with the broker
	Took    int `json:"of_which_were_done"` // of Unknown
}

// Counts says what the clerk did.
func (b *Books) Counts() Counts { return b.counts }

// NewBooks are those of a run that begins.
func NewBooks() *Books {
	b := &Books{done: map[int]string{}, came: map[int]string{}, accepted: map[int]bool{}}
	for i := range b.balances {
		b.balances[i] = opening
	}
	return b
}

// transfer is what is done for one order.
type transfer struct {
	order, from, to, amount int
	packetID                uint16 // of the order
}

// text is the payload of the receipt.
func (tr *transfer) text() string {
	return fmt.Sprintf("%d: %d from %d to %d", tr.order, tr.amount, tr.from, tr.to)
}

func account(i int) string { return "transfers/account" + strconv.Itoa(i) }

// standing is the value of an account: its balance, and the order that changed it last, so
// that no two states are alike.
func standing(balance, order int) string { return fmt.Sprintf("%d after %d", balance, order) }

// state is what all accounts hold after some transfers more than are known to be done.
func (b *Books) state(more []transfer) (values [accounts]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	balances, last := b.balances, b.last
	for i := range more {
		more[i].apply(&balances, &last)
	}
	for i := range values {
		values[i] = standing(balances[i], last[i])
	}
	return values
}

func (tr *transfer) apply(balances, last *[accounts]int) {
	balances[tr.from] -= tr.amount
	balances[tr.to] += tr.amount
	last[tr.from], last[tr.to] = tr.order, tr.order
}

// enter notes that a transfer is done.
func (b *Books) enter(tr transfer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tr.apply(&b.balances, &b.last)
	b.done[tr.order] = tr.text()
	delete(b.accepted, tr.order)
	b.counts.Done++
}

// isDone says whether the order is known to be done.
func (b *Books) isDone(order int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return order <= b.finished || b.done[order] != ""
}

// receive notes a receipt. One comes again if its PUBACK was lost, with the same text.
func (b *Books) receive(payload string) error {
	number, _, _ := strings.Cut(payload, ":")
	order, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("%w: a receipt says %q", lives.ErrBroken, payload)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if order <= b.finished {
		return nil // its PUBACK was lost
	}
	if before := b.came[order]; before != "" && before != payload {
		return fmt.Errorf("%w: order %d was done twice: %q and %q", lives.ErrBroken, order, before, payload)
	}
	b.came[order] = payload
	return nil
}

// missing is an order that is known to be done and whose receipt has not come; 0: none.
func (b *Books) missing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for order := range b.done {
		if b.came[order] == "" {
			return order
		}
	}
	return 0
}

// Open is called before a life.
func (b *Books) Open() { b.settled = make(chan struct{}) }

// Balance compares, after a life that settled, what was done with the receipts, and the sum
// of the balances with that of the beginning.
func (b *Books) Balance() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := 0
	for _, balance := range b.balances {
		sum += balance
	}
	if sum != accounts*opening {
		return fmt.Errorf("the accounts hold %d, at the beginning %d", sum, accounts*opening)
	}
	for order, text := range b.done {
		if b.came[order] != text {
			return fmt.Errorf("the receipt of order %d is %q, want %q", order, b.came[order], text)
		}
	}
	for order, text := range b.came {
		if b.done[order] == "" {
			return fmt.Errorf("a receipt came of order %d, which was not done: %q", order, text)
		}
	}
	for order := range b.accepted {
		return fmt.Errorf("order %d was acknowledged, and never came", order)
	}
	b.finished = b.orders
	clear(b.done)
	clear(b.came)
	return nil
}

// resolve finds how many of the transfers whose replies were lost are done, by the values
// that the accounts have now.
func (b *Books) resolve(values [accounts]string) error {
	for n := range len(b.unsure) + 1 {
		if b.state(b.unsure[:n]) != values {
			continue
		}
		for _, tr := range b.unsure[:n] {
			b.enter(tr)
		}
		b.counts.Took += n
		b.unsure = nil
		return nil
	}
	return fmt.Errorf("%w: the accounts hold %q; before the kill %q, and %d transfers were under way", lives.ErrBroken, values, b.state(nil), len(b.unsure))
}

// transaction is the TXN of a transfer between accounts that have these values.
func (tr *transfer) transaction(values, after [accounts]string) []byte {
	words := []string{"TXN",
		"IF", account(tr.from), "VALUE", values[tr.from],
		"PUBLISH", receipts, tr.text(),
		"SET", account(tr.from), after[tr.from],
		"SETTLE", strconv.Itoa(int(tr.packetID)),
		"IF", account(tr.to), "VALUE", values[tr.to],
		"SET", account(tr.to), after[tr.to],
	}
	return command(words)
}

func command(words []string) []byte {
	var args [][]byte
	for _, w := range words {
		args = append(args, []byte(w))
	}
	return protocol.AppendCommand(nil, args...)
}

// draw makes a transfer of an order.
func draw(rng *rand.Rand, order int, packetID uint16) transfer {
	two := rng.Perm(accounts)[:2]
	return transfer{order: order, from: two[0], to: two[1], amount: 1 + rng.IntN(50), packetID: packetID}
}
