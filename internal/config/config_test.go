package config

import (
	"errors"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// settings are flags like those of serve.
type settings struct {
	listen, origins []string
	data, cert      string
	most            int
	anonymous       bool
	timeout         time.Duration
	*pflag.FlagSet
}

func newSettings() *settings {
	s := &settings{FlagSet: pflag.NewFlagSet("serve", pflag.ContinueOnError)}
	s.StringArrayVar(&s.listen, "listen", []string{"127.0.0.1:1883"}, "`URL`")
	s.StringArrayVar(&s.origins, "ws-origin", nil, "`PATTERN`")
	s.StringVar(&s.data, "data", "holdfast-data", "`DIR`")
	s.StringVar(&s.cert, "tls-cert", "", "`FILE`")
	s.IntVar(&s.most, "max-connections", 0, "")
	s.BoolVar(&s.anonymous, "allow-anonymous", false, "")
	s.DurationVar(&s.timeout, "connect-timeout", time.Second, "")
	s.String("config", "", "`FILE`")
	return s
}

var options = Options{File: "config"}

// parse reads the text of a file, after the command line and the environment.
func (s *settings) parse(name, text string, environment ...string) (*Settings, error) {
	o := options
	o.Environment = environment
	loaded, err := Load(s.FlagSet, o)
	if err == nil {
		err = loaded.parse(name, []byte(text), s.FlagSet, o)
	}
	return loaded, err
}

func TestAFileSetsFlagsAndListeners(t *testing.T) {
	t.Parallel()
	s := newSettings()
	loaded, err := s.parse("/etc/holdfast/holdfast.yaml", `
# a comment
data: data
tls-cert: /certs/server.crt
max-connections: 100
allow-anonymous: true
connect-timeout: 3s
ws-origin: [a.example.com, b.example.com]
listeners:
  - url: mqtts://0.0.0.0:8883
    tls-client-ca: ca.crt
    tls-client-auth: optional
    tls-min-version: "1.3"
    max-connections: 7
  - url: ws://127.0.0.1:9001/mqtt
    anonymous: true
    proxy-protocol: true
    ws-origin: "*"
`)
	if err != nil {
		t.Fatal(err)
	}
	listeners := loaded.Listeners
	if s.data != filepath.FromSlash("/etc/holdfast/data") || s.cert != "/certs/server.crt" || s.most != 100 || !s.anonymous || s.timeout != 3*time.Second {
		t.Errorf("flags: %+v", s)
	}
	if !slices.Equal(s.origins, []string{"a.example.com", "b.example.com"}) {
		t.Errorf("a flag that is repeated: %q", s.origins)
	}
	if len(listeners) != 2 {
		t.Fatalf("%d listeners", len(listeners))
	}
	first, second := listeners[0], listeners[1]
	if first.URL.String() != "mqtts://0.0.0.0:8883" || first.TLS.ClientCA != filepath.FromSlash("/etc/holdfast/ca.crt") || first.TLS.ClientAuth != "optional" || first.TLS.MinVersion != "1.3" || first.MaxConnections != 7 {
		t.Errorf("the first listener: %+v", first)
	}
	if want := (listen.URL{Scheme: "ws", Host: "127.0.0.1:9001", Path: "/mqtt"}); second.URL != want || !second.Anonymous || !second.Proxy || !slices.Equal(second.AllowOrigins, []string{"*"}) {
		t.Errorf("the second listener: %+v", second)
	}
}

// A bridge and its topics: names of files are relative to the configuration's directory.
func TestAFileSetsBridges(t *testing.T) {
	t.Parallel()
	loaded, err := newSettings().parse("/etc/holdfast/holdfast.yaml", `
bridges:
  - name: plant
    url: mqtts://broker.example.com:8883
    version: 3.1.1
    client-id: gateway-7
    username: gateway
    password-file: plant.txt
    keep-alive: 30s
    max-inflight: 50
    queue-full: drop-oldest
    tls-ca: ca.crt
    tls-cert: /certs/gateway.crt
    tls-key: gateway.key
    tls-server-name: broker
    topics:
      - {filter: sensors/#, direction: out, qos: 2, remote-prefix: plant7/}
      - {filter: orders/+, direction: both, local-prefix: in/}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []bridge.Config{{
		Name: "plant", URL: "mqtts://broker.example.com:8883", Version: mqtt.V311, ClientID: "gateway-7", Username: "gateway", PasswordFile: filepath.FromSlash("/etc/holdfast/plant.txt"),
		KeepAlive: 30 * time.Second, MaxInflight: 50, QueueFull: limits.DropOldest,
		TLS: bridge.TLS{CA: filepath.FromSlash("/etc/holdfast/ca.crt"), Cert: "/certs/gateway.crt", Key: filepath.FromSlash("/etc/holdfast/gateway.key"), ServerName: "broker"},
		Topics: []bridge.Topic{
			{Filter: "sensors/#", Out: true, QoS: 2, RemotePrefix: "plant7/"},
			{Filter: "orders/+", Out: true, In: true, LocalPrefix: "in/"},
		},
	}}
	if !reflect.DeepEqual(loaded.Bridges, want) {
		t.Errorf("%+v, want %+v", loaded.Bridges, want)
	}
}

// What is wrong with a file is said with its line, and with what would be right.
func TestErrorsNameLineAndRemedy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, want string }{
		"an unknown setting":                    {"data: x\nmax-conections: 7", "f.yaml:2: unknown setting max-conections; did you mean max-connections?"},
		"one that no flag is like":              {"colour: red", "f.yaml:1: unknown setting colour; holdfast serve --help"},
		"the file itself":                       {"config: f.yaml", "f.yaml:1: unknown setting config"},
		"a setting twice":                       {"data: x\n\ndata: y", "f.yaml:3: data is set in line 1 already"},
		"a bad value":                           {"max-connections: many", `f.yaml:1: max-connections: "many": `},
		"a setting without value":               {"data:", "f.yaml:1: data has no value"},
		"a list for one value":                  {"data: [x, y]", "f.yaml:1: data has one value, not a list"},
		"an empty list":                         {"ws-origin: []", "f.yaml:1: ws-origin is an empty list"},
		"settings for a value":                  {"data: {a: b}", "f.yaml:1: data: want a value, not settings"},
		"an alias":                              {"data: &a x\ntls-cert: *a", "anchors and aliases are not supported"},
		"a merge key":                           {"<<: {data: x}", "f.yaml:1: unknown setting <<"},
		"two documents":                         {"data: x\n---\ndata: y", "a second document"},
		"no settings":                           {"- data", "f.yaml:1: the configuration must be settings of the form NAME: VALUE"},
		"no YAML":                               {"data: x\n\tlisten: y", "f.yaml:2: this is not YAML: the line is indented with a tab"},
		"listeners that are no list":            {"listeners: mqtt://127.0.0.1:1", "f.yaml:1: listeners must be a list"},
		"a listener without URL":                {"listeners:\n- anonymous: true", "f.yaml:2: the listener has no url"},
		"a listener's unknown setting":          {"listeners:\n- url: 127.0.0.1:1\n  tls: x", "f.yaml:3: unknown setting tls of a listener; there are url, "},
		"a listener's setting twice":            {"listeners:\n- url: 127.0.0.1:1\n  url: 127.0.0.1:2", "f.yaml:3: url is set in line 2 already"},
		"a bad URL":                             {"listeners:\n- url: ftp://h:1", "f.yaml:2: cannot listen on \"ftp://h:1\": the scheme must be"},
		"bridges that are no list":              {"bridges: mqtt://127.0.0.1:1", "f.yaml:1: bridges must be a list"},
		"a bridge's unknown setting":            {"bridges:\n- nam: x", "f.yaml:2: unknown setting nam of a bridge; did you mean name?; there are name, "},
		"a bridge without URL":                  {"bridges:\n- name: x", "f.yaml:2: bridge x: it has no url"},
		"a bridge without topics":               {"bridges:\n- name: x\n  url: mqtt://h", "f.yaml:2: bridge x: it has no topics"},
		"a bridge's version":                    {"bridges:\n- name: x\n  version: 4", "f.yaml:3: version: \"4\": want 5 or 3.1.1"},
		"a bridge's keep-alive":                 {"bridges:\n- keep-alive: -5s", "f.yaml:2: keep-alive: \"-5s\": want a duration"},
		"a bridge's keep-alive in octal":        {"bridges:\n- keep-alive: 060s", "f.yaml:2: keep-alive: \"060s\": want a duration"},
		"a bridge's max-inflight in octal":      {"bridges:\n- max-inflight: 010", "f.yaml:2: max-inflight: \"010\": want a whole number"},
		"a bridge's max-inflight":               {"bridges:\n- max-inflight: 0", "f.yaml:2: max-inflight: \"0\": want a whole number"},
		"two bridges of one name":               {"bridges:\n- {name: x, url: 'mqtt://h', topics: [{filter: a, direction: in}]}\n- {name: x, url: 'mqtt://h', topics: [{filter: a, direction: in}]}", "f.yaml:3: a bridge in line 2 is named x already"},
		"topics that are no list":               {"bridges:\n- topics: a", "f.yaml:2: topics must be a list"},
		"a topic's direction":                   {"bridges:\n- topics:\n  - {filter: a, direction: up}", "f.yaml:3: direction: \"up\": want out, in or both"},
		"a topic's QoS":                         {"bridges:\n- topics:\n  - {filter: a, direction: in, qos: 3}", "f.yaml:3: qos: \"3\": want 0, 1 or 2"},
		"a topic's filter":                      {"bridges:\n- topics:\n  - {filter: a/#/b, direction: in}", "f.yaml:3: \"a/#/b\" is not a valid topic filter"},
		"a topic's unknown setting":             {"bridges:\n- topics:\n  - {topic: a}", "f.yaml:3: unknown setting topic of a topic; there are filter, "},
		"a certificate without TLS":             {"listeners:\n- tls-cert: c\n  url: mqtt://127.0.0.1:1", "f.yaml:2: tls-cert is for mqtts:// and wss://"},
		"an origin without WebSocket":           {"listeners:\n- url: mqtt://127.0.0.1:1\n  ws-origin: x", "f.yaml:3: ws-origin is for ws:// and wss://"},
		"a word that is neither":                {"listeners:\n- url: mqtts://127.0.0.1:1\n  tls-client-auth: maybe", `f.yaml:3: tls-client-auth: "maybe": want required or optional`},
		"neither true nor false":                {"listeners:\n- url: 127.0.0.1:1\n  anonymous: yes", `f.yaml:3: anonymous: "yes": want true or false`},
		"no connections":                        {"listeners:\n- url: 127.0.0.1:1\n  max-connections: 0", `f.yaml:3: max-connections: "0": want a whole number from 1 to 1000000000`},
		"a number that YAML 1.1 reads as eight": {"listeners:\n- url: 127.0.0.1:1\n  max-connections: 010", `f.yaml:3: max-connections: "010": want a whole number from 1 to 1000000000`},
		"a bridge's number with underscores":    {"bridges:\n- max-inflight: 1_0", `f.yaml:2: max-inflight: "1_0": want a whole number from 1 to 65535`},
		"a QoS with a zero in front":            {"bridges:\n- topics:\n  - {filter: a, direction: in, qos: 01}", "f.yaml:3: qos: \"01\": want 0, 1 or 2"},
		"a tag":                                 {"data: !!binary aGk=", "f.yaml:1: data: tags such as !!binary are not supported: leave it out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newSettings().parse("f.yaml", test.file)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

// A flag counts before a variable, a variable before the file, and the file before the
// default.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	const file = "max-connections: 3\nconnect-timeout: 3s\nws-origin: [c]\ndata: d\n"
	environment := []string{"HOLDFAST_MAX_CONNECTIONS=2", "HOLDFAST_WS_ORIGIN=a.example.com, b.example.com", "HOLDFAST_TLS_CERT=", "HOLDFAST_DATA=e", "PATH=x"}
	s := newSettings()
	if err := s.FlagSet.Parse([]string{"--max-connections", "1"}); err != nil {
		t.Fatal(err)
	}
	loaded, err := s.parse("f.yaml", file, environment...)
	if err != nil {
		t.Fatal(err)
	}
	if s.most != 1 || s.timeout != 3*time.Second || s.data != "e" || !slices.Equal(s.origins, []string{"a.example.com", "b.example.com"}) || s.cert != "" || !slices.Equal(s.listen, []string{"127.0.0.1:1883"}) {
		t.Errorf("flags: %+v", s)
	}
	want := map[string]Source{
		"max-connections": {Flag, "--max-connections"}, "ws-origin": {Variable, "HOLDFAST_WS_ORIGIN"}, "data": {Variable, "HOLDFAST_DATA"}, "connect-timeout": {File, "f.yaml:2"},
	}
	if !maps.Equal(loaded.Sources, want) {
		t.Errorf("sources %v, want %v", loaded.Sources, want)
	}
	for setting, name := range map[string]string{"max-connections": "--max-connections", "data": "HOLDFAST_DATA", "connect-timeout": "f.yaml:2: connect-timeout", "listen": "--listen"} {
		if got := loaded.Name(setting); got != name {
			t.Errorf("%s is called %q, want %q", setting, got, name)
		}
	}
}

// A list on the command line takes the place of that in the file.
func TestAListIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSettings()
	if err := s.FlagSet.Parse([]string{"--listen", "127.0.0.1:1", "--listen", "127.0.0.1:2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.parse("f.yaml", `listen: ["127.0.0.1:3"]`, "HOLDFAST_LISTEN=127.0.0.1:4"); err != nil || !slices.Equal(s.listen, []string{"127.0.0.1:1", "127.0.0.1:2"}) {
		t.Errorf("%v, %v", s.listen, err)
	}
}

// What is wrong with a variable is said with its name; variables that are no setting's are
// noted, but for those of other commands and of Kubernetes.
func TestVariables(t *testing.T) {
	t.Parallel()
	for variable, want := range map[string]string{
		"HOLDFAST_MAX_CONNECTIONS=many": `HOLDFAST_MAX_CONNECTIONS "many": `,
		"HOLDFAST_MAX_CONECTIONS=7":     "HOLDFAST_MAX_CONECTIONS: unknown variable; did you mean HOLDFAST_MAX_CONNECTIONS?",
		"HOLDFAST_WS_ORIGIN=a,,b":       `HOLDFAST_WS_ORIGIN "a,,b": a value in the list is empty`,
		"HOLDFAST_CONFIG=/none/x.yaml":  "the configuration: open /none/x.yaml",
		"HOLDFAST_ALLOW_ANONYMOUS=y":    `HOLDFAST_ALLOW_ANONYMOUS "y": `,
	} {
		if _, err := newSettings().parse("f.yaml", "", variable); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", variable, err, want)
		}
	}
	o := options
	o.Others = []string{"HOLDFAST_HOST"}
	o.Environment = []string{
		"HOLDFAST_HOST=h", "HOLDFAST_SERVICE_HOST=10.0.0.1", "HOLDFAST_PORT=tcp://10.0.0.1:1883", "HOLDFAST_SERVICE_PORT_MQTT=1883",
		"HOLDFAST_METRICS_PORT_9090_TCP_ADDR=10.0.0.1", "HOLDFAST_TEAM=blue", "HOLDFAST_HELP=1", "HOLDFAST_DB=x", "HOLDFAST_=", "NOTHOLDFAST_X=",
	}
	loaded, err := Load(newSettings().FlagSet, o)
	if err != nil || !slices.Equal(loaded.Unknown, []string{"HOLDFAST_", "HOLDFAST_DB", "HOLDFAST_HELP", "HOLDFAST_TEAM"}) {
		t.Errorf("%+v, %v", loaded, err)
	}
}

// An error about a setting that is not from the command line says where it is from.
func TestPlace(t *testing.T) {
	t.Parallel()
	s := Settings{Sources: map[string]Source{"a": {Flag, "--a"}, "b": {Variable, "HOLDFAST_B"}, "c": {File, "f.yaml:3"}}}
	for text, want := range map[string]string{
		"--a is bad": "--a is bad", "--b is bad": "HOLDFAST_B: --b is bad", "--c needs --a": "f.yaml:3: --c needs --a", "--d is bad": "--d is bad", "no setting": "no setting",
	} {
		if got := s.Place(errors.New(text)); got.Error() != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s.Place(nil) != nil {
		t.Error("an error of nothing")
	}
}

func TestAnEmptyFileSaysNothing(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"", "# nothing\n", "\n\n"} {
		s := newSettings()
		if loaded, err := s.parse("f.yaml", file); err != nil || loaded.Listeners != nil || len(loaded.Sources) > 0 || s.data != "holdfast-data" {
			t.Errorf("%q: %+v, %v", file, loaded, err)
		}
	}
}

// Whatever a file says, it is read or refused.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"data: x\n", "listeners:\n- url: mqtts://0.0.0.0:8883\n  tls-cert: c\n", "a: &x [*x]", "listen: [a, b]", "{", "\t", "--- !!binary aGk=", "? [a]\n: b", "listeners: [{url: }]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		_, _ = newSettings().parse("f.yaml", string(file))
	})
}
