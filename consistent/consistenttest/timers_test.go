package consistenttest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// visits is a saga: a visitor that is not heard of for an hour has left. What is said of it sets
// the timer again, and a goodbye cancels it.
func visits(p *consistent.Processor) {
	key := func(m *consistent.Message) string { return string(m.Payload) }
	timer := func(key string) string { return "visits/" + key }
	type visit struct{ Seen, Left int }
	name := consistent.WithName("visits")
	codec := consistent.WithMessageCodec(consistent.BytesCodec{})
	_ = consistent.HandleByMessage(p, "seen", key, func(c *consistent.Context, v visit, m []byte) (visit, []consistent.Message, error) {
		v.Seen++
		left := consistent.Message{Topic: "silent", Payload: m}
		return v, []consistent.Message{consistent.After(time.Hour, left.WithTimerID(timer(c.Key()))), consistent.JSON("counts", v.Seen)}, nil
	}, name, codec)
	_ = consistent.HandleByMessage(p, "goodbye", key, func(c *consistent.Context, v visit, _ []byte) (visit, []consistent.Message, error) {
		return v, []consistent.Message{consistent.CancelTimer(timer(c.Key())), consistent.JSON("gone", c.Key())}, nil
	}, name, codec)
	_ = consistent.HandleByMessage(p, "silent", key, func(_ *consistent.Context, v visit, _ []byte) (visit, []consistent.Message, error) {
		v.Left++
		return v, nil, nil
	}, name, codec)
	_ = consistent.HandleByMessage(p, "nameless", key, func(*consistent.Context, visit, []byte) (visit, []consistent.Message, error) {
		return visit{}, []consistent.Message{consistent.CancelTimer("")}, nil
	}, name, codec)
}

func said(id, topic, of string) consistent.Message {
	return consistenttest.Event(id, consistent.Message{Topic: topic, Payload: []byte(of)})
}

// Timers are set, replaced, cancelled and delivered on both paths.
func TestTimers(t *testing.T) {
	t.Parallel()
	for path, opts := range map[string][]consistent.Option{"transactions": nil, "state-based": {consistent.Replay()}} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			test := consistenttest.New(t, "test", visits, opts...)
			// In one lane, so that messages may share a transaction.
			test.Send(said("1", "seen", "ann"), said("2", "seen", "ann"), said("3", "seen", "bob"), said("4", "goodbye", "bob"), said("5", "seen", "eve"))
			begin := test.Broker.Now()
			if got := test.Broker.Timers(); len(got) != 2 || got[0].Topic != "silent" || !got[0].Due.Equal(begin.Add(time.Hour)) {
				t.Errorf("timers %v", got)
			}
			test.Broker.Advance(40 * time.Minute)
			test.Send(said("6", "seen", "ann"))
			test.Broker.Advance(40 * time.Minute)
			test.Send()
			if got := silent(test); !slices.Equal(got, []string{"eve"}) {
				t.Errorf("silent after 80 minutes: %q", got)
			}
			test.Send(said("7", "goodbye", "ann"), said("7", "goodbye", "ann"), said("8", "goodbye", "eve"))
			test.Broker.Advance(2 * time.Hour)
			test.Send()
			if got := silent(test); !slices.Equal(got, []string{"eve"}) {
				t.Errorf("silent after the goodbye: %q", got)
			}
			var v struct{ Seen, Left int }
			if test.State("visits", "eve", &v); v.Seen != 1 || v.Left != 1 {
				t.Errorf("the visit of eve: %+v", v)
			}
			test.Send(said("9", "nameless", "x"))
			if got := test.DeadLetters(); len(got) != 1 {
				t.Errorf("dead letters %q", got)
			}
		})
	}
}

func silent(test *consistenttest.Test) (who []string) {
	for _, m := range test.Published("silent") {
		who = append(who, string(m.Payload))
	}
	return who
}

// A timer may be due later than messages are remembered: its age counts from there.
func TestTimerThatIsLongerThanMessagesAreRemembered(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "test", func(p *consistent.Processor) {
		_ = consistent.Handle(p, "bills", func(string) string { return "k" }, func(c *consistent.Context, n int, _ string) (int, []consistent.Message, error) {
			return n, []consistent.Message{consistent.At(c.Now().Add(30*24*time.Hour), consistent.JSON("reminders", "pay"))}, nil
		}, consistent.WithName("bills"))
		_ = consistent.Handle(p, "reminders", func(string) string { return "k" }, func(_ *consistent.Context, n int, _ string) (int, []consistent.Message, error) {
			return n + 1, nil, nil
		}, consistent.WithName("reminders"))
	})
	test.Send(consistenttest.Event("1", consistent.JSON("bills", "b")))
	test.Broker.Advance(31 * 24 * time.Hour)
	test.Send()
	var reminded int
	if test.State("reminders", "k", &reminded); reminded != 1 || len(test.DeadLetters()) > 0 {
		t.Errorf("reminded %d times, dead letters %q", reminded, test.DeadLetters())
	}
}

// On the state-based path a timer that an instance has ordered, and not set before it crashed, is
// not set any more when another instance has processed its cancelling meanwhile.
func TestTimerThatIsCancelledBeforeItIsSet(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "test", visits, consistent.Replay())
	test.Instance().CrashAtCommit()
	test.Broker.Publish(said("1", "seen", "ann"))
	<-test.Instance().Ended()
	other := test.Start("other", visits, consistent.Replay())
	test.Broker.Publish(said("2", "goodbye", "ann"))
	for deadline := time.Now().Add(time.Minute); len(test.Published("gone")) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the goodbye is not processed")
		}
	}
	other.Stop()
	if got := test.Broker.Timers(); len(got) > 0 {
		t.Fatalf("timers before the replay: %v", got)
	}
	test.Start("processor", visits, consistent.Replay())
	test.Send()
	if got := test.Published("counts"); len(got) != 1 {
		t.Errorf("the replay published %v", got)
	}
	if got := test.Broker.Timers(); len(got) > 0 {
		t.Errorf("the replay has set %v", got)
	}
}

// Each order of a timer is processed twice, and differs in nothing.
func TestReplayOfTimers(t *testing.T) {
	t.Parallel()
	test := consistenttest.Replay(t, "test", visits, []consistent.Message{said("1", "seen", "ann"), said("2", "seen", "bob"), said("3", "goodbye", "ann")})
	if got := test.Broker.Timers(); len(got) != 1 || got[0].ID != "visits/bob" {
		t.Errorf("timers %v", got)
	}
	test.Broker.Advance(2 * time.Hour)
	test.Send()
	if got := silent(test); !slices.Equal(got, []string{"bob"}) {
		t.Errorf("silent: %q", got)
	}
}
