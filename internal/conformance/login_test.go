package conformance

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/mqtttest"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/logs"
)

// keeper is a server that asks clients who they are: alice and bob have the password
// "secret" of their name, and tokens are signed with its key.
type keeper struct {
	*node
	users, keys string // files
	audit       string // file
	signer      ed25519.PrivateKey
}

func startKeeper(t *testing.T, change ...func(*server.Config)) *keeper {
	t.Helper()
	dir := t.TempDir()
	k := &keeper{users: filepath.Join(dir, "users"), keys: filepath.Join(dir, "keys.pem"), audit: filepath.Join(dir, "audit.log")}
	for _, user := range []string{"alice", "bob"} {
		k.set(t, user, secretOf(user))
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k.signer = private
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(k.keys, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	k.node = start(t, append([]func(*server.Config){func(c *server.Config) {
		c.Login.PasswordFile, c.Login.JWTKeys, c.AuditLog = k.users, k.keys, k.audit
		c.ReloadInterval = time.Hour // tests say when
	}}, change...)...)
	return k
}

func (k *keeper) set(t *testing.T, user, password string) {
	t.Helper()
	if err := passwd.Set(k.users, user, []byte(password), passwd.MinIterations); err != nil {
		t.Fatal(err)
	}
}

func secretOf(user string) string { return "secret-of-" + user }

// user are the credentials of a user.
func user(name string) mqtttest.Option { return mqtttest.Credentials(name, secretOf(name)) }

// token is one of a subject, which expires after so long.
func (k *keeper) token(subject string, lives time.Duration) string {
	k.t.Helper()
	s, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{"iss": "issuer", "sub": subject, "exp": time.Now().Add(lives).Unix()}).SignedString(k.signer)
	if err != nil {
		k.t.Fatal(err)
	}
	return s
}

// by is a CONNECT with an authentication method and its data.
func by(method, data string) mqtttest.Option {
	return mqtttest.Raw(func(c *mqtt.Connect) {
		c.AuthMethod, c.HasAuthMethod = []byte(method), true
		c.AuthData, c.HasAuthData = []byte(data), true
	})
}

func reauth(method, data string) []byte {
	return mqtt.AppendAuth(nil, &mqtt.Auth{Code: mqtt.Reauthenticate, AuthMethod: []byte(method), HasAuthMethod: true, AuthData: []byte(data), HasAuthData: true})
}

func TestLogins(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	for _, v := range []mqtt.Version{mqtt.V311, mqtt.V5} {
		k.connect(user("alice"), mqtttest.Version(v)).Ping()
		k.connect(mqtttest.Credentials("any", k.token("carol", time.Hour)), mqtttest.Version(v)).Ping()
		mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials("alice", "wrong"), mqtttest.Version(v))
		mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials("mallory", "wrong"), mqtttest.Version(v))
		mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, mqtttest.Version(v))
	}
}

