package serve

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/config"
	"github.com/holdfast-mqtt/holdfast/internal/engine"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
)

// contradictions are pairs of flags of which the first must not be above the second. A
// first one that isn't given follows the second, or is of no importance beside it. The
// default of a second one counts where contradiction names it: a first one above it could
// never be reached. A client's share above the default of all has no effect, and no harm.
var contradictions = [][2]string{
	{"remember", "max-remember"},
	{"max-queued-messages", "max-total-queued-messages"},
	{"max-queued-bytes", "max-total-queued-bytes"},
	{"max-key-size", "max-packet-size"},
	{"max-connect-size", "max-packet-size"},
	{"max-packet-size", "max-memory"},
	{"output-buffer", "max-memory"},
	{"max-queued-memory", "max-memory"},
	{"webhook-remember-bytes", "max-memory"},
	{"cluster-relay-memory", "max-memory"},
	{"loopback-connections", "max-connections"},
	{"reserved-connections", "max-connections"},
	{"max-sessions-per-address", "max-sessions"},
	{"max-keys-per-client", "max-keys"},
	{"max-key-bytes-per-client", "max-store-bytes"},
	{"max-retained-per-client", "max-retained-messages"},
	{"max-retained-bytes-per-client", "max-retained-bytes"},
	{"max-timers-per-client", "max-timers"},
	{"max-timer-bytes-per-client", "max-timer-bytes"},
}

// contradiction refuses settings of which one makes the other impossible.
func (s *settings) contradiction() error {
	f, l := s.flags, limits.Default()
	defaults := map[string]int64{
		"max-remember":              int64(engine.DefaultMaxRemember),
		"max-total-queued-messages": int64(l.MaxTotalQueued),
		"max-total-queued-bytes":    l.MaxTotalQueuedBytes,
		"max-packet-size":           int64(l.MaxPacketSize),
	}
	value := func(name string) (n int64, text string) {
		flag := f.Lookup(name)
		if !flag.Changed {
			n = defaults[name]
		} else if n, _ = strconv.ParseInt(flag.Value.String(), 10, 64); flag.Value.Type() == "duration" {
			d, _ := time.ParseDuration(flag.Value.String())
			n = int64(d)
		}
		switch flag.Value.Type() {
		case "duration":
			return n, time.Duration(n).String()
		case "BYTES":
			return n, flags.ExactBytes(n)
		}
		return n, strconv.FormatInt(n, 10)
	}
	for _, pair := range contradictions {
		low, high := pair[0], pair[1]
		if !f.Changed(low) {
			continue
		}
		n, text := value(low)
		most, mostText := value(high)
		if n > 0 && most > 0 && n > most {
			return fmt.Errorf("%s %s is more than %s %s: lower the one or raise the other", s.loaded.Name(low), text, s.loaded.Name(high), mostText)
		}
	}
	return nil
}

// bridgeToItself refuses a bridge whose URL is that of a listener, as far as the settings say so: names of
// hosts may lead anywhere.
func (s *settings) bridgeToItself() error {
	listeners, err := s.cfg.ListenConfigs()
	if err != nil {
		return nil // what is wrong with them is an error of its own
	}
	for _, b := range s.cfg.Bridges {
		for _, text := range b.URLs() {
			if own := ownListener(text, listeners); own != nil {
				return fmt.Errorf("%s: the url %s of bridge %s is this server's own listener %s: name the other broker's", s.loaded.Name(config.BridgesKey), secrets.URL(text), b.Name, own)
			}
		}
	}
	return nil
}

// ownListener is the URL of the listener to which a bridge's leads; nil: to none, as far as they say so.
func ownListener(text string, listeners []listen.Config) fmt.Stringer {
	to, err := url.Parse(text)
	if err != nil {
		return nil
	}
	ip, port := parseIP(to.Hostname()), to.Port()
	if port == "" && to.Scheme == listen.MQTT {
		port = "1883"
	}
	for _, l := range listeners {
		host, at, _ := net.SplitHostPort(l.URL.Host)
		own := parseIP(host)
		if ip != nil && at == port && (own.Equal(ip) || (host == "" || own.IsUnspecified()) && ip.IsLoopback()) {
			return l.URL
		}
	}
	return nil
}

// parseIP is the address that a host is; nil: it is a name.
func parseIP(host string) net.IP {
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	return net.ParseIP(host)
}

// unusedTLS refuses the files of TLS if no listener uses TLS: an operator who gives them
// expects connections to be encrypted.
func (s *settings) unusedTLS() error {
	if s.cfg.Admin != "" || slices.ContainsFunc(s.cfg.Listeners, func(l listen.Config) bool { return l.URL.IsTLS() }) {
		return nil
	}
	for _, text := range s.cfg.Listen {
		if u, err := listen.ParseURL(text); err != nil || u.IsTLS() {
			return nil // what is wrong with a URL is an error of its own
		}
	}
	for _, name := range []string{"tls-cert", "tls-key", "tls-client-ca", "tls-crl"} {
		if s.flags.Lookup(name).Value.String() != "" {
			return fmt.Errorf("--%s is for listeners of mqtts:// and wss://, and for --admin, and there is none: have one, for example --listen mqtts://0.0.0.0:8883, or leave it out", name)
		}
	}
	return nil
}
