package serve

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/config"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

var update = flag.Bool("update", false, "write the reference into docs/configuration.md")

// given are the settings of a command line, an environment and a file.
func given(t *testing.T, args, environment []string, file string) (*settings, error) {
	t.Helper()
	s := newSettings("test")
	if file != "" {
		name := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", name)
	}
	if err := s.flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return s, s.load(environment)
}

// The page has the reference that the program prints. After a change of a flag:
// go test ./internal/cli/serve -run TestConfigurationPage -update
func TestConfigurationPage(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../../docs/configuration.md", "<!-- holdfast config reference -->\n```yaml\n", "```\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	printed, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no block for the reference", page)
	}
	if printed == reference() {
		return
	}
	if !*update {
		t.Fatalf("%s does not have what holdfast config reference prints: go test ./internal/cli/serve -run TestConfigurationPage -update", page)
	}
	if err := os.WriteFile(page, []byte(before+begin+reference()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A file with the whole reference, no longer commented out, says what the defaults say:
// each value in it is the one in force without it.
func TestReferenceHasTheDefaults(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	lines := 0
	entry := regexp.MustCompile(`^#([a-z0-9-]+): .`)
	_, names, _ := strings.Cut(reference(), "\n\n")
	names, _, _ = strings.Cut(names, "#listeners:")
	for line := range strings.Lines(names) {
		// These contradict other defaults: there are no certificates.
		if m := entry.FindStringSubmatch(line); m != nil && m[1] != "tls-identity" && m[1] != "data" {
			file.WriteString(line[1:])
			lines++
		}
	}
	if lines < 40 {
		t.Errorf("the reference has %d values, there are more", lines)
	}
	with, err := given(t, nil, nil, file.String())
	if err != nil {
		t.Fatalf("%v in\n%s", err, file.String())
	}
	without, err := given(t, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	got, want := with.cfg.WithDefaults(), without.cfg.WithDefaults()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with the file:\n%+v\nwithout:\n%+v", got, want)
	}
}

// A default that a flag's help names is the one in force.
func TestHelpNamesTheDefaultInForce(t *testing.T) {
	t.Parallel()
	s := newSettings("test")
	checked := 0
	value := regexp.MustCompile(`^(\d[\w.]*)(,|$)`)
	for _, one := range s.all(s.cfg.WithDefaults()) {
		m := value.FindStringSubmatch(one.Default)
		if m == nil {
			continue
		}
		checked++
		of := newSettings("test")
		if err := of.flags.Set(one.Name, m[1]); err != nil {
			t.Errorf("--%s: %v", one.Name, err)
		}
		if got := texts(of.flags.Lookup(one.Name).Value); !slices.Equal(got, one.Values) {
			t.Errorf("the help of --%s says that the default is %s, it is %s", one.Name, m[1], one.Values)
		}
	}
	if checked < 25 {
		t.Errorf("%d defaults were checked, there are more", checked)
	}
}

// Values that contradict one another are refused with the places that they are from.
func TestContradictionsNameTheirPlaces(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args, environment []string
		file, want        string
	}{
		"a variable and a default":  {nil, []string{"HOLDFAST_REMEMBER=800h"}, "", "HOLDFAST_REMEMBER 800h0m0s is more than --max-remember 720h0m0s: "},
		"a line and a flag":         {[]string{"--max-packet-size", "1MiB"}, nil, "\nmax-key-size: 2MiB", "f.yaml:2: max-key-size 2MiB is more than --max-packet-size 1MiB: "},
		"a flag and a variable":     {[]string{"--max-key-size", "2MiB"}, []string{"HOLDFAST_MAX_PACKET_SIZE=1MiB"}, "", "--max-key-size 2MiB is more than HOLDFAST_MAX_PACKET_SIZE 1MiB: "},
		"a client's share":          {nil, nil, "max-sessions: 100\nmax-sessions-per-address: 101", "f.yaml:2: max-sessions-per-address 101 is more than "},
		"two variables":             {nil, []string{"HOLDFAST_MAX_KEYS=1000000", "HOLDFAST_MAX_KEYS_PER_CLIENT=1000001"}, "", "HOLDFAST_MAX_KEYS_PER_CLIENT 1000001 is more than HOLDFAST_MAX_KEYS 1000000: "},
		"a CONNECT":                 {[]string{"--max-connect-size", "8MiB"}, nil, "", "--max-connect-size 8MiB is more than --max-packet-size 4097KiB: "},
		"TLS that nothing uses":     {nil, nil, "listen: 127.0.0.1:1\ntls-client-ca: ca.crt", "f.yaml:2: --tls-client-ca is for listeners of mqtts:// and wss://"},
		"what the server refuses":   {nil, nil, "data: d\nnode-id: a:b", `f.yaml:2: --node-id "a:b": a node ID has no colon`},
		"a setting without another": {nil, []string{"HOLDFAST_JWT_ISSUER=x"}, "", "HOLDFAST_JWT_ISSUER: --jwt-issuer needs --jwt-keys"},
		"a negative variable":       {nil, []string{"HOLDFAST_MAX_KEYS=-1"}, "", `HOLDFAST_MAX_KEYS "-1": want a whole number from 1 to 1000000000`},
		"a negative line":           {nil, nil, "max-keys: -1", `f.yaml:1: max-keys: "-1": want a whole number from 1 to 1000000000`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := given(t, test.args, test.environment, test.file)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

// A file that is not there is named with the setting and where that is from.
func TestFilesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args, environment []string
		file, want        string
	}{
		{nil, nil, "data: d\npolicy: none.yaml", "f.yaml:2: policy: "},
		{nil, []string{"HOLDFAST_PASSWORD_FILE=none"}, "", "HOLDFAST_PASSWORD_FILE: "},
		{[]string{"--jwt-keys", "none"}, nil, "", "--jwt-keys: "},
	} {
		s, err := given(t, test.args, test.environment, test.file)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.unreadable(); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("got %v, want %q in it", err, test.want)
		}
	}
	if s, err := given(t, []string{"--audit-log", "none"}, nil, "data: d"); err != nil || s.unreadable() != nil {
		t.Errorf("an audit log that is to be written: %v, %v", err, s.unreadable())
	}
}

// A bridge whose URL is an address of the server's own listener is refused, one that may lead elsewhere is not.
func TestBridgeToAnOwnListener(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		listen, url string
		own         bool
	}{
		{"127.0.0.1:1883", "mqtt://127.0.0.1:1883", true},
		{"127.0.0.1:1883", "mqtt://localhost", true},
		{"localhost:1883", "mqtt://127.0.0.1", true},
		{"0.0.0.0:1883", "mqtt://127.0.0.1:1883", true},
		{"[::]:1883", "mqtt://[::1]:1883", true},
		{"192.0.2.1:1883", "mqtt://192.0.2.1:1883", true},
		{"ws://127.0.0.1:9001", "ws://127.0.0.1:9001", true},
		{"127.0.0.1:1883", "mqtt://broker.example,mqtt://127.0.0.1", true},
		{"192.0.2.1:1883", "mqtt://127.0.0.1:1883", false},
		{"127.0.0.1:1883", "mqtt://127.0.0.1:1884", false},
		{"0.0.0.0:1883", "mqtt://192.0.2.1:1883", false},
		{"127.0.0.1:1883", "mqtt://broker.example:1883", false},
	} {
		_, err := given(t, []string{"--listen", test.listen, "--allow-anonymous"}, nil, "data: d\nbridges:\n  - {name: b, url: \""+test.url+"\", topics: [{filter: a, direction: out}]}")
		want := "f.yaml:2: bridges: the url " + test.url[strings.Index(test.url, ",")+1:] + " of bridge b is this server's own listener "
		if test.own && (err == nil || !strings.Contains(err.Error(), want)) || !test.own && err != nil {
			t.Errorf("%s and %s: %v, own: %v", test.listen, test.url, err, test.own)
		}
	}
}

