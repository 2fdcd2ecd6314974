package consistentotel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-mqtt/holdfast/consistent"
	"github.com/holdfast-mqtt/holdfast/consistent/consistenttest"
	consistentotel "github.com/holdfast-mqtt/holdfast/consistent/otel"
)

func provider(t testing.TB) (*sdktrace.TracerProvider, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { _ = p.Shutdown(context.Background()) })
	return p, recorder
}

// pass passes a message on, and fails as often as it says.
func pass(failures int) func(*consistent.Processor) {
	return func(p *consistent.Processor) {
		_ = consistent.Handle(p, "in", func(string) string { return "k" }, func(c *consistent.Context, s int, m string) (int, []consistent.Message, error) {
			if failures > 0 {
				failures--
				return s, nil, errors.New("not yet")
			}
			if !trace.SpanContextFromContext(c.Context()).IsValid() {
				return s, nil, consistent.Terminal(errors.New("the handler's context has no span"))
			}
			return s + 1, []consistent.Message{consistent.JSON("out", m)}, nil
		})
	}
}

// The trace goes from the sender through the processor to the output.
func TestTraceGoesThrough(t *testing.T) {
	t.Parallel()
	spans, recorder := provider(t)
	test := consistenttest.New(t, "p", pass(1), consistent.WithMiddleware(consistentotel.Middleware(consistentotel.WithTracerProvider(spans))))
	ctx, sending := spans.Tracer("test").Start(t.Context(), "send")
	m := consistenttest.Event("1", consistent.JSON("in", "x"))
	consistentotel.Inject(ctx, &m)
	test.Send(m)
	sending.End()
	if got := test.DeadLetters(); len(got) > 0 {
		t.Fatal(got)
	}
	var attempts []sdktrace.ReadOnlySpan
	for _, s := range recorder.Ended() {
		if s.SpanKind() == trace.SpanKindConsumer {
			attempts = append(attempts, s)
		}
	}
	if len(attempts) != 2 || attempts[0].Status().Code != codes.Error || attempts[1].Status().Code != codes.Unset || attempts[1].Name() != "process in" {
		t.Fatalf("spans %v, want a failed one and another", attempts)
	}
	for _, s := range attempts {
		if s.Parent().SpanID() != sending.SpanContext().SpanID() || s.SpanContext().TraceID() != sending.SpanContext().TraceID() {
			t.Errorf("span %v is not a child of the sender's", s.SpanContext())
		}
	}
	got := make(map[string]string)
	for _, a := range attempts[1].Attributes() {
		got[string(a.Key)] = a.Value.AsString()
	}
	if want := map[string]string{"messaging.system": "mqtt", "messaging.operation.type": "process", "messaging.destination.name": "in",
		"messaging.message.id": "event:4:test1", "holdfast.handler": "p", "holdfast.key": "k"}; !maps.Equal(got, want) {
		t.Errorf("attributes %v, want %v", got, want)
	}
	out := test.Published("out")[0]
	carried := trace.SpanContextFromContext(consistentotel.Extract(t.Context(), &out))
	if carried.SpanID() != attempts[1].SpanContext().SpanID() || !carried.IsRemote() {
		t.Errorf("the output carries the span %v, want that of the attempt, %v", carried, attempts[1].SpanContext())
	}
}

// A replay is another span, and its outputs are the same but for that.
func TestReplayInAnotherSpan(t *testing.T) {
	t.Parallel()
	spans, recorder := provider(t)
	test := consistenttest.Replay(t, "p", pass(0), []consistent.Message{consistenttest.Event("1", consistent.JSON("in", "x"))},
		consistent.WithMiddleware(consistentotel.Middleware(consistentotel.WithTracerProvider(spans))))
	if out, ended := test.Published("out"), recorder.Ended(); len(out) != 1 || len(ended) != 2 {
		t.Errorf("%d outputs, %d spans; want 1 and 2", len(out), len(ended))
	}
}

// Without a provider nothing is traced, and the trace of the input goes on.
func TestWithoutProvider(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	test := consistenttest.New(t, "p", pass(0), consistent.WithMiddleware(consistentotel.Middleware()))
	m := consistenttest.Event("1", consistent.JSON("in", "x"))
	m.UserProperties = append(m.UserProperties, consistent.UserProperty{Name: "traceparent", Value: parent}, consistent.UserProperty{Name: "tracestate", Value: "a=b"})
	test.Send(m)
	out := test.Published("out")
	if len(out) != 1 {
		t.Fatalf("published %v, dead letters %q", out, test.DeadLetters())
	}
	for name, want := range map[string]string{"traceparent": parent, "tracestate": "a=b"} {
		if got, _ := out[0].UserProperties.Get(name); got != want {
			t.Errorf("%s %q, want %q", name, got, want)
		}
	}
}

func TestInjectReplaces(t *testing.T) {
	t.Parallel()
	spans, _ := provider(t)
	m := consistent.Message{}
	for range 2 {
		ctx, span := spans.Tracer("test").Start(t.Context(), "send")
		consistentotel.Inject(ctx, &m)
		span.End()
		if got := trace.SpanContextFromContext(consistentotel.Extract(t.Context(), &m)); got.SpanID() != span.SpanContext().SpanID() || len(m.UserProperties) != 1 {
			t.Errorf("carries %v in %v, want %v", got, m.UserProperties, span.SpanContext())
		}
	}
}

func ExampleMiddleware() {
	broker := consistenttest.NewBroker()
	_, err := consistent.New(broker.Connect("range"), "range", consistent.WithMiddleware(consistentotel.Middleware()))
	fmt.Println(err)
	// Output: <nil>
}
