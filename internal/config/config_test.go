package config

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/listen"
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

var options = Options{Except: []string{"config"}}

func TestAFileSetsFlagsAndListeners(t *testing.T) {
	t.Parallel()
	s := newSettings()
	listeners, err := Parse("/etc/holdfast/holdfast.yaml", []byte(`
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
`), s.FlagSet, options)
	if err != nil {
		t.Fatal(err)
	}
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

// What is wrong with a file is said with its line, and with what would be right.
func TestErrorsNameLineAndRemedy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ file, want string }{
		"an unknown setting":           {"data: x\nmax-conections: 7", "f.yaml:2: unknown setting max-conections; did you mean max-connections?"},
		"one that no flag is like":     {"colour: red", "f.yaml:1: unknown setting colour; holdfast serve --help"},
		"the file itself":              {"config: f.yaml", "f.yaml:1: unknown setting config"},
		"a setting twice":              {"data: x\n\ndata: y", "f.yaml:3: data is set in line 1 already"},
		"a bad value":                  {"max-connections: many", `f.yaml:1: max-connections: "many": `},
		"a setting without value":      {"data:", "f.yaml:1: data has no value"},
		"a list for one value":         {"data: [x, y]", "f.yaml:1: data has one value, not a list"},
		"an empty list":                {"ws-origin: []", "f.yaml:1: ws-origin is an empty list"},
		"settings for a value":         {"data: {a: b}", "f.yaml:1: data: want a value, not settings"},
		"an alias":                     {"data: &a x\ntls-cert: *a", "anchors and aliases are not supported"},
		"a merge key":                  {"<<: {data: x}", "f.yaml:1: unknown setting <<"},
		"two documents":                {"data: x\n---\ndata: y", "a second document"},
		"no settings":                  {"- data", "f.yaml:1: the configuration must be settings of the form NAME: VALUE"},
		"no YAML":                      {"data: x\n\tlisten: y", "f.yaml:2: this is not YAML"},
		"listeners that are no list":   {"listeners: mqtt://127.0.0.1:1", "f.yaml:1: listeners must be a list"},
		"a listener without URL":       {"listeners:\n- anonymous: true", "f.yaml:2: the listener has no url"},
		"a listener's unknown setting": {"listeners:\n- url: 127.0.0.1:1\n  tls: x", "f.yaml:3: unknown setting tls of a listener; there are url, "},
		"a listener's setting twice":   {"listeners:\n- url: 127.0.0.1:1\n  url: 127.0.0.1:2", "f.yaml:3: url is set in line 2 already"},
		"a bad URL":                    {"listeners:\n- url: ftp://h:1", "f.yaml:2: cannot listen on \"ftp://h:1\": the scheme must be"},
		"a certificate without TLS":    {"listeners:\n- tls-cert: c\n  url: mqtt://127.0.0.1:1", "f.yaml:2: tls-cert is for mqtts:// and wss://"},
		"an origin without WebSocket":  {"listeners:\n- url: mqtt://127.0.0.1:1\n  ws-origin: x", "f.yaml:3: ws-origin is for ws:// and wss://"},
		"a word that is neither":       {"listeners:\n- url: mqtts://127.0.0.1:1\n  tls-client-auth: maybe", `f.yaml:3: tls-client-auth: "maybe": want required or optional`},
		"neither true nor false":       {"listeners:\n- url: 127.0.0.1:1\n  anonymous: yes", `f.yaml:3: anonymous: "yes": want true or false`},
		"no connections":               {"listeners:\n- url: 127.0.0.1:1\n  max-connections: 0", `f.yaml:3: max-connections: "0": want a whole number of at least 1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("f.yaml", []byte(test.file), newSettings().FlagSet, options)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestTheCommandLineIsNotContradicted(t *testing.T) {
	t.Parallel()
	given := func(t *testing.T, args ...string) *settings {
		s := newSettings()
		if err := s.FlagSet.Parse(args); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, test := range map[string]struct {
		args []string
		file string
		want string // empty: no error
	}{
		"the same":          {[]string{"--max-connections", "5"}, "max-connections: 5", ""},
		"the same, spelled": {[]string{"--connect-timeout", "1m"}, "connect-timeout: 60s", ""},
		"another":           {[]string{"--max-connections", "5"}, "data: x\nmax-connections: 6", "f.yaml:2: max-connections is 6 here, and 5 on the command line"},
		"the same list":     {[]string{"--listen", "127.0.0.1:1", "--listen", "127.0.0.1:2"}, `listen: ["127.0.0.1:1", "127.0.0.1:2"]`, ""},
		"another list":      {[]string{"--listen", "127.0.0.1:1"}, `listen: ["127.0.0.1:2"]`, "f.yaml:1: listen is 127.0.0.1:2 here, and"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("f.yaml", []byte(test.file), given(t, test.args...).FlagSet, options)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestAnEmptyFileSaysNothing(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"", "# nothing\n", "\n\n"} {
		s := newSettings()
		if listeners, err := Parse("f.yaml", []byte(file), s.FlagSet, options); err != nil || listeners != nil || s.data != "holdfast-data" {
			t.Errorf("%q: %v, %v", file, listeners, err)
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
		_, _ = Parse("f.yaml", file, newSettings().FlagSet, options)
	})
}
