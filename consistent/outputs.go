package consistent

import (
	"cmp"
	"log/slog"
	"strings"

	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
)

// complete gives outputs the CloudEvents properties that they lack, and checks that they can be
// published: before the commit, for after it there is no way back.
func (p *Processor) complete(c *Context, f *task, outputs []Message) ([]Message, error) {
	d := event.Defaults{Input: c.message, ID: c.ID, Source: cmp.Or(p.o.source, strings.TrimPrefix(c.handler, "/")), Type: c.name, Time: c.now, Trace: f.Trace}
	return d.Outputs(outputs, f.handler.deadLetter, p.conn.MaxPacketSize())
}

func (p *Processor) log(f *task) *slog.Logger {
	return p.o.logger.With("processor", p.o.name, "handler", f.Handler, "key", f.Key, "message_id", f.MessageID, "topic", f.Message.Topic)
}
