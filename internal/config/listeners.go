package config

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
)

// listenerNames are the settings of a listener.
var listenerNames = []string{
	"url", "anonymous", "proxy-protocol", "max-connections", "ws-origin",
	"tls-cert", "tls-key", "tls-client-ca", "tls-crl", "tls-client-auth", "tls-min-version",
}

// listeners reads the list of listeners.
func (r *reader) listeners(n *yaml.Node) (all []listen.Config, err error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil, r.at(n, "%s must be a list, each with an url: - url: mqtts://0.0.0.0:8883", ListenersKey)
	}
	for _, item := range n.Content {
		l, err := r.listener(item)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

func (r *reader) listener(n *yaml.Node) (l listen.Config, err error) {
	named := false
	lines := map[string]*yaml.Node{}
	err = r.mapping(n, "a listener", func(key, value *yaml.Node) error {
		lines[key.Value] = key
		named = named || key.Value == "url"
		return r.listenerSetting(&l, key, value)
	})
	switch {
	case err != nil:
		return l, err
	case !named:
		return l, r.at(n, "the listener has no url, for example mqtts://0.0.0.0:8883")
	}
	for name, key := range lines {
		if strings.HasPrefix(name, "tls-") && !l.URL.IsTLS() {
			return l, r.at(key, "%s is for mqtts:// and wss://, and the listener is %s", name, l.URL)
		}
		if name == "ws-origin" && !l.URL.IsWebSocket() {
			return l, r.at(key, "%s is for ws:// and wss://, and the listener is %s", name, l.URL)
		}
	}
	return l, nil
}

// listenerSetting sets one of listenerNames.
func (r *reader) listenerSetting(l *listen.Config, key, value *yaml.Node) (err error) {
	if key.Value == "ws-origin" && value.Kind == yaml.SequenceNode {
		for _, n := range value.Content {
			origin, err := r.scalar(n, key.Value)
			if err != nil {
				return err
			}
			l.AllowOrigins = append(l.AllowOrigins, origin)
		}
		return nil
	}
	text, err := r.scalar(value, key.Value)
	if err != nil {
		return err
	}
	boolean := func(to *bool) error {
		if text != "true" && text != "false" {
			return r.at(value, "%s: %q: want true or false", key.Value, text)
		}
		*to = text == "true"
		return nil
	}
	file := func(to *string) error {
		*to = r.relative(text)
		return nil
	}
	word := func(to *string, words ...string) error {
		for _, w := range words {
			if text == w {
				*to = text
				return nil
			}
		}
		return r.at(value, "%s: %q: want %s", key.Value, text, strings.Join(words, " or "))
	}
	switch key.Value {
	case "url":
		if l.URL, err = listen.ParseURL(text); err != nil {
			return r.at(value, "%w", err)
		}
		return nil
	case "anonymous":
		return boolean(&l.Anonymous)
	case "proxy-protocol":
		return boolean(&l.Proxy)
	case "max-connections":
		l.MaxConnections, err = r.count(key, value, text, 1_000_000_000)
		return err
	case "ws-origin":
		l.AllowOrigins = []string{text}
		return nil
	case "tls-cert":
		return file(&l.TLS.Cert)
	case "tls-key":
		return file(&l.TLS.Key)
	case "tls-client-ca":
		return file(&l.TLS.ClientCA)
	case "tls-crl":
		return file(&l.TLS.CRL)
	case "tls-client-auth":
		return word(&l.TLS.ClientAuth, certs.Required, certs.Optional)
	case "tls-min-version":
		return word(&l.TLS.MinVersion, "1.2", "1.3")
	}
	return r.at(key, "unknown setting %s of a listener; there are %s", key.Value, strings.Join(listenerNames, ", "))
}