// The sentences of MQTT 5, section 4.12, in the order of the text.
func TestEnhancedAuthentication(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	good := k.token("carol", time.Hour)

	t.Run("MQTT-4.12.0-1 a method that is not supported", func(t *testing.T) {
		t.Parallel()
		wantReason(t, "CONNACK", mqtttest.Refused(t, k.Addr, mqtt.BadAuthenticationMethod, by("SCRAM-SHA-256", "x")).ReasonString)
		wantReason(t, "CONNACK", mqtttest.Refused(t, start(t).Addr, mqtt.BadAuthenticationMethod, by("JWT", good)).ReasonString)
	})
	// [MQTT-4.12.0-2] and [MQTT-4.12.0-3] are of exchanges in several steps. The server
	// has none, so a client's 0x18 continues nothing.
	t.Run("MQTT-4.12.0-3 an AUTH that continues nothing", func(t *testing.T) {
		t.Parallel()
		for _, code := range []mqtt.ReasonCode{mqtt.ContinueAuthentication, mqtt.Success} {
			c := k.connect(by("JWT", good))
			c.Write(mqtt.AppendAuth(nil, &mqtt.Auth{Code: code, AuthMethod: []byte("JWT"), HasAuthMethod: true}))
			c.ExpectDisconnect(mqtt.ProtocolError)
		}
	})
	t.Run("MQTT-4.12.0-4 a refusal ends the connection", func(t *testing.T) {
		t.Parallel()
		for _, data := range []string{"", "x", good + "x", k.token("carol", -time.Hour)} {
			ack := mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, by("JWT", data), mqtttest.ClientID("refused"+fmt.Sprint(len(data))))
			wantReason(t, "CONNACK", ack.ReasonString)
			if ack.AuthMethod != "" {
				t.Errorf("a refusal names the method %q", ack.AuthMethod)
			}
		}
	})
	t.Run("MQTT-4.12.0-5 CONNACK and AUTH name the method of CONNECT", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{"JWT", "K8S-SAT"} {
			c := k.connect(by(method, good))
			if c.Connack.AuthMethod != method {
				t.Errorf("CONNACK names %q, want %q", c.Connack.AuthMethod, method)
			}
			c.Write(reauth(method, k.token("carol", 2*time.Hour)))
			a := c.Expect(mqtt.AUTH).Auth
			if a.Code != mqtt.Success || string(a.AuthMethod) != method {
				t.Errorf("got AUTH %v with the method %q, want Success with %q", a.Code, a.AuthMethod, method)
			}
			c.Ping()
		}
	})
	t.Run("MQTT-4.12.0-6 without a method there is none in CONNACK", func(t *testing.T) {
		t.Parallel()
		if c := k.connect(user("alice")); c.Connack.AuthMethod != "" || c.Connack.AuthData != nil {
			t.Errorf("CONNACK names the method %q", c.Connack.AuthMethod)
		}
	})
	t.Run("MQTT-4.12.0-7 without a method there is no AUTH", func(t *testing.T) {
		t.Parallel()
		c := k.connect(mqtttest.Credentials("any", good))
		c.Write(reauth("JWT", good))
		c.ExpectDisconnect(mqtt.ProtocolError)
		old := k.connect(user("alice"), mqtttest.V311())
		old.Write(reauth("JWT", good))
		old.ExpectClosed()
	})
	t.Run("MQTT-4.12.1-1 the method does not change", func(t *testing.T) {
		t.Parallel()
		c := k.connect(by("JWT", good))
		c.Write(reauth("K8S-SAT", good))
		c.ExpectDisconnect(mqtt.BadAuthenticationMethod)
	})
	t.Run("MQTT-4.12.1-2 a failure ends the connection", func(t *testing.T) {
		t.Parallel()
		for i, data := range []string{"", "x", k.token("carol", -time.Hour), k.token("mallory", time.Hour)} {
			c := k.connect(by("JWT", good), mqtttest.ClientID(fmt.Sprint("failing", i)))
			c.Write(reauth("JWT", data))
			wantReason(t, "DISCONNECT", c.ExpectDisconnect(mqtt.NotAuthorized).Disconnect.ReasonString)
		}
	})
	t.Run("MQTT-3.1.2-30 nothing but AUTH and DISCONNECT before CONNACK", func(t *testing.T) {
		t.Parallel()
		c := k.dial()
		c.Write(mqtt.AppendPingreq(c.EncodeConnect(by("JWT", good))))
		c.ExpectRefused(mqtt.ProtocolError)
		// Without a method a client may send at once what it likes [MQTT-3.1.4, non-normative].
		c = k.dial()
		c.Write(mqtt.AppendPingreq(c.EncodeConnect(mqtttest.Credentials("any", good))))
		c.Expect(mqtt.CONNACK)
		c.Expect(mqtt.PINGRESP)
		// A client may go again without waiting.
		c = k.dial()
		c.Write(mqtt.AppendDisconnect(c.EncodeConnect(by("JWT", good)), mqtt.V5, &mqtt.Disconnect{}))
		c.Expect(mqtt.CONNACK)
		c.AwaitEnd()
	})
}

