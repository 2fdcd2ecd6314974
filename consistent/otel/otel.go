// Package consistentotel traces the messages of package consistent with OpenTelemetry. It is a
// module of its own, so that programs without tracing do not depend on OpenTelemetry.
//
//	p, err := consistent.New(conn, "range", consistent.WithMiddleware(consistentotel.Middleware()))
//
// Each attempt to process a message is a span of the kind consumer, the child of what the
// message carries in its user properties traceparent and tracestate (the CloudEvents extension
// for distributed tracing, in the form of W3C Trace Context). The outputs carry the span of the
// attempt that publishes them. Neither is part of any digest, so a duplicate in another trace is
// a duplicate.
//
// A sender that is no processor calls [Inject] before it publishes; the context of a handler
// (consistent.Context.Context) has the span, for calls of its own.
package consistentotel

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-mqtt/holdfast/consistent"
)

// Name is that of the tracer: its instrumentation scope.
const Name = "github.com/holdfast-mqtt/holdfast/consistent/otel"

// Option configures a [Middleware].
type Option func(*options)

type options struct{ provider trace.TracerProvider }

// WithTracerProvider has spans made by a provider; the default is the global one at the time of
// each message.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(o *options) { o.provider = p }
}

// Middleware makes a span of each attempt to process a message.
func Middleware(opts ...Option) consistent.Middleware {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return func(next consistent.Process) consistent.Process {
		return func(ctx context.Context, in *consistent.Incoming) error {
			provider := o.provider
			if provider == nil {
				provider = otel.GetTracerProvider()
			}
			ctx, span := provider.Tracer(Name).Start(Extract(ctx, in.Message), "process "+in.Message.Topic,
				trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
					attribute.String("messaging.system", "mqtt"),
					attribute.String("messaging.operation.type", "process"),
					attribute.String("messaging.destination.name", in.Message.Topic),
					attribute.String("messaging.message.id", in.MessageID),
					attribute.String("holdfast.handler", in.Handler),
					attribute.String("holdfast.key", in.Key),
				))
			defer span.End()
			in.Trace = make(consistent.UserProperties, 0, 2)
			format.Inject(ctx, (*carrier)(&in.Trace))
			err := next(ctx, in)
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			return err
		}
	}
}

// format is the only one whose properties are part of no digest.
var format propagation.TraceContext

// Inject has a message carry the span of ctx, in the place of what it carried.
func Inject(ctx context.Context, m *consistent.Message) {
	properties := make(consistent.UserProperties, 0, len(m.UserProperties)+2)
	for _, u := range m.UserProperties {
		if u.Name != "traceparent" && u.Name != "tracestate" {
			properties = append(properties, u)
		}
	}
	format.Inject(ctx, (*carrier)(&properties))
	m.UserProperties = properties
}

// Extract returns a context with the span that a message carries as that of another process;
// ctx itself if it carries none.
func Extract(ctx context.Context, m *consistent.Message) context.Context {
	return format.Extract(ctx, (*carrier)(&m.UserProperties))
}

// carrier implements propagation.TextMapCarrier.
type carrier consistent.UserProperties

func (c *carrier) Get(name string) string {
	value, _ := (*consistent.UserProperties)(c).Get(name)
	return value
}

func (c *carrier) Set(name, value string) {
	*c = append(*c, consistent.UserProperty{Name: name, Value: value})
}

func (c *carrier) Keys() (names []string) {
	for _, u := range *c {
		names = append(names, u.Name)
	}
	return names
}
