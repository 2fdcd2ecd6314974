package bridge

import (
	"bytes"

	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// rule says how messages of one direction pass.
type rule struct {
	filter   string // at the broker where they come from
	from, to string // prefixes
	qos      byte
}

// rules are those of one direction, in the order of the configuration.
type rules []rule

// rulesOf gives the rules of both directions.
func rulesOf(topics []Topic) (out, in rules) {
	for _, t := range topics {
		if t.Out {
			out = append(out, rule{t.LocalPrefix + t.Filter, t.LocalPrefix, t.RemotePrefix, t.QoS})
		}
		if t.In {
			in = append(in, rule{t.RemotePrefix + t.Filter, t.RemotePrefix, t.LocalPrefix, t.QoS})
		}
	}
	return out, in
}

// rename appends the name that a topic has at the other end, by the first rule that matches
// it; ok is false if none does.
func (r rules) rename(dst, name []byte) (renamed []byte, ok bool) {
	for i := range r {
		// A filter p/# matches p as well, which does not begin with a prefix p/.
		if rest, begins := bytes.CutPrefix(name, []byte(r[i].from)); begins && topic.Matches(r[i].filter, name) {
			dst = append(dst, r[i].to...)
			return append(dst, rest...), true
		}
	}
	return dst, false
}

// growth is by how many bytes a topic may become longer.
func (r rules) growth() (most int) {
	for i := range r {
		most = max(most, len(r[i].to)-len(r[i].from))
	}
	return most
}
