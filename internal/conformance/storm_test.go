package conformance

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// stormFile is a file of the configuration, and what is put in its place in turn: every
// other time something that cannot be used.
type stormFile struct {
	path   string
	phase  int // of two: files of the same one are good at the same time
	good   [][]byte
	broken string
}

// put puts a file in place at once, as an editor or a deployment does.
func (f *stormFile) put(t *testing.T, content []byte) {
	t.Helper()
	if err := os.WriteFile(f.path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

const stormPolicy = `rules:
- brokerResources:
  - method: Connect
  - {method: Publish, topics: ["own/#", "` + invokeTopic + `"]}
  - {method: Subscribe, topics: ["own/#", "clients/#"]}
  stateStoreResources:
  - {method: ReadWrite, keyType: Pattern, keys: ["own/*"]}
`

// All files of the configuration are exchanged again and again, for good ones and broken
// ones, with a reload each time and a look at the files every 2 ms, while clients connect,
// publish, use keys and authenticate again. No client notices anything: each file has at
// every time a content in force that allows what the clients do. Afterwards the last
// content is in force.
func TestReloadStorm(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	files, next := a.Mutual("server"), a.Server("next")
	files.ClientAuth = certs.Optional
	panel, stolen := a.Client("panel"), a.Client("stolen")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(stormPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	k := startKeeper(t, func(c *server.Config) {
		encrypted, err := listen.ParseURL("mqtts://127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.Listeners = []listen.Config{{URL: encrypted, TLS: files}}
		c.Policy, c.ReloadInterval = policy, 2*time.Millisecond
	})
	overTLS := k.URLs()[2].Host // behind TCP and WebSocket

	// What is exchanged.
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	users, keys, list := readFile(t, k.users), readFile(t, k.keys), readFile(t, files.CRL)
	if _, err := a.Revoke(a.File("stolen.crt")); err != nil {
		t.Fatal(err)
	}
	storm := []*stormFile{
		{policy, 0, [][]byte{[]byte(stormPolicy + "# the same\n"), []byte(stormPolicy)}, "rules: ["},
		{k.users, 1, [][]byte{append([]byte("# the same\n"), users...), users}, "alice:plain\n"},
		{k.keys, 0, [][]byte{append(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), keys...), keys}, "{"},
		{files.Key, 1, [][]byte{readFile(t, next.Key), readFile(t, files.Key)}, "nothing"},
		{files.Cert, 1, [][]byte{readFile(t, next.Cert), readFile(t, files.Cert)}, "nothing"},
		{files.CRL, 1, [][]byte{list, readFile(t, files.CRL)}, "nothing"}, // the last one revokes the stolen certificate
	}

	const reloads, rounds = 60, 10
	var over atomic.Bool
	var clients sync.WaitGroup
	// client runs a client until the storm is over, and at least for some rounds.
	client := func(round func(i int)) {
		clients.Go(func() {
			for i := 0; i < rounds || !over.Load(); i++ {
				round(i)
			}
		})
	}
	client(func(i int) { // connects by password, writes and reads a key, publishes
		r := k.requester(user("alice"), mqtttest.ClientID("alice"))
		r.want("+OK\r\n", "SET", "own/alice", fmt.Sprint(i))
		r.want(blob(fmt.Sprint(i)), "GET", "own/alice")
		r.Publish(message{Topic: "own/alice", QoS: 1})
		r.Disconnect()
	})
	client(func(int) { // connects by certificate
		nc, err := tls.Dial("tcp", overTLS, panel)
		if err != nil {
			t.Error(err)
			over.Store(true)
			return
		}
		c := mqtttest.NewClient(t, nc)
		c.Connect(mqtttest.ClientID("panel"))
		c.Subscribe("own/panel", 1)
		c.Publish(message{Topic: "own/panel", QoS: 1, Payload: "echo"})
		c.Receive()
		c.Disconnect()
		c.AwaitEnd()
	})
	carol := k.requester(by("JWT", k.token("carol", time.Hour)), mqtttest.ClientID("carol"))
	carol.Subscribe("own/carol", 1)
	client(func(i int) { // stays, and authenticates again
		carol.Write(reauth("JWT", k.token("carol", time.Duration(2+i%20)*time.Hour)))
		carol.Await("AUTH", func(p *mqtttest.Packet) bool { return p.Type == mqtt.AUTH })
		carol.want("+OK\r\n", "SET", "own/carol", fmt.Sprint(i))
		carol.Publish(message{Topic: "own/carol", QoS: 1, Payload: fmt.Sprint(i)})
		if got := carol.Receive(); got.Payload != fmt.Sprint(i) {
			t.Errorf("carol gets %v, want %d", got, i)
		}
	})
	bob := k.requester(user("bob"), mqtttest.ClientID("bob"))
	bob.want("+OK\r\n", "KEYNOTIFY", "own/bob")
	client(func(i int) { // stays, and watches a key
		bob.want("+OK\r\n", "SET", "own/bob", fmt.Sprint(i))
		notified(t, bob.client, "bob", "own/bob", setNotice(fmt.Sprint(i)))
	})

	for i := range reloads {
		for _, f := range storm {
			if (i+f.phase)%2 == 0 {
				f.put(t, []byte(f.broken))
			} else {
				f.put(t, f.good[i/2%len(f.good)])
			}
		}
		_ = k.Reload() // as at SIGHUP
	}
	over.Store(true)
	clients.Wait()

	// The files settle: what is in them comes into force without a word.
	for _, f := range storm {
		f.put(t, f.good[len(f.good)-1])
	}
	storm[0].put(t, []byte(strings.ReplaceAll(stormPolicy, `"own/#"`, `"own/#", "more/#"`)))
	for end := time.Now().Add(2 * mqtttest.Deadline); carol.Offer(message{Topic: "more/a", QoS: 1}).Code.Failed(); {
		if time.Now().After(end) {
			t.Fatal("the last policy did not come into force")
		}
	}
	if err := k.Reload(); err != nil {
		t.Errorf("good files are refused: %v", err)
	}
	if nc, err := tls.Dial("tcp", overTLS, stolen); err == nil { // with TLS 1.3 it learns by its first read that it was refused
		_ = nc.SetReadDeadline(time.Now().Add(mqtttest.Deadline))
		if _, err := io.ReadAll(nc); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a certificate that the last list revokes is not refused: %v", err)
		}
		nc.Close()
	}
	bob.Ping()
	k.Stop()
	wantStorm(t, k.audit, []string{"policy", "password file", "keys of tokens", "TLS configuration of mqtts://127.0.0.1:0"})
}

// wantStorm checks that each part of the configuration was changed, and refused, several
// times, as the audit log has it.
func wantStorm(t *testing.T, audit string, parts []string) {
	t.Helper()
	type line struct{ Event, What string }
	counts := map[line]int{}
	for text := range bytes.Lines(readFile(t, audit)) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		counts[l]++
	}
	for _, part := range parts {
		for _, event := range []string{"configuration changed", "configuration rejected"} {
			if counts[line{event, part}] < 3 {
				t.Errorf("%s: %q %d times; all of it: %v", part, event, counts[line{event, part}], counts)
			}
		}
	}
}
