package mosquitto

import (
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/dial"
)

// inBridgeName are the characters that the name of a bridge must not have.
var inBridgeName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// bridgeList converts the bridges.
func (w *writer) bridgeList() {
	var text strings.Builder
	taken := make(map[string]bool)
	for _, b := range w.bridges {
		name := strings.TrimLeft(inBridgeName.ReplaceAllString(b.at.value, "-"), "._-")
		if len(name) > 64 {
			name = name[:64]
		}
		switch {
		case len(taken) == bridge.MaxBridges:
			w.problem(b.at, "the bridge is left out: Holdfast has %d at the most", bridge.MaxBridges)
			continue
		case name == "" || taken[name]:
			w.problem(b.at, "the bridge is left out: another one is named %q, or nothing of its name can be", name)
			continue
		case name != b.at.value:
			w.problem(b.at, "the bridge is named %s here", name)
		}
		if item, ok := w.bridgeItem(b, name); ok {
			taken[name] = true
			text.WriteString(item)
		}
	}
	if text.Len() > 0 {
		w.lists.WriteString("bridges:\n" + text.String())
	}
}

func (w *writer) bridgeItem(b *bridgeLines, name string) (text string, ok bool) {
	var t strings.Builder
	item := func(name, value string) { t.WriteString("    " + name + ": " + value + "\n") }
	for _, word := range []string{"bridge_psk", "bridge_identity", "bridge_capath"} {
		if s, is := b.set[word]; is {
			w.problem(s, "the bridge %s is left out: Holdfast has no TLS with pre-shared keys, and reads authorities from a file", name)
			return "", false
		}
	}
	addresses, ok := w.addresses(b, name)
	if !ok {
		return "", false
	}
	_, authority := b.set["bridge_cafile"]
	_, certificate := b.set["bridge_certfile"]
	scheme := "mqtt://"
	if authority || certificate {
		scheme = "mqtts://"
	}
	t.WriteString("  - name: " + quoted(name) + "\n")
	item("url", quoted(scheme+strings.Join(addresses, ","+scheme)))
	for _, word := range sortedNames(b.set) {
		w.bridgeSetting(b.set[word], name, item)
	}
	if _, is := b.set["bridge_protocol_version"]; !is {
		item("version", "3.1.1") // Mosquitto's default
	}
	topics := w.bridgeTopics(b, name)
	if topics == "" {
		w.problem(b.at, "the bridge %s is left out: it has no topic that can be converted", name)
		return "", false
	}
	t.WriteString("    topics:\n" + topics)
	return t.String(), true
}

// addresses are those of a bridge, with their ports.
func (w *writer) addresses(b *bridgeLines, name string) ([]string, bool) {
	s, is := b.set["address"]
	if !is {
		w.problem(b.at, "the bridge %s is left out: it has no address", name)
		return nil, false
	}
	all := strings.Fields(s.value)
	if len(all) > 1 {
		w.problem(s, "the bridge %s stays at an address as long as it can, and goes on at the next one then; they must be nodes of one cluster, which share their sessions", name)
	}
	if len(all) > dial.MaxServers {
		w.problem(s, "the bridge %s has the first %d of its addresses here", name, dial.MaxServers)
		all = all[:dial.MaxServers]
	}
	for i, address := range all {
		if _, _, err := net.SplitHostPort(address); err != nil {
			all[i] = net.JoinHostPort(strings.Trim(address, "[]"), "1883")
		}
	}
	return all, true
}