// A number has one reading, wherever it is from, and a bound leaves room for sums.
func TestNumbersArePlainAndBounded(t *testing.T) {
	t.Parallel()
	for setting, values := range map[string][]string{
		"max-sessions":    {"010", "0x10", "0o17", "0b1", "1_000", "+5", "1e3", "1.0", "-1", "0", "1000000001", "9223372036854775807"},
		"max-keys":        {"010", "1_000", "1000000001"},
		"max-store-bytes": {"010", "1_000", "1e3", "0x10", "-1", "0", "1025TiB", "8EiB"},
		"connect-timeout": {"5", "1_0s", "1d", "-5s", "0", "876001h", "1ns"},
		"max-keep-alive":  {"1.5s", "1ns", "-1s", "65536s"},
		"allow-anonymous": {"yes", "no", "on", "off"},
		"wire":            {"azure"},
	} {
		for _, value := range values {
			variable := config.VariableOf(setting)
			for place, load := range map[string]func() error{
				"f.yaml:1: ": func() error { _, err := given(t, nil, nil, setting+": "+value); return err },
				variable:     func() error { _, err := given(t, nil, []string{variable + "=" + value}, ""); return err },
				"":           func() error { return newSettings("test").flags.Parse([]string{"--" + setting + "=" + value}) },
			} {
				if place == "" && setting == "max-keep-alive" {
					continue // a flag is compared with whole seconds when all are known
				}
				if err := load(); err == nil || !strings.Contains(err.Error(), place) || place != "" && !strings.Contains(err.Error(), "want ") {
					t.Errorf("%s %s: got %v, want %q and what is wanted", setting, value, err, place)
				}
			}
		}
	}
	for setting, value := range map[string]string{"max-sessions": "1000000000", "max-store-bytes": "1024TiB", "connect-timeout": "876000h", "max-keep-alive": "0s", "wire": "documented"} {
		if _, err := given(t, nil, nil, setting+": "+value); err != nil {
			t.Errorf("%s: %s: %v", setting, value, err)
		}
	}
}

