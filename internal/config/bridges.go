package config

import (
	"math"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// bridgeNames are the settings of a bridge, topicNames those of one of its topics.
var (
	bridgeNames = []string{
		"name", "url", "version", "client-id", "username", "password-file", "keep-alive", "max-inflight", "queue-full",
		"tls-ca", "tls-cert", "tls-key", "tls-server-name", "topics",
	}
	topicNames = []string{"filter", "direction", "qos", "local-prefix", "remote-prefix"}
)

// bridges reads the list of bridges.
func (r *reader) bridges(n *yaml.Node) (all []bridge.Config, err error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil, r.at(n, "%s must be a list, each with a name:, a url: and topics:", BridgesKey)
	}
	if len(n.Content) > bridge.MaxBridges {
		return nil, r.at(n, "there are %d bridges, and there may be %d", len(n.Content), bridge.MaxBridges)
	}
	lines := map[string]int{}
	for _, item := range n.Content {
		b, err := r.bridge(item)
		if err != nil {
			return nil, err
		}
		if line, is := lines[b.Name]; is {
			return nil, r.at(item, "a bridge in line %d is named %s already", line, b.Name)
		}
		lines[b.Name] = item.Line
		all = append(all, b)
	}
	return all, nil
}

func (r *reader) bridge(n *yaml.Node) (b bridge.Config, err error) {
	err = r.mapping(n, "a bridge", func(key, value *yaml.Node) error { return r.bridgeSetting(&b, key, value) })
	if err != nil {
		return b, err
	}
	if err := b.Check(); err != nil {
		return b, r.at(n, "%w", err)
	}
	return b, nil
}

// bridgeSetting sets one of bridgeNames.
func (r *reader) bridgeSetting(b *bridge.Config, key, value *yaml.Node) (err error) {
	if key.Value == "topics" {
		return r.topics(b, value)
	}
	text, err := r.scalar(value, key.Value)
	if err != nil {
		return err
	}
	switch key.Value {
	case "name":
		b.Name = text
	case "url":
		b.URL = text
	case "version":
		switch text {
		case "5":
			b.Version = mqtt.V5
		case "3.1.1":
			b.Version = mqtt.V311
		default:
			return r.at(value, "%s: %q: want 5 or 3.1.1", key.Value, text)
		}
	case "client-id":
		b.ClientID = text
	case "username":
		b.Username = text
	case "password-file":
		b.PasswordFile = r.relative(text)
	case "keep-alive":
		if b.KeepAlive, err = units.ParseDuration(text); err != nil || b.KeepAlive <= 0 {
			return r.at(value, "%s: %q: want a duration, for example 60s", key.Value, text)
		}
	case "max-inflight":
		if b.MaxInflight, err = r.count(key, value, text, math.MaxUint16); err != nil {
			return err
		}
	case "queue-full":
		b.QueueFull = limits.QueueFull(text)
	case "tls-ca":
		b.TLS.CA = r.relative(text)
	case "tls-cert":
		b.TLS.Cert = r.relative(text)
	case "tls-key":
		b.TLS.Key = r.relative(text)
	case "tls-server-name":
		b.TLS.ServerName = text
	default:
		return r.at(key, "unknown setting %s of a bridge%s; there are %s", key.Value, meant(near(key.Value, bridgeNames, farthest)), strings.Join(bridgeNames, ", "))
	}
	return nil
}

// topics reads the list of a bridge's topics.
func (r *reader) topics(b *bridge.Config, n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return r.at(n, "topics must be a list, each with a filter: and a direction:")
	}
	if len(n.Content) > bridge.MaxTopics {
		return r.at(n, "there are %d topics, and a bridge may have %d", len(n.Content), bridge.MaxTopics)
	}
	for _, item := range n.Content {
		var t bridge.Topic
		if err := r.mapping(item, "a topic of a bridge", func(key, value *yaml.Node) error { return r.topicSetting(&t, key, value) }); err != nil {
			return err
		}
		if err := t.Check(); err != nil {
			return r.at(item, "%w", err)
		}
		b.Topics = append(b.Topics, t)
	}
	return nil
}

// topicSetting sets one of topicNames.
func (r *reader) topicSetting(t *bridge.Topic, key, value *yaml.Node) error {
	text, err := r.scalar(value, key.Value)
	if err != nil {
		return err
	}
	switch key.Value {
	case "filter":
		t.Filter = text
	case "direction":
		t.Out, t.In = text == "out" || text == "both", text == "in" || text == "both"
		if !t.Out && !t.In {
			return r.at(value, "%s: %q: want out, in or both", key.Value, text)
		}
	case "qos":
		if len(text) != 1 || text < "0" || text > "2" {
			return r.at(value, "%s: %q: want 0, 1 or 2", key.Value, text)
		}
		t.QoS = text[0] - '0'
	case "local-prefix":
		t.LocalPrefix = text
	case "remote-prefix":
		t.RemotePrefix = text
	default:
		return r.at(key, "unknown setting %s of a topic; there are %s", key.Value, strings.Join(topicNames, ", "))
	}
	return nil
}