// The sentences of MQTT 5, section 3.15, about the packet itself.
func TestAuthPackets(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	good := k.token("carol", time.Hour)
	method := string(mqtt.AppendStringProp(nil, mqtt.PropAuthMethod, "JWT"))
	auth := func(first byte, code byte, props string) []byte {
		return append([]byte{first, byte(2 + len(props)), code, byte(len(props))}, props...)
	}
	for name, c := range map[string]struct {
		packet []byte
		want   mqtt.ReasonCode
	}{
		"MQTT-3.15.1-1 reserved flags":                 {auth(0xF1, 0x19, method), mqtt.MalformedPacket},
		"MQTT-3.15.2-1 an unknown reason code":         {auth(0xF0, 0x87, method), mqtt.ProtocolError},
		"3.15.2.2.2 without a method":                  {auth(0xF0, 0x19, ""), mqtt.ProtocolError},
		"3.15.2.2.2 with two methods":                  {auth(0xF0, 0x19, method+method), mqtt.ProtocolError},
		"3.15.2.2.3 with data twice":                   {auth(0xF0, 0x19, method+"\x16\x00\x01x\x16\x00\x01x"), mqtt.ProtocolError},
		"3.15.2.1 without reason code and properties":  {[]byte{0xF0, 0}, mqtt.ProtocolError},
		"3.15.2.2 with a property of another packet":   {auth(0xF0, 0x19, method+"\x24\x01"), mqtt.MalformedPacket},
		"3.15.2.2 with properties that are cut off":    {[]byte{0xF0, 3, 0x19, 9, 0x15}, mqtt.MalformedPacket},
		"3.15.2.2 with bytes behind the properties":    {append([]byte{0xF0, byte(3 + len(method)), 0x19, byte(len(method))}, method+"x"...), mqtt.MalformedPacket},
		"3.15.2.2.4 a reason string that is not UTF-8": {auth(0xF0, 0x19, method+"\x1f\x00\x01\xff"), mqtt.MalformedPacket},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := k.connect(by("JWT", good))
			conn.Write(c.packet)
			p := conn.Next()
			if p.Type != mqtt.DISCONNECT || p.Disconnect.Code != c.want {
				t.Fatalf("got %v, want DISCONNECT 0x%02x %v", p, byte(c.want), c.want)
			}
			conn.ExpectClosed()
		})
	}
	// [MQTT-3.1.0-1]: before CONNECT it is nothing.
	c := k.dial()
	c.Write(reauth("JWT", good))
	c.ExpectClosed()
}

// Traffic goes on while a client authenticates again, and it stays who it is.
func TestReauthenticationKeepsTheSession(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	c := k.connect(by("JWT", k.token("carol", time.Hour)), mqtttest.Persistent("carol"))
	c.Subscribe("a", 1)
	var all []byte
	for i := range 10 {
		all = append(all, reauth("JWT", k.token("carol", time.Duration(2+i)*time.Hour))...)
		all = append(all, mqtttest.EncodePublish(mqtt.V5, message{Topic: "a", Payload: fmt.Sprint(i)})...)
	}
	c.Write(all)
	for range 10 {
		c.Await("AUTH", func(p *mqtttest.Packet) bool { return p.Type == mqtt.AUTH })
	}
	wantPayloads(t, c.Collect(), counted(0, 10))
	c.Disconnect()
	wantPresent(t, k.connect(by("JWT", k.token("carol", time.Hour)), mqtttest.Persistent("carol")), true)
}

// A token that has expired ends its connection with 0xA0, which tells the client to come
// again with another one; a new token in time keeps it.
func TestAnExpiredTokenEndsItsConnection(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	const leeway, lives = 30 * time.Second, 6 * time.Second // by then the second one has proven itself again
	short := k.token("carol", lives-leeway)
	c := k.connect(by("JWT", short), mqtttest.ClientID("c"), mqtttest.Will(message{Topic: "gone"}, 0))
	old := k.connect(mqtttest.Credentials("any", k.token("carol", lives-leeway)), mqtttest.V311(), mqtttest.ClientID("old"))
	kept := k.connect(by("JWT", short), mqtttest.ClientID("kept"))
	watcher := k.connect(user("alice"))
	watcher.Subscribe("gone", 0)
	kept.Write(reauth("JWT", k.token("carol", time.Hour)))
	kept.Expect(mqtt.AUTH)
	wantReason(t, "DISCONNECT", c.ExpectDisconnect(mqtt.MaximumConnectTime).Disconnect.ReasonString)
	old.ExpectClosed()
	if got := watcher.Receive(); got.Topic != "gone" {
		t.Errorf("got %v, want the will", got)
	}
	kept.Ping()
}

