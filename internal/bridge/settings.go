package bridge

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt/wire"
	"github.com/holdfast-mqtt/holdfast/internal/secrets"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Config says what a bridge is. Zero fields mean their default.
type Config struct {
	Name         string           // in logs and figures; the client ID at this broker is ClientPrefix and this
	URL          string           // of the other broker: mqtt, mqtts, ws or wss; of a cluster several, with commas between them
	Version      mqtt.Version     // V5 (default) or V311
	ClientID     string           // at the other broker; empty: made of the machine's name and Name
	Username     string           // at the other broker; empty: none
	PasswordFile string           // the password is what it has in its first line; empty: none
	TLS          TLS              // of mqtts and wss
	KeepAlive    time.Duration    // at the other broker; whole seconds; default 60 s
	MaxInflight  int              // messages of QoS 1 and 2 that may be under way in each direction, from 1 to 65535; default 100, or 20 with MQTT 3.1.1, and never more than the brokers announce
	QueueFull    limits.QueueFull // what happens to messages for a bridge whose queue is full; empty: Reject
	Topics       []Topic          // needed
}

// TLS are files in PEM form, and a name.
type TLS struct {
	CA         string // authorities that may vouch for the other broker; empty: those of the system
	Cert, Key  string // what the bridge shows; empty: nothing
	ServerName string // that the other broker's certificate must have; empty: the URL's host
}

// Topic is one rule: which messages pass, and how their topics change.
type Topic struct {
	Filter       string // topic filter, behind the prefixes
	Out, In      bool   // from this broker to the other; from the other to this one
	QoS          byte   // at most
	LocalPrefix  string // of the topics at this broker
	RemotePrefix string // of the topics at the other broker
}

// ClientPrefix begins the client IDs, and the user names for the policy, of bridges at this broker.
const ClientPrefix = "bridge/"

// Bounds of the settings.
const (
	MaxBridges = 64
	MaxTopics  = 1000 // of a bridge
	maxName    = 64   // bytes

	DefaultKeepAlive   = time.Minute
	DefaultMaxInflight = 100
	// DefaultMaxInflightV311 is what Mosquitto takes from a client that cannot be told so.
	DefaultMaxInflightV311 = 20

	maxKeepAlive = 65535 * time.Second
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Check says what is wrong with the settings.
func (c *Config) Check() error {
	if !nameForm.MatchString(c.Name) || len(c.Name) > maxName {
		return fmt.Errorf("the bridge's name %q must have 1 to %d letters, digits, dots, underscores and hyphens, and begin with a letter or digit", c.Name, maxName)
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("bridge %s: %w", c.Name, err)
	}
	return nil
}

func (c *Config) check() error {
	urls := c.URLs()
	for _, text := range urls {
		if err := checkURL(text); err != nil {
			return err
		}
		if encrypted(text) != encrypted(urls[0]) {
			return fmt.Errorf("its urls %s and %s: want TLS for both or for neither", secrets.URL(urls[0]), secrets.URL(text))
		}
	}
	switch {
	case len(urls) > dial.MaxServers:
		return fmt.Errorf("it has %d urls: want at most %d", len(urls), dial.MaxServers)
	case c.TLS != (TLS{}) && !c.encrypted():
		return fmt.Errorf("its tls- settings are for mqtts:// and wss://, and its url is %s", secrets.URL(c.URL))
	case (c.TLS.Cert == "") != (c.TLS.Key == ""):
		return errors.New("tls-cert and tls-key belong together: give both or none")
	case c.Version != 0 && c.Version != mqtt.V5 && c.Version != mqtt.V311:
		return errors.New("its version must be 5 or 3.1.1")
	case c.Username == "" && c.PasswordFile != "" && c.Version == mqtt.V311:
		return errors.New("MQTT 3.1.1 has no password without a user name: give its username")
	case c.KeepAlive != 0 && (c.KeepAlive < time.Second || c.KeepAlive > maxKeepAlive || c.KeepAlive%time.Second != 0):
		return fmt.Errorf("keep-alive %v: want whole seconds from 1s to %v", c.KeepAlive, maxKeepAlive)
	case c.MaxInflight < 0 || c.MaxInflight > 65535:
		return fmt.Errorf("max-inflight %d: want 1 to 65535", c.MaxInflight)
	case len(c.Topics) == 0:
		return errors.New("it has no topics: nothing would pass")
	case len(c.Topics) > MaxTopics:
		return fmt.Errorf("it has %d topics, and a bridge may have %d", len(c.Topics), MaxTopics)
	}
	if !slices.Contains(limits.QueueFulls, c.QueueFull) {
		return fmt.Errorf("queue-full %q: want %s, %s or %s", c.QueueFull, limits.Reject, limits.DropOldest, limits.EndSession)
	}
	for name, text := range map[string]string{"client-id": c.ClientID, "username": c.Username} {
		if len(text) > wire.MaxString || !wire.ValidUTF8([]byte(text)) {
			return fmt.Errorf("its %s has more than %d bytes, or is not UTF-8 as MQTT wants it", name, wire.MaxString)
		}
	}
	for i := range c.Topics {
		if err := c.Topics[i].Check(); err != nil {
			return fmt.Errorf("topic %d: %w", i+1, err)
		}
	}
	return nil
}

// URLs are the parts of URL, each with a scheme: one, or those of several nodes of a cluster.
func (c *Config) URLs() []string {
	urls := strings.Split(c.URL, ",")
	for i, text := range urls {
		urls[i] = strings.TrimSpace(text)
	}
	return urls
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return errors.New("it has no url, for example mqtts://broker.example:8883")
	case err != nil:
		return fmt.Errorf("its url %s is none, for example mqtts://broker.example:8883", secrets.URL(text))
	case u.User != nil:
		return errors.New("its url has a user name or a password: give them as username and password-file")
	case u.Scheme != "mqtt" && u.Scheme != "mqtts" && u.Scheme != "ws" && u.Scheme != "wss":
		return fmt.Errorf("its url %s must begin with mqtt://, mqtts://, ws:// or wss://", secrets.URL(text))
	case u.Hostname() == "":
		return fmt.Errorf("its url %s names no host", secrets.URL(text))
	}
	return nil
}

// encrypted says whether the URLs are ones of TLS; all of them are, or none.
func (c *Config) encrypted() bool { return encrypted(c.URL) }

func encrypted(url string) bool {
	return strings.HasPrefix(url, "mqtts://") || strings.HasPrefix(url, "wss://")
}

// Check says what is wrong with the rule.
func (t *Topic) Check() error {
	switch {
	case t.Filter == "":
		return errors.New("it has no filter, for example sensors/#")
	case !t.Out && !t.In:
		return errors.New("it has no direction: want out, in or both")
	case t.QoS > 2:
		return fmt.Errorf("qos %d: want 0, 1 or 2", t.QoS)
	case strings.HasPrefix(t.Filter, "$share/"):
		return errors.New("its filter is that of a shared subscription: leave $share/ and the group out")
	}
	for name, prefix := range map[string]string{"local-prefix": t.LocalPrefix, "remote-prefix": t.RemotePrefix} {
		if topic.HasWildcard(prefix) {
			return fmt.Errorf("its %s %q has a wildcard: the filter may have some, a prefix none", name, prefix)
		}
		if !topic.ValidFilter(prefix + t.Filter) {
			return fmt.Errorf("%q is not a valid topic filter", prefix+t.Filter)
		}
	}
	return nil
}
