package client

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// getAllocations is how many allocations a GET takes in the client, from the call to the
// answer, with a deadline of its caller.
const getAllocations = 12

func TestGetAllocations(t *testing.T) {
	c, err := Dial(t.Context(), testserver.Shared().Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Set(ctx, t.Name(), make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, found, err := c.Get(ctx, t.Name()); err != nil || !found {
			t.Error(found, err)
		}
	}); n > getAllocations {
		t.Errorf("%v allocations, at most %d are wanted", n, getAllocations)
	}
}