// Only the principal that a session belongs to may go on with it, end it or take it over;
// this stays so over restarts.
func TestSessionsBelongToTheirOwner(t *testing.T) {
	t.Parallel()
	k := startKeeper(t, func(c *server.Config) { c.AllowAnonymous = true })
	watcher := k.connect(user("bob"))
	watcher.Subscribe("will", 1)
	sessions := map[string][]mqtttest.Option{
		"of alice": {user("alice")},
		"of carol": {by("JWT", k.token("carol", time.Hour))},
		"of all":   {},
	}
	conns := map[string]*client{}
	for name, who := range sessions {
		c := k.connect(append(who, mqtttest.Persistent(name), mqtttest.Will(message{Topic: "will", QoS: 1}, 0))...)
		c.Subscribe("queue", 1)
		conns[name] = c
	}
	intrude := func(name string, session string) {
		t.Helper()
		for other, who := range sessions {
			for _, resume := range []mqtttest.Option{mqtttest.Persistent(session), mqtttest.ClientID(session)} {
				if other != session {
					wantReason(t, name, mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, append(who[:len(who):len(who)], resume)...).ReasonString)
				}
			}
		}
		wantReason(t, name, mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, user("bob"), mqtttest.ClientID(session)).ReasonString)
		mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, user("bob"), mqtttest.ClientID(session), mqtttest.V311())
	}
	for session, c := range conns {
		intrude("connected", session)
		c.Ping() // its connection is still there
	}
	watcher.Quiet() // no will was published
	for _, c := range conns {
		c.Disconnect()
	}
	for session := range conns {
		intrude("away", session)
	}
	k.Restart()
	watcher = k.connect(user("bob"))
	watcher.Publish(message{Topic: "queue", QoS: 1, Payload: "waited"})
	for session := range conns {
		intrude("after a restart", session)
	}
	for session, who := range sessions {
		c := k.connect(append(who, mqtttest.Persistent(session))...)
		wantPresent(t, c, true)
		if got := c.Receive(); got.Payload != "waited" {
			t.Errorf("%s: got %v", session, got)
		}
		// Its owner may end it, and from then on it is for the next one.
		c.Disconnect()
		k.connect(append(who, mqtttest.ClientID(session))...).Disconnect()
		k.connect(user("bob"), mqtttest.Persistent(session)).Disconnect()
	}
}

// A client that has not proven who it is disturbs nothing, however many there are: neither
// the connection of a client ID, nor its will, nor the wait of its owner.
func TestUnauthenticatedConnectsDisturbNothing(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	watcher := k.connect(user("bob"))
	watcher.Subscribe("will", 1)
	c := k.connect(user("alice"), mqtttest.ClientID("victim"), mqtttest.Will(message{Topic: "will"}, 0))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				a := mqtttest.Dial(t, k.Addr)
				a.SendConnect(mqtttest.Credentials("alice", "guess"), mqtttest.ClientID("victim"))
				if code := a.Expect(mqtt.CONNACK).Connack.Code; code != mqtt.BadUserNameOrPassword && code != mqtt.ConnectionRateExceeded && code != mqtt.ServerBusy {
					t.Errorf("a guess gets 0x%02x %v", byte(code), code)
				}
			}
		})
	}
	all.Wait()
	c.Ping()
	watcher.Quiet()
}

// A user who is taken out of the password file, or gets another password, is disconnected
// when it is read again; others stay.
func TestPasswordsAreReadAgain(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	alice, bob, carol := k.connect(user("alice")), k.connect(user("bob")), k.connect(by("JWT", k.token("carol", time.Hour)))
	k.set(t, "alice", "another")
	if err := k.Reload(); err != nil {
		t.Fatal(err)
	}
	wantReason(t, "DISCONNECT", alice.ExpectDisconnect(mqtt.NotAuthorized).Disconnect.ReasonString)
	bob.Ping()
	carol.Ping()
	mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, user("alice"))
	k.connect(mqtttest.Credentials("alice", "another"), mqtttest.ClientID("again")).Ping()
	if err := passwd.Delete(k.users, "bob"); err != nil {
		t.Fatal(err)
	}
	if err := k.Reload(); err != nil {
		t.Fatal(err)
	}
	bob.ExpectDisconnect(mqtt.NotAuthorized)
	// A file with an error in it changes nothing.
	if err := os.WriteFile(k.users, []byte("alice:plain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.Reload(); err == nil || !strings.Contains(err.Error(), k.users+":1: ") {
		t.Errorf("got %v, want an error with file and line", err)
	}
	k.connect(mqtttest.Credentials("alice", "another"), mqtttest.ClientID("yet again")).Ping()
}

