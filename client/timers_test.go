package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver"
)

// A message is delivered later; until then it is listed and can be cancelled.
func TestTimers(t *testing.T) {
	t.Parallel()
	srv := testserver.Start(t)
	ctx := within(t, time.Minute)
	c, s := dial(t, srv.Addr), dialSession(t, srv.Addr)
	in := subscribe(t, s, "out")
	const many = 1500 // more than a page
	due := time.Now().Add(time.Hour)
	for i := range many {
		if err := s.Publish(ctx, text("out", "never").At(due).WithTimerID(fmt.Sprintf("id/%04d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Publish(ctx, text("out", "never").After(time.Hour).After(10*time.Millisecond).WithTimerID("x").WithTimerID("soon")); err != nil {
		t.Fatal(err)
	}
	if d := in.next(t); string(d.Payload) != "never" || len(d.UserProperties) != 1 || d.UserProperties[0].Value != "soon" {
		t.Errorf("got %+v", d.Message)
	}
	i := 0
	for timer, err := range c.Timers(ctx, "id/") {
		if err != nil {
			t.Fatal(err)
		}
		if timer.ID != fmt.Sprintf("id/%04d", i) || timer.Topic != "out" || timer.Due.UnixMilli() != due.UnixMilli() {
			t.Fatalf("number %d is %+v", i, timer)
		}
		i++
	}
	if i != many {
		t.Errorf("%d timers are listed", i)
	}
	for _, want := range []bool{true, false} {
		if found, err := c.CancelTimer(ctx, "id/0007"); found != want || err != nil {
			t.Errorf("cancelled: %v, %v; want %v", found, err, want)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 257)} {
		if _, err := c.CancelTimer(ctx, id); !errors.Is(err, client.ErrInvalidOption) {
			t.Errorf("an ID of %d bytes: %v", len(id), err)
		}
	}
	var refused *client.RejectedError
	tooFar := []client.Message{text("out", "x").After(400 * 24 * time.Hour), text("out", "x").After(1<<63 - 1), text("out", "x").At(time.Unix(1<<62, 0))}
	for _, m := range tooFar {
		if err := s.Publish(ctx, m); !errors.As(err, &refused) || !strings.Contains(err.Error(), "--max-delay") {
			t.Errorf("%v is too far off: %v", m.UserProperties, err)
		}
	}
}