// The place counts that is first, for each kind of setting.
func TestPrecedenceOfEachKind(t *testing.T) {
	t.Parallel()
	for setting, values := range map[string][4]string{ // of a flag, a variable and the file; the default
		"allow-anonymous": {"true", "false", "true", "false"},
		"max-sessions":    {"1", "2", "3", ""},
		"max-keys":        {"1", "2", "3", ""},
		"max-store-bytes": {"1KiB", "2KiB", "3KiB", ""},
		"max-packet-size": {"1KiB", "2KiB", "3KiB", ""},
		"connect-timeout": {"1s", "2s", "3s", "10s"},
		"queue-full":      {"reject", "drop-oldest", "end-session", ""},
		"durability":      {"none", "interval=20", "interval=30", "sync"},
		"data":            {"/a", "/b", "/c", "holdfast-data"},
		"listen":          {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:1883"},
		"ws-origin":       {"a", "b", "c", ""},
		"tls-identity":    {"cn", "san-dns", "san-uri", ""},
	} {
		args, environment, file := []string{"--" + setting + "=" + values[0]}, []string{config.VariableOf(setting) + "=" + values[1]}, setting+": "+values[2]
		for i, want := range values {
			s := newSettings("test")
			name := filepath.Join(t.TempDir(), "f.yaml")
			if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				args = nil
			}
			if i > 1 {
				environment = nil
			}
			if i < 3 {
				environment = append(environment, "HOLDFAST_CONFIG="+name)
			}
			if err := s.flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			if err := s.load(environment); err != nil && setting != "tls-identity" { // which needs certificates
				t.Errorf("%s: %v", setting, err)
			}
			if got := strings.Join(texts(s.flags.Lookup(setting).Value), " "); got != want {
				t.Errorf("%s: with %q, %q and a file: %q, want %q", setting, args, environment, got, want)
			}
		}
	}
}

