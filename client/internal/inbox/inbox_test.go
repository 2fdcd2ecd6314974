package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-mqtt/holdfast/client/internal/inbox"
)

var errClosed = errors.New("closed")

func TestMessagesAtQoS0AreBounded(t *testing.T) {
	t.Parallel()
	const most, connection = 3, "first"
	b := inbox.New[string, int](most, errClosed)
	b.Open(connection)
	for i := range most {
		if !b.Put(connection, i, false) {
			t.Fatalf("message %d of %d was dropped", i+1, most)
		}
	}
	if b.Put(connection, 90, false) || !b.Put(connection, 91, false) {
		t.Error("the first message beyond the bound, and only that, is to be told")
	}
	if !b.Put(connection, 92, true) {
		t.Error("a message at QoS 1 was dropped, which the Receive Maximum bounds")
	}
	for _, want := range []int{0, 1, 2, 92} {
		if d, err := b.Take(t.Context(), nil); d != want || err != nil {
			t.Errorf("%d, %v; want %d", d, err, want)
		}
	}
	if !b.Put(connection, 5, false) {
		t.Error("dropped, and there is room again")
	}
}

func TestMessagesEndWithTheirConnection(t *testing.T) {
	t.Parallel()
	b := inbox.New[string, int](1, errClosed)
	b.Open("first")
	b.Put("first", 1, true)
	b.Open("second")
	b.Put("first", 2, true)
	b.Put("second", 3, true)
	if d, err := b.Take(t.Context(), nil); d != 3 || err != nil {
		t.Errorf("%d, %v; want that of the second connection", d, err)
	}
	b.Put("second", 4, true)
	b.Clear()
	done := make(chan struct{})
	close(done)
	if _, err := b.Take(t.Context(), done); !errors.Is(err, errClosed) {
		t.Errorf("%v after the end", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Take(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v after the end of the context", err)
	}
}