func (w *writer) bridgeSetting(s setting, name string, item func(name, value string)) {
	switch bridgeWord(s.word) {
	case "remote_clientid":
		item("client-id", quoted(s.value))
	case "remote_username":
		item("username", quoted(s.value))
	case "remote_password":
		file := "bridge-" + name + ".txt"
		w.files = append(w.files, File{file, []byte(s.value + "\n")})
		item("password-file", quoted(file))
	case "keepalive_interval":
		if n, ok := w.number(s, 65535); ok && n > 0 {
			item("keep-alive", strconv.FormatInt(n, 10)+"s")
		}
	case "bridge_protocol_version":
		version := map[string]string{"mqttv50": "5", "mqttv311": "3.1.1", "mqttv31": "3.1.1"}[s.value]
		if version == "" || s.value == "mqttv31" {
			version = "3.1.1"
			w.problem(s, "bridge_protocol_version %.20s: the bridge has MQTT 3.1.1 here", s.value)
		}
		item("version", quoted(version))
	case "cleansession":
		if s.value == "true" {
			w.problem(s, "cleansession true: the bridge keeps its sessions here")
		}
	case "start_type":
		if s.value != "automatic" {
			w.problem(s, "start_type %.20s: bridges are always connected", s.value)
		}
	case "bridge_insecure":
		if s.value == "true" {
			w.problem(s, "bridge_insecure true: the name in the other broker's certificate is always checked; tls-server-name may say which it is")
		}
	case "bridge_cafile":
		item("tls-ca", quoted(w.absolute(s.value)))
	case "bridge_certfile":
		item("tls-cert", quoted(w.absolute(s.value)))
	case "bridge_keyfile":
		item("tls-key", quoted(w.absolute(s.value)))
	}
}

// bridgeTopics converts the topic lines, and makes the rule by which the policy lets the bridge do
// what they need, as Mosquitto's lists do not apply to its own bridges.
func (w *writer) bridgeTopics(b *bridgeLines, name string) string {
	var text strings.Builder
	var subscribe, publish []string
	for _, s := range b.topics {
		t, ok := w.bridgeTopic(s)
		if !ok {
			continue
		}
		text.WriteString("      - {filter: " + quoted(t.Filter) + ", direction: " + direction(t) + ", qos: " + strconv.Itoa(int(t.QoS)))
		if t.LocalPrefix != "" {
			text.WriteString(", local-prefix: " + quoted(t.LocalPrefix))
		}
		if t.RemotePrefix != "" {
			text.WriteString(", remote-prefix: " + quoted(t.RemotePrefix))
		}
		text.WriteString("}\n")
		if t.Out {
			subscribe = append(subscribe, t.LocalPrefix+t.Filter)
		}
		if t.In {
			publish = append(publish, t.LocalPrefix+t.Filter)
		}
	}
	w.rules.WriteString("- principals:\n    usernames:\n    - " + quoted(bridge.ClientPrefix+name) + "\n  brokerResources:\n  - method: Connect\n")
	for _, may := range []struct {
		method  string
		filters []string
	}{{"Subscribe", subscribe}, {"Publish", publish}} {
		if len(may.filters) == 0 {
			continue
		}
		w.rules.WriteString("  - method: " + may.method + "\n    topics:\n")
		for _, f := range may.filters {
			w.rules.WriteString("    - " + quoted(f) + "\n")
		}
	}
	return text.String()
}

func direction(t bridge.Topic) string {
	switch {
	case t.In && t.Out:
		return "both"
	case t.In:
		return "in"
	}
	return "out"
}

// bridgeTopic reads PATTERN [DIRECTION [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]], where "" is nothing.
func (w *writer) bridgeTopic(s setting) (t bridge.Topic, ok bool) {
	given := strings.Fields(s.value)
	fields := []string{"", "out", "0", "", ""}
	for i := range min(len(given), len(fields)) {
		if fields[i] = given[i]; given[i] == `""` {
			fields[i] = ""
		}
	}
	t = bridge.Topic{Filter: fields[0], LocalPrefix: fields[3], RemotePrefix: fields[4]}
	t.Out, t.In = fields[1] == "out" || fields[1] == "both", fields[1] == "in" || fields[1] == "both"
	qos, err := strconv.ParseUint(fields[2], 10, 2)
	if err != nil || len(given) > len(fields) {
		w.problem(s, "the topic is left out: want PATTERN, DIRECTION, QOS and two prefixes")
		return t, false
	}
	t.QoS = byte(qos)
	if t.Filter == "" { // one topic, which the prefixes are
		w.problem(s, "the topic is left out: Holdfast maps filters behind prefixes, not one topic to another")
		return t, false
	}
	if err := t.Check(); err != nil {
		w.problem(s, "the topic is left out: %v", err)
		return t, false
	}
	return t, true
}
