package consistent

import (
	"log/slog"
	"strings"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// complete gives outputs the CloudEvents properties that they lack, and checks that they can be
// published: before the commit, for after it there is no way back.
func (p *Processor) complete(c *Context, f *task, outputs []Message) ([]Message, error) {
	d := event.Defaults{Input: c.message, ID: c.ID, Source: p.o.source, Type: c.name, Time: c.now, Trace: f.Trace}
	if d.Trace == nil {
		d.Trace = event.Trace(f.Message)
	}
	if d.Source == "" {
		d.Source = strings.TrimPrefix(c.handler, "/")
	}
	return d.Outputs(outputs, f.handler.deadLetter, p.conn.MaxPacketSize())
}

func (p *Processor) log(f *task) *slog.Logger {
	return p.o.logger.With("processor", p.o.name, "handler", f.Handler, "key", f.Key, "message_id", f.MessageID, "topic", f.Message.Topic)
}
