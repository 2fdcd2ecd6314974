package mosquitto

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// convert converts a configuration, which finds the files that are given beside it by their names.
func convert(t *testing.T, conf string, beside map[string]string) (dir string, files map[string]string, problems []string, err error) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(dir, "mosquitto.conf")
	for name, content := range beside {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	made, found, err := Convert(path)
	files = make(map[string]string)
	for _, f := range made {
		files[f.Name] = strings.ReplaceAll(string(f.Content), dir, "DIR")
	}
	for _, p := range found {
		problems = append(problems, strings.ReplaceAll(p.String(), dir+string(filepath.Separator), ""))
	}
	return dir, files, problems, err
}

// users has the user a; acl lets it do something. Their hashes are of mosquitto_passwd 2.0.11.
const (
	users = "a:$7$101$/mE3GbJ79ZvAHut7$d9+Qmv/2z8kFP6HdzlRI2x0OUsnFPjFBvQicfT9UKAykqFWFD5nzAuIQsAUFziiE8vTs8pd+mT+koS4l6uZyFQ==\n"
	acl   = "user a\ntopic readwrite a/#\n"
)

func TestConvert(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		conf     string
		want     string   // the lines behind the first, with DIR for the directory
		problems []string // how they begin
	}{
		"no listener: on this machine only": {"# nothing\n\n", "listeners:\n  - url: \"mqtt://127.0.0.1:1883\"\n    anonymous: true\n", nil},
		"the listener of before 2.0":        {"port 1884\nallow_anonymous true\n", "listeners:\n  - url: \"mqtt://:1884\"\n    anonymous: true\n", nil},
		"an address of it":                  {"bind_address 192.0.2.1\nallow_anonymous true", "listeners:\n  - url: \"mqtt://192.0.2.1:1883\"\n    anonymous: true\n", nil},
		"listeners, and who may connect": {
			"listener 1883 ::1\nlistener 9001\nsocket_domain ipv4\nprotocol websockets\nmax_connections 5\nwebsockets_origin https://a.example\npassword_file users\n",
			"password-file: users\nlisteners:\n  - url: \"mqtt://[::1]:1883\"\n  - url: \"ws://0.0.0.0:9001\"\n    max-connections: 5\n    ws-origin: [\"https://a.example\"]\n", nil,
		},
		"certificates as names": {
			"listener 8883\ncertfile x.crt\nkeyfile /x.key\ncafile ca.crt\ncrlfile ca.crl\nrequire_certificate true\nuse_identity_as_username true\ntls_version tlsv1.3\nmax_connections -1",
			"listeners:\n  - url: \"mqtts://:8883\"\n    tls-cert: \"DIR/x.crt\"\n    tls-key: \"/x.key\"\n    tls-client-ca: \"DIR/ca.crt\"\n    tls-crl: \"DIR/ca.crl\"\n    tls-min-version: \"1.3\"\n", nil,
		},
		"settings of listeners without a counterpart": {
			"listener 8883\nallow_anonymous true\ncertfile x.crt\nkeyfile x.key\ncafile ca.crt\nciphers X\ntls_version tlsv1.1\nmax_qos 1\nuse_username_as_clientid true",
			"listeners:\n  - url: \"mqtts://:8883\"\n    anonymous: true\n    tls-cert: \"DIR/x.crt\"\n    tls-key: \"DIR/x.key\"\n",
			[]string{"mosquitto.conf:5: cafile has no effect", "mosquitto.conf:6: ciphers", "mosquitto.conf:7: tls_version tlsv1.1", "mosquitto.conf:8: max_qos", "mosquitto.conf:9: Holdfast does not replace"},
		},
		"limits": {
			"allow_anonymous true\nmax_inflight_messages 0\nmax_queued_bytes 1000\nmax_packet_size 5000\nmessage_size_limit 100000\nmax_keepalive 60\npersistent_client_expiration 2w\nsys_interval 5\npersistence_location data\nlog_type error\nlog_type notice\nlog_dest stderr\npersistence true",
			"max-inflight: 65535\nmax-inflight-v3: 65535\nmax-keep-alive: 60s\nmax-queued-bytes: 1000\ndata: \"DIR/data/holdfast\"\nmax-session-expiry: 336h\nsys-interval: 5s\nmax-packet-size: 5000\nlog-level: info\nlisteners:\n  - url: \"mqtt://127.0.0.1:1883\"\n    anonymous: true\n", nil,
		},
		"limits that are none": {
			"max_inflight_messages 70000\nmax_queued_messages -1\npersistent_client_expiration 1x\nmax_keepalive many\nsys_interval 0\nmessage_size_limit 0\npersistence false\nuser u\nplugin_opt_x y\nmistake 1\nmax_qos",
			"max-packet-size: 268435455\nlisteners:\n  - url: \"mqtt://127.0.0.1:1883\"\n    anonymous: true\n",
			[]string{
				"mosquitto.conf:1: max_inflight_messages", "mosquitto.conf:2: max_queued_messages", "mosquitto.conf:3: persistent_client_expiration", "mosquitto.conf:4: max_keepalive", "mosquitto.conf:5: the topics below $SYS",
				"mosquitto.conf:7: Holdfast always keeps", "mosquitto.conf:8: user: the server runs", "mosquitto.conf:9: plugin_opt_x: Holdfast has no plugins", "mosquitto.conf:10: \"mistake\" is not a setting", "mosquitto.conf:11: max_qos has no value",
			},
		},
		"a listener of each kind that is left out": {
			"listener 1 127.0.0.1\nlistener 1884\nmount_point m/\nlistener 1885\nbind_interface eth0\nlistener 1886\npsk_hint h\nlistener 1887\nprotocol mqttsn\nlistener 0 /run/socket\nlistener 70000\nallow_anonymous true",
			"listeners:\n  - url: \"mqtt://127.0.0.1:1\"\n    anonymous: true\n",
			[]string{
				"mosquitto.conf:3: the listener :1884 is left out: Holdfast has no mount_point", "mosquitto.conf:5: the listener :1885 is left out", "mosquitto.conf:7: the listener :1886 is left out", "mosquitto.conf:9: the listener :1887 is left out: Holdfast does not speak mqttsn",
				"mosquitto.conf:10: Holdfast has no listener on a Unix socket", "mosquitto.conf:11: \"70000\": want a port",
			},
		},
		"other files for another listener": {
			"per_listener_settings true\nlistener 1\npassword_file users\nlistener 2\npassword_file others\nlistener 3\nlistener 4\nacl_file acl\nallow_anonymous true\nlistener 5\nallow_anonymous true\nlistener 6\nplugin x.so",
			"password-file: users\nlisteners:\n  - url: \"mqtt://:1\"\n  - url: \"mqtt://:5\"\n    anonymous: true\n",
			[]string{
				"mosquitto.conf:4: the listener :2 is left out: it has another password_file", "mosquitto.conf:6: the listener :3 is left out: no client could log in", "mosquitto.conf:7: the listener :4 is left out: it has another acl_file",
				"mosquitto.conf:10: the listener :5 had no password_file", "mosquitto.conf:13: the listener :6 is left out: Holdfast has no plugins",
			},
		},
		"a bridge": {
			"connection plant 7\naddress broker.example:8883 other.example\ntopic a/# out 1 \"\" plant/\ntopic b/+ both 2 here/ there/\ntopic c\ntopic \"\" in 0 a b\ntopic a/#/b\nclientid gw\nusername u\nkeepalive_interval 30\nbridge_protocol_version mqttv50\nbridge_cafile ca.crt\ncleansession true\nstart_type lazy\nround_robin true",
			"listeners:\n  - url: \"mqtt://127.0.0.1:1883\"\n    anonymous: true\nbridges:\n  - name: \"plant-7\"\n    url: \"mqtts://broker.example:8883,mqtts://other.example:1883\"\n    tls-ca: \"DIR/ca.crt\"\n    version: \"5\"\n    keep-alive: 30s\n    client-id: \"gw\"\n    username: \"u\"\n    topics:\n" +
				"      - {filter: \"a/#\", direction: out, qos: 1, remote-prefix: \"plant/\"}\n      - {filter: \"b/+\", direction: both, qos: 2, local-prefix: \"here/\", remote-prefix: \"there/\"}\n      - {filter: \"c\", direction: out, qos: 0}\n",
			[]string{"mosquitto.conf:1: the bridge is named plant-7", "mosquitto.conf:2: the bridge plant-7 stays at an address", "mosquitto.conf:6: the topic is left out", "mosquitto.conf:7: the topic is left out", "mosquitto.conf:13: cleansession", "mosquitto.conf:14: start_type", "mosquitto.conf:15: round_robin"},
		},
		"bridges that are left out": {
			"topic x\nconnection a\nconnection b\naddress h\nbridge_psk 12\nconnection c\naddress h",
			"listeners:\n  - url: \"mqtt://127.0.0.1:1883\"\n    anonymous: true\n",
			[]string{"mosquitto.conf:1: topic belongs behind", "mosquitto.conf:2: the bridge a is left out: it has no address", "mosquitto.conf:5: the bridge b is left out", "mosquitto.conf:6: the bridge c is left out: it has no topic"},
		},
		"files of a directory": {"include_dir conf.d", "max-inflight: 5\nmax-inflight-v3: 5\nlisteners:\n  - url: \"mqtt://:7\"\n    anonymous: true\n", []string{"conf.d/2.conf:2: include_dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, files, problems, err := convert(t, test.conf, map[string]string{
				"users": users, "others": users, "acl": acl, "conf.d/1.conf": "listener 7\n", "conf.d/2.conf": "allow_anonymous true\ninclude_dir x\nmax_inflight_messages 5", "conf.d/no": "mistake",
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, rest, _ := strings.Cut(files[ConfigFile], "\n"); rest != test.want {
				t.Errorf("the configuration is\n%s\nwant\n%s", rest, test.want)
			}
			for i, p := range problems {
				if i >= len(test.problems) || !strings.HasPrefix(p, test.problems[i]) {
					t.Errorf("problem %d: %s", i, p)
				}
			}
			if len(problems) < len(test.problems) {
				t.Errorf("problems are %q; want %q", problems, test.problems)
			}
		})
	}
}

