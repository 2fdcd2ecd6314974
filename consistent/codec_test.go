package consistent_test

import (
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
)

// Bytes pass through a handler as they are.
func TestBytesCodec(t *testing.T) {
	t.Parallel()
	raw := consistent.BytesCodec{}
	test := consistenttest.Replay(t, "raw", func(p *consistent.Processor) {
		_ = consistent.Handle(p, "in", sameKey[[]byte], func(c *consistent.Context, s, m []byte) ([]byte, []consistent.Message, error) {
			salt, err := consistent.CaptureWith(c, "salt", raw, func() ([]byte, error) { return []byte{0xFE}, nil })
			s = append(append(s, m...), salt...)
			return s, []consistent.Message{consistent.Encoded("out", raw, s)}, err
		}, consistent.WithStateCodec(raw), consistent.WithMessageCodec(raw))
	}, []consistent.Message{
		consistenttest.Event("1", consistent.Message{Topic: "in", Payload: []byte{0xFF, 0}}),
		consistenttest.Event("2", consistent.Message{Topic: "in", Payload: []byte("x")}),
	})
	got := test.Published("out")
	if len(got) != 2 || string(got[1].Payload) != "\xFF\x00\xFEx\xFE" || got[1].ContentType != "" || got[1].UTF8 {
		t.Errorf("published %v", got)
	}
	if state, _ := test.Broker.State("raw/k"); string(state) != "\xFF\x00\xFEx\xFE" {
		t.Errorf("the state is %q", state)
	}
}

// A program that is no processor sends an event.
func ExampleEvent() {
	m, err := consistent.Event("shop", "order-4711", "com.example.ordered", map[string]int{"apples": 3})
	if err != nil {
		log.Fatal(err)
	}
	m.Topic = "orders/4711"
	id, _ := m.UserProperties.Get("id")
	fmt.Println(m.Topic, id, string(m.Payload))
	_, err = consistent.Event("shop", "", "com.example.ordered", nil)
	fmt.Println(err)
	// Output:
	// orders/4711 order-4711 {"apples":3}
	// event: invalid option: its id is "": give a text of MQTT that is not empty
}

func TestEvent(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(0)
	m, err := consistent.Event("s", "1", "", consistent.Encoded("a", consistent.JSONCodec[typed]{}, typed{}))
	at, _ := m.UserProperties.Get("time")
	sent, parseErr := time.Parse(time.RFC3339Nano, at)
	if err != nil || parseErr != nil || sent.Before(before) || sent.After(time.Now()) || m.Topic != "a" || m.ContentType != "application/json" || !m.UTF8 {
		t.Errorf("%+v, %v, %v", m, err, parseErr)
	}
	if kind, _ := m.UserProperties.Get("type"); kind != "com.example.typed" || len(m.UserProperties) != 5 {
		t.Errorf("type %q among %v, want that of the value, once", kind, m.UserProperties)
	}
	for name, wrong := range map[string]func() (consistent.Message, error){
		"source": func() (consistent.Message, error) { return consistent.Event("", "1", "t", 1) },
		"id":     func() (consistent.Message, error) { return consistent.Event("s", "a\x00b", "t", 1) },
		"type":   func() (consistent.Message, error) { return consistent.Event("s", "1", "", 1) },
		"chan":   func() (consistent.Message, error) { return consistent.Event("s", "1", "t", make(chan int)) },
	} {
		if _, err := wrong(); !errors.Is(err, client.ErrInvalidOption) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type typed struct{}

func (typed) EventType() string { return "com.example.typed" }

func TestReply(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "p", func(p *consistent.Processor) {
		_ = consistent.Handle(p, "in", sameKey[string], func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
			reply, ok := consistent.Reply(c, strings.ToUpper(m))
			if !ok {
				return s + 1, nil, nil
			}
			return s + 1, []consistent.Message{reply}, nil
		})
	})
	m := consistent.JSON("in", "a")
	m.ResponseTopic, m.CorrelationData = "replies", []byte("7")
	test.Send(m, consistenttest.Event("1", consistent.JSON("in", "b")))
	got := test.Published("replies")
	if len(got) != 1 || string(got[0].Payload) != `"A"` || string(got[0].CorrelationData) != "7" || len(test.DeadLetters()) > 0 {
		t.Errorf("replies %v, dead letters %q", got, test.DeadLetters())
	}
}

