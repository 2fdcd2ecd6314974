package serve

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/config"
)

// referenceWidth is how many columns a line of the reference has at most.
const referenceWidth = 90

// reference is a configuration file with all settings, each commented out.
func reference() string {
	var b strings.Builder
	b.WriteString(`# Configuration of holdfast serve, for its flag --config. Each setting stands here with its
# default, commented out, below what it means and its variable of the environment. A flag
# counts before a variable, a variable before this file. Names of files are relative to the
# directory of this file. The server reads the file again at SIGHUP.
`)
	defaults := newSettings("")
	for _, one := range defaults.all(defaults.cfg.WithDefaults()) {
		if one.Name == configFlag || one.Name == config.ListenersKey || one.Name == config.BridgesKey {
			continue
		}
		b.WriteString("\n")
		help := strings.ToUpper(one.help[:1]) + one.help[1:] + "."
		if len(one.Values) != 1 || one.Default != one.Values[0] {
			if one.Default != "" {
				help += " Default: " + one.Default + "."
			}
		}
		comment(&b, help)
		variable := config.VariableOf(one.Name)
		if slices.Contains(adjustable, one.Name) {
			variable += "; changes at SIGHUP"
		}
		comment(&b, variable)
		value := strings.Join(one.Values, "")
		if one.repeats && len(one.Values) > 0 {
			value = "[" + strings.Join(one.Values, ", ") + "]"
		}
		fmt.Fprintln(&b, strings.TrimRight("#"+one.Name+": "+value, " "))
	}
	b.WriteString(listenersReference)
	b.WriteString(bridgesReference)
	return b.String()
}

// listenersReference is the part of the reference for what no flag can say.
const listenersReference = `
# Listeners with rules of their own, besides those of listen. Once the list is here, the
# default of listen does not count. What a listener leaves out is as the settings above say.
#listeners:
#  - url: mqtts://0.0.0.0:8883   # HOST:PORT, mqtt://, mqtts://, ws:// or wss://
#    max-connections: 5000       # default: no bound but max-connections above
#    anonymous: false            # true: clients without credentials may connect
#    proxy-protocol: false       # true: each connection begins with a PROXY header, version 2
#    tls-cert: server.crt        # also tls-key, tls-client-ca, tls-crl, tls-client-auth,
#    tls-key: server.key         # tls-min-version; for mqtts:// and wss:// only
#  - url: wss://0.0.0.0:8443/mqtt
#    ws-origin: [panel.example.com]
`

// bridgesReference is the part of the reference for bridges.
const bridgesReference = `
# Bridges: connections to other brokers, over which messages pass in one direction or in
# both. docs/bridges.md describes them.
#bridges:
#  - name: plant                 # in logs and figures; the client ID here is bridge/plant
#    url: mqtts://broker.example.com:8883  # mqtt://, mqtts://, ws:// or wss://
#    version: 5                  # of MQTT: 5 or 3.1.1
#    client-id: gateway-7        # there; default: made of the machine's name and the bridge's
#    username: gateway-7         # there; default: none
#    password-file: plant.txt    # whose first line is the password
#    keep-alive: 60s
#    max-inflight: 100           # messages under way; with version 3.1.1 the default is 20
#    queue-full: reject          # or drop-oldest or end-session, for what waits for the bridge
#    tls-ca: ca.crt              # default: the system's; also tls-cert, tls-key, tls-server-name
#    topics:
#      - filter: sensors/#       # behind the prefixes; wildcards as in subscriptions
#        direction: out          # out, in or both
#        qos: 2                  # at most; default 0
#        local-prefix: ""        # of the topics here
#        remote-prefix: plant7/  # of the topics there
`

// comment writes a text as lines of a comment.
func comment(b *strings.Builder, text string) {
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > referenceWidth {
			fmt.Fprintln(b, line)
			line = "#"
		}
		line += " " + word
	}
	fmt.Fprintln(b, line)
}
