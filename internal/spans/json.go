package spans

import (
	"encoding/hex"
	"strconv"
	"time"
)

// The messages of OTLP that a batch consists of, as JSON has them: identifiers in hexadecimal
// digits, numbers of 64 bits as strings.
type (
	document struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resource     `json:"resource"`
		ScopeSpans []scopeSpans `json:"scopeSpans"`
	}
	resource struct {
		Attributes []attribute `json:"attributes"`
	}
	scopeSpans struct {
		Scope scope  `json:"scope"`
		Spans []span `json:"spans"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	span struct {
		TraceID    string      `json:"traceId"`
		SpanID     string      `json:"spanId"`
		Parent     string      `json:"parentSpanId,omitempty"`
		TraceState string      `json:"traceState,omitempty"`
		Flags      uint32      `json:"flags"`
		Name       string      `json:"name"`
		Kind       int         `json:"kind"`
		Start      string      `json:"startTimeUnixNano"`
		End        string      `json:"endTimeUnixNano"`
		Attributes []attribute `json:"attributes"`
		Status     *status     `json:"status,omitempty"`
	}
	status struct {
		Code    int    `json:"code"`
		Message string `json:"message,omitempty"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value value  `json:"value"`
	}
	value struct {
		String string `json:"stringValue"`
	}
)

const (
	kindServer  = 2
	statusError = 2
	flagSampled = 1
)

func (e *Exporter) document(batch []*Span) document {
	spans := make([]span, len(batch))
	for i, s := range batch {
		spans[i] = s.json()
	}
	from := resource{[]attribute{
		{"service.name", value{"holdfast"}}, {"service.version", value{text(e.o.Version)}},
		{"service.instance.id", value{text(e.o.Node)}}, {"host.name", value{hostName()}},
	}}
	by := scope{Name: "holdfast/store", Version: text(e.o.Version)}
	return document{[]resourceSpans{{from, []scopeSpans{{by, spans}}}}}
}

func (s *Span) json() span {
	out := span{
		TraceID: hex.EncodeToString(s.at.trace[:]), SpanID: hex.EncodeToString(s.at.span[:]), TraceState: s.state, Flags: flagSampled,
		Name: s.name, Kind: kindServer, Start: nanos(s.began), End: nanos(s.ended),
		Attributes: []attribute{
			{"db.system.name", value{"holdfast"}}, {"db.operation.name", value{s.name}},
			{"holdfast.client", value{s.client}}, {"holdfast.outcome", value{s.outcome}},
		},
	}
	if s.parent != [8]byte{} {
		out.Parent = hex.EncodeToString(s.parent[:])
	}
	if s.key != "" {
		name := "holdfast.key_hash"
		if s.exporter.o.Keys == PlainKey {
			name = "holdfast.key"
		}
		out.Attributes = append(out.Attributes, attribute{name, value{s.key}})
	}
	if s.fault != "" {
		out.Status = &status{statusError, s.fault}
	}
	return out
}

func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