// What a handler can get wrong about its outputs makes a dead letter of the input, and
// nothing is stored or published.
func TestOutputsThatAreRefused(t *testing.T) {
	t.Parallel()
	for want, output := range map[string]consistent.Message{
		"that is the handler's dead-letter topic": consistent.JSON("dead-letters/h", 1),
		"CloudEvents id is empty":                 {Topic: "out", UserProperties: consistent.UserProperties{{Name: "id", Value: ""}}},
		"dead-letter topic; for a dead letter of": consistent.JSON("$delayed/60/dead-letters/h", 1),
		"chan int cannot be encoded":              consistent.JSON("out", make(chan int)),
		"timer-id must have from 1 to 256 bytes":  consistent.After(time.Hour, consistent.JSON("out", 1).WithTimerID("")),
		"cancelled has 0 bytes":                   consistent.CancelTimer(""),
		"must be a number of milliseconds":        {Topic: "out", UserProperties: consistent.UserProperties{{Name: "holdfast-deliver-after", Value: "soon"}}},
	} {
		for path, opts := range map[string][]consistent.Option{"transactions": nil, "state-based": {consistent.Replay()}} {
			t.Run(want+" "+path, func(t *testing.T) {
				t.Parallel()
				test := consistenttest.New(t, "h", func(p *consistent.Processor) {
					_ = consistent.Handle(p, "in", sameKey[int], func(_ *consistent.Context, s, _ int) (int, []consistent.Message, error) {
						return s + 1, []consistent.Message{consistent.JSON("out", "first"), output}, nil
					})
				}, opts...)
				test.Send(consistenttest.Event("1", consistent.JSON("in", 1)))
				if got := test.DeadLetters(); len(got) != 1 || !strings.Contains(got[0], want) || !strings.Contains(got[0], "output 2 of 2") {
					t.Errorf("dead letters %q", got)
				}
				if _, stored := test.Broker.State("h/k"); stored || len(test.Published("out")) > 0 {
					t.Error("there is a state, or an output")
				}
			})
		}
	}
}

// A message whose ID is empty has none.
func TestEmptyID(t *testing.T) {
	t.Parallel()
	test := consistenttest.New(t, "bank", func(p *consistent.Processor) { _ = consistent.Handle(p, "deposits/+", accountOf, book) })
	test.Send(message("", deposit{"ann", 1}))
	if got := test.DeadLetters(); len(got) != 1 || !strings.Contains(got[0], "no identity") {
		t.Errorf("dead letters %q", got)
	}
}

// Outputs carry the trace context of their input, and a duplicate that was sent in another
// trace is a duplicate.
func TestTraceContext(t *testing.T) {
	t.Parallel()
	b := consistenttest.NewBroker()
	traced := func(trace string) consistent.Message {
		m := message("1", deposit{"ann", 10})
		m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "traceparent", Value: trace}, consistent.UserProperty{Name: "tracestate", Value: "a=b"})
		return m
	}
	dies(t, b, traced("00-aa-bb-01"), func(c consistent.Conn) *consistent.Processor { return bank(t, c) })
	// The message that the processor had comes again; behind it, the sender's own duplicate.
	c := &memory{Conn: b.Connect("p")}
	c.done = func(consistent.DoneRequest, func() (bool, error)) (bool, error) { return false, errInjected } // so that each is replayed
	b.Publish(traced("00-cc-dd-01"))
	run(t, bank(t, c))
	settle(t, b)
	b.Publish(traced("00-ee-ff-01"))
	settle(t, b)
	wantDeadLetters(t, b)
	var traces []string
	for _, m := range b.Published("balances/ann") {
		trace, _ := m.UserProperties.Get("traceparent")
		state, _ := m.UserProperties.Get("tracestate")
		traces = append(traces, trace+" "+state)
	}
	if len(traces) < 2 || traces[0] != "00-aa-bb-01 a=b" || traces[len(traces)-1] != "00-ee-ff-01 a=b" {
		t.Errorf("traces of the outputs: %q", traces)
	}
}
