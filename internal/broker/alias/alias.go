// Package alias has the topic aliases by which a client publishes.
package alias

import (
	"unsafe"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// Errors that end the connection of the client.
var (
	errRange   = &mqtt.Error{Code: mqtt.TopicAliasInvalid, Reason: "the topic alias is above the server's Topic Alias Maximum"}
	errUnknown = &mqtt.Error{Code: mqtt.ProtocolError, Reason: "the topic alias stands for no topic yet"}
	errBytes   = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "the topics of this connection's aliases take more bytes than they may (--max-alias-bytes)"}
	errMemory  = &mqtt.Error{Code: mqtt.QuotaExceeded, Reason: "the server has no memory for the topic of an alias (--max-memory)"}
)

// Topics are the topics that a connection's aliases stand for. The zero value has none. It
// belongs to one goroutine.
type Topics struct {
	topics []string // by alias, from 1; empty: it stands for none
	bytes  int32    // of topics, which the pool is charged with
}

// Resolve stores the topic of a topic alias, or, if the publish has no topic, puts in
// the one that the alias stands for [MQTT-3.3.2-7 and following].
func (a *Topics) Resolve(p *mqtt.Publish, l *limits.Limits, pool *memory.Pool) error {
	if !p.Props.HasTopicAlias {
		return nil
	}
	n := int(p.Props.TopicAlias)
	if n > l.TopicAliasMaximum {
		return errRange
	}
	if len(p.Topic) > 0 {
		for len(a.topics) < n {
			a.topics = append(a.topics, "")
		}
		if known := a.topics[n-1]; known != string(p.Topic) {
			more := int32(len(p.Topic) - len(known))
			if int(a.bytes+more) > l.MaxAliasBytes {
				return errBytes
			}
			if !pool.Take(memory.Subscriptions, int64(max(0, more))) {
				return errMemory
			}
			pool.Charge(memory.Subscriptions, int64(min(0, more)))
			a.bytes += more
			a.topics[n-1] = string(p.Topic)
		}
		return nil
	}
	if n > len(a.topics) || a.topics[n-1] == "" {
		return errUnknown
	}
	p.Topic = unsafe.Slice(unsafe.StringData(a.topics[n-1]), len(a.topics[n-1])) // which is not written to
	return nil
}

// Topic returns the topic that an alias stands for, empty if there is none.
func (a *Topics) Topic(n uint16) string {
	if n == 0 || int(n) > len(a.topics) {
		return ""
	}
	return a.topics[n-1]
}

// Release forgets all.
func (a *Topics) Release(pool *memory.Pool) {
	pool.Credit(memory.Subscriptions, int64(a.bytes))
	*a = Topics{}
}