// Groups have strategies by a mapping of the file, or by a flag.
func TestStrategiesOfGroups(t *testing.T) {
	t.Parallel()
	want := map[string]limits.Strategy{"jobs": limits.Sticky, "lines": limits.HashTopic}
	for name, test := range map[string]struct {
		args, environment []string
		file              string
	}{
		"a mapping": {nil, nil, "shared-strategy: hash-client\nshared-strategies:\n  jobs: sticky\n  lines: hash-topic"},
		"a list":    {nil, nil, "shared-strategy: hash-client\nshared-strategies: [jobs=sticky, lines=hash-topic]"},
		"flags":     {[]string{"--shared-strategies", "jobs=sticky", "--shared-strategies", "lines=hash-topic"}, []string{"HOLDFAST_SHARED_STRATEGY=hash-client"}, ""},
	} {
		s, err := given(t, test.args, test.environment, test.file)
		if err != nil || !maps.Equal(s.cfg.Limits.SharedStrategies, want) || s.cfg.Limits.SharedStrategy != limits.HashClient {
			t.Errorf("%s: %v", name, err)
		}
	}
	for file, want := range map[string]string{
		"shared-strategies:\n  jobs: random":           `f.yaml:2: shared-strategies: "jobs=random": want GROUP=STRATEGY`,
		"shared-strategies:\n  a/b: sticky":            `f.yaml:2: shared-strategies: "a/b=sticky": want GROUP=STRATEGY`,
		"shared-strategies: [a=sticky, a=hash-topic]":  `f.yaml:1: shared-strategies: "a=hash-topic": want GROUP=STRATEGY, each group once`,
		"shared-strategies:\n  a: sticky\n  a: sticky": "f.yaml:3: a is set in line 2 already",
		"shared-strategies:\n  a: {b: c}":              "f.yaml:2: a: want a value, not settings",
		"shared-strategy: random":                      "round-robin, sticky, hash-client or hash-topic",
	} {
		if _, err := given(t, nil, nil, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}

// At most so many groups have a strategy of their own.
func TestStrategiesAreBounded(t *testing.T) {
	t.Parallel()
	var all map[string]limits.Strategy
	v := strategiesValue{&all}
	for i := range maxStrategies {
		if err := v.Set(fmt.Sprintf("g%d=sticky", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Set("more=sticky"); err == nil {
		t.Error("there is one more than there may be")
	}
}

// Each flag's variable is known, and no other command's variable is taken for one.
func TestEachSettingHasAVariable(t *testing.T) {
	t.Parallel()
	for _, one := range newSettings("test").all(server.Config{}) {
		if one.Name == config.ListenersKey || one.Name == config.BridgesKey {
			continue
		}
		// An empty variable sets nothing, but one that is not known is noted.
		if s, err := given(t, nil, []string{config.VariableOf(one.Name) + "="}, ""); err != nil || len(s.loaded.Unknown) > 0 {
			t.Errorf("%s: %v, unknown %v", one.Name, err, s.loaded.Unknown)
		}
	}
	s, err := given(t, nil, []string{"HOLDFAST_HOST=h", "HOLDFAST_PORT=1", "HOLDFAST_TLS=1", "HOLDFAST_LOCK_NAME=l", "HOLDFAST_CAPASSWORD=x"}, "")
	if err != nil || len(s.loaded.Unknown) > 0 || len(s.loaded.Sources) > 0 {
		t.Errorf("%v, %+v", err, s.loaded)
	}
}

// What the command config prints, and what is said to be wrong with a setting, has no password and no
// value of a header.
func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"--json=false", "--json=true"} {
		var out strings.Builder
		cmd := NewConfigCommand()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{form, "--webhook", "https://auth.example.com/hooks/s3cret?token=s3cret", "--otlp-endpoint", "http://127.0.0.1:4318",
			"--otlp-header", "Authorization: Bearer s3cret", "--otlp-header", "X-Key=s3cret"})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		printed := out.String()
		if strings.Contains(printed, "s3cret") || !strings.Contains(printed, "https://auth.example.com/…") ||
			!strings.Contains(printed, "Authorization=…") || !strings.Contains(printed, "X-Key=…") {
			t.Error(printed)
		}
	}
	for _, name := range []string{"webhook", "otlp-endpoint", "listen", "ws"} {
		for _, url := range []string{"http://u:s3cret@127.0.0.1:1883", "http://u:s3/cret@127.0.0.1:1883", "http://u:s3 cret@127.0.0.1:1883", "u:s3cret@127.0.0.1:1883"} {
			_, err := given(t, []string{"--" + name, url}, nil, "")
			if err == nil || strings.Contains(err.Error(), "s3") {
				t.Errorf("--%s %s: %v", name, url, err)
			}
		}
	}
}