// When a key of tokens is removed, as after it was stolen, the connections end that a token
// of that key has proven, with 0xA0: their clients may come again with a token of another
// key, and find their sessions. Tokens of the keys that stay go on, and a key that is added
// ends nothing.
func TestKeysOfTokensAreReadAgain(t *testing.T) {
	t.Parallel()
	k := startKeeper(t)
	old, err := os.ReadFile(k.keys)
	if err != nil {
		t.Fatal(err)
	}
	public, next, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	added := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	reload := func(keys ...[]byte) {
		t.Helper()
		if err := os.WriteFile(k.keys, bytes.Join(keys, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := k.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	ofOldKey := k.token("carol", time.Hour)
	c := k.connect(by("JWT", ofOldKey), mqtttest.Persistent("carol"))
	asPassword := k.connect(mqtttest.Credentials("any", ofOldKey), mqtttest.V311())
	changing := k.connect(by("JWT", ofOldKey), mqtttest.ClientID("changing"))
	alice := k.connect(user("alice"))

	// A key is added: both are good.
	reload(old, added)
	k.signer = next
	dave := k.connect(by("JWT", k.token("dave", time.Hour)), mqtttest.ClientID("dave"))
	changing.Write(reauth("JWT", k.token("carol", time.Hour)))
	changing.Expect(mqtt.AUTH)
	c.Ping()
	asPassword.Ping()

	// The old one is removed.
	reload(added)
	wantReason(t, "DISCONNECT", c.ExpectDisconnect(mqtt.MaximumConnectTime).Disconnect.ReasonString)
	asPassword.ExpectClosed()
	dave.Ping()
	changing.Ping() // it has proven itself again by the new key
	alice.Ping()
	mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, by("JWT", ofOldKey), mqtttest.Persistent("carol"))
	wantPresent(t, k.connect(by("JWT", k.token("carol", time.Hour)), mqtttest.Persistent("carol")), true)

	// A file that cannot be used ends nothing.
	if err := os.WriteFile(k.keys, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.Reload(); err == nil {
		t.Error("broken keys are read")
	}
	dave.Ping()
}

// No log has a password, a token or a part of one in it, whatever goes wrong.
func TestNoSecretsInLogs(t *testing.T) {
	t.Parallel()
	var log logs.Text
	k := startKeeper(t, func(c *server.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	good, foreign := k.token("carol", time.Hour), k.token("mallory", time.Hour)
	expired := k.token("carol", -time.Hour)
	broken := "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ0b3BzZWNyZXQifQ.brokenbrokenbroken"
	secrets := []string{secretOf("alice"), "wrong-guess", "another-guess", good, foreign, expired, broken}

	k.connect(user("alice"), mqtttest.ClientID("one")).Ping()
	k.connect(user("alice"), mqtttest.ClientID("one")).Ping() // a takeover
	mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials("alice", "wrong-guess"))
	mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials("mallory", "another-guess"), mqtttest.V311())
	mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, user("alice"), mqtttest.ClientID("one"), by("JWT", good)) // of another owner
	mqtttest.Refused(t, k.Addr, mqtt.BadUserNameOrPassword, mqtttest.Credentials("any", broken))
	for _, data := range []string{expired, broken} {
		mqtttest.Refused(t, k.Addr, mqtt.NotAuthorized, by("JWT", data))
	}
	mqtttest.Refused(t, k.Addr, mqtt.BadAuthenticationMethod, by("other", good))
	c := k.connect(by("JWT", good), mqtttest.ClientID("carol"))
	c.Write(reauth("JWT", good))
	c.Expect(mqtt.AUTH)
	c.Write(reauth("JWT", foreign))
	c.ExpectDisconnect(mqtt.NotAuthorized)
	// Packets that can't be read, and a connection that ends in the middle of one.
	d := k.dial()
	connect := d.EncodeConnect(user("alice"))
	d.Write(connect[:len(connect)-4])
	d.Drop()
	d = k.dial()
	connect = d.EncodeConnect(user("alice"), mqtttest.ClientID("\xff"))
	d.Write(connect)
	d.Next()
	// Files with errors in them.
	for _, file := range []string{k.users, k.keys} {
		if err := os.WriteFile(file, []byte("alice:"+secretOf("alice")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Reload(); err == nil {
		t.Error("broken files are read")
	}
	k.Stop()

	audit, err := os.ReadFile(k.audit)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"log": log.String(), "audit log": string(audit)} {
		for _, secret := range secrets {
			for _, part := range strings.Split(secret, ".") {
				if len(part) > 6 && strings.Contains(text, part) {
					t.Errorf("the %s has a secret in it, %q:\n%s", name, part, text)
				}
			}
		}
	}
	// It has what it is for.
	for _, want := range []string{
		`"event":"connected","client":"one"`, `"event":"took over","client":"one"`, `"user":"mallory"`, `"owner":"user:alice"`, `"owner":"token:issuer#carol"`,
		`"code":"0x86"`, `"event":"re-authenticated"`, `"event":"re-authentication failed"`, `"event":"configuration rejected"`,
	} {
		if !strings.Contains(string(audit), want) {
			t.Errorf("the audit log has no line with %s:\n%s", want, audit)
		}
	}
}