// The access control list becomes a policy, in which bridges have what they need: Mosquitto's lists
// do not apply to its own bridges.
func TestCredentials(t *testing.T) {
	t.Parallel()
	_, files, problems, err := convert(t, "listener 1883\npassword_file users\nacl_file acl\nconnection up\naddress h\nremote_username u\nremote_password secret\ntopic a/# both 1 x/\ntopic b in 0", map[string]string{"users": users, "acl": acl + "topic deny a/b\n"})
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) != 1 || !strings.HasPrefix(problems[0], "acl:3: deny") {
		t.Errorf("problems are %q", problems)
	}
	if files["users"] != users || files["bridge-up.txt"] != "secret\n" || strings.Contains(files[ConfigFile], "secret") {
		t.Errorf("files are %q", files)
	}
	if _, err := policy.Parse("policy.yaml", []byte(files["policy.yaml"])); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"- \"bridge/up\"\n", "Subscribe\n    topics:\n    - \"x/a/#\"\n", "Publish\n    topics:\n    - \"x/a/#\"\n    - \"b\"\n"} {
		if !strings.Contains(files["policy.yaml"], want) {
			t.Errorf("the policy lacks %q:\n%s", want, files["policy.yaml"])
		}
	}
}

// Nothing is made of a configuration that would have no listener, or of whose files one cannot be used.
func TestNothingConverted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ conf, want string }{
		"no login":             {"listener 1883", "mosquitto.conf:1: the listener :1883 is left out: no client could log in"},
		"no password file":     {"password_file none", "mosquitto.conf:1: "},
		"a bad password file":  {"password_file acl", "acl:1: "},
		"no list":              {"acl_file none", "mosquitto.conf:1: "},
		"a directory for list": {"acl_file .", "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, files, _, err := convert(t, test.conf, map[string]string{"acl": acl})
			if err == nil || !strings.Contains(err.Error(), test.want) || len(files) > 0 {
				t.Errorf("got %v and the error %v; want %q", files, err, test.want)
			}
		})
	}
	large := strings.Repeat("#", maxFile)
	if _, _, _, err := convert(t, large, nil); err != nil {
		t.Errorf("a file of %d bytes: %v", len(large), err)
	}
	if _, _, _, err := convert(t, large+"#", nil); err == nil {
		t.Error("a larger file is read")
	}
}

func FuzzConvert(f *testing.F) {
	f.Add("listener 1883\npassword_file users\nacl_file acl\nmax_inflight_messages 5")
	f.Add("per_listener_settings true\nlistener 1\nallow_anonymous true\nconnection a\naddress h\ntopic a/# both 2 x/ y/\nremote_password p")
	f.Fuzz(func(t *testing.T, conf string) {
		if strings.Contains(conf, "/") && !strings.Contains(conf, "a/#") || strings.Contains(conf, "..") {
			t.Skip("it might name files that are not the test's")
		}
		_, files, _, err := convert(t, conf, map[string]string{"users": users, "acl": acl})
		if (err == nil) != (files[ConfigFile] != "") {
			t.Errorf("error %v, files %q", err, files)
		}
	})
}
