package commit

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/client/txn"
)

// A change grows up to the limit of a packet; what would be more is not added.
func TestChangeAtItsLimit(t *testing.T) {
	t.Parallel()
	output := client.Message{Topic: "out", Payload: make([]byte, 100)}
	limit := uint32(2*output.SizeBytes()) + 5
	var c Change
	for i, state := range []string{"first", "12345"} {
		next := &Next{Message: Message{ID: string(rune('a' + i))}, State: []byte(state), Outputs: []client.Message{output}, Expiry: time.Hour}
		if err := c.Extend(next, limit); err != nil {
			t.Fatalf("message %d: %v", i+1, err)
		}
	}
	if err := c.Extend(&Next{State: []byte("123456")}, limit); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("a byte more: %v", err)
	}
	if c.Operations() != 2 || string(c.State) != "12345" || c.Expiry != time.Hour {
		t.Errorf("%+v, %d operations", c.Request, c.Operations())
	}
	if err := c.Extend(&Next{Delete: true, State: []byte("x")}, limit); err != nil || !c.Delete || c.State != nil || c.Expiry != 0 {
		t.Errorf("a deletion: %v, %+v", err, c.Request)
	}
	if err := c.Extend(&Next{State: make([]byte, 1<<20)}, 0); err != nil || c.Delete {
		t.Errorf("without a limit: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	operation := func(name, quota string, err error) error {
		return &client.Error{Op: "txn", Err: &txn.OperationError{Operation: name, Quota: quota, Err: err}}
	}
	for name, test := range map[string]struct {
		err   error
		final bool
	}{
		"a reserved topic":      {operation("PUBLISH", "", errors.New("the topic is reserved")), true},
		"no permission":         {operation("PUBLISH", "", client.ErrNotAuthorized), true},
		"too many outputs":      {operation("PUBLISH", QuotaOperations, client.ErrQuotaExceeded), true},
		"too many cancels":      {operation("CANCEL", QuotaOperations, client.ErrQuotaExceeded), true},
		"no room for a message": {operation("SET", QuotaOperations, client.ErrQuotaExceeded), false},
		"a full queue":          {operation("PUBLISH", "", client.ErrQueueFull), false},
		"no room to retain":     {operation("PUBLISH", "max-retained-messages", client.ErrQuotaExceeded), false},
		"no room for the state": {operation("SET", "max-keys", client.ErrQuotaExceeded), false},
		"another error":         {client.ErrNotConnected, false},
	} {
		if got := RefusesOutput(test.err); got != test.final {
			t.Errorf("%s: %v", name, got)
		}
	}
	var l Limit
	if l.Learn(operation("PUBLISH", "max-retained-messages", client.ErrQuotaExceeded), 100) || l.Most() != defaultOperations {
		t.Errorf("another quota: %d", l.Most())
	}
	for _, want := range []int{50, 25, 1, 1} {
		if !l.Learn(operation("SETTLE", QuotaOperations, client.ErrQuotaExceeded), max(2*want, 1)) || l.Most() != want {
			t.Errorf("%d, want %d", l.Most(), want)
		}
	}
}

// An error of the server names an operation of the transaction: whose that is follows from their
// order.
func TestOwnersOfOperations(t *testing.T) {
	t.Parallel()
	rs := []*Request{
		{Messages: make([]Message, 2), Outputs: make([]client.Message, 1), Settle: make([]client.Delivery, 2)},
		{Messages: make([]Message, 1)},
		{Messages: make([]Message, 1), Outputs: make([]client.Message, 3), Cancels: make([]string, 2), Settle: make([]client.Delivery, 1)},
	}
	want := []int{0, 1, 2, 3, 1, 1, 2, 3, 1, 2, 3, 1, 3, 3, 3, 3, 3, 1, 1, 3, 0}
	for n, owner := range want {
		if got := ownerOf(rs, n); got != owner {
			t.Errorf("operation %d is of request %d, want %d", n, got, owner)
		}
	}
	mixed := []*Request{
		{Done: make([]Done, 1)},
		{Messages: make([]Message, 1), Open: true},
		{Done: make([]Done, 1)},
		{Messages: make([]Message, 1), Open: true},
	}
	for n, owner := range []int{0, 2, 4, 2, 4, 2, 4, 1, 3, 0} {
		if got := ownerOf(mixed, n); got != owner {
			t.Errorf("with DONE, operation %d is of request %d, want %d", n, got, owner)
		}
	}
	for n, owner := range []int{2, 4, 0} {
		if got := writerOf(mixed, n); got != owner {
			t.Errorf("with DONE, condition %d is of request %d, want %d", n, got, owner)
		}
	}
	for n, of := range [][2]int{{1, 0}, {1, 1}, {2, 0}, {3, 0}, {0, 0}} {
		if request, message := onceOf(rs, n); request != of[0] || message != of[1] {
			t.Errorf("Once %d is message %d of request %d, want %v", n, message, request, of)
		}
	}
}
