package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/auth/throttle"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
)

// world is what a test has for its clients: a password file with alice, a key for tokens
// and a clock.
type world struct {
	t      *testing.T
	users  string // path
	keys   string // path
	signer *ecdsa.PrivateKey
	mu     sync.Mutex
	now    time.Time // guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, users: filepath.Join(t.TempDir(), "users"), keys: filepath.Join(t.TempDir(), "keys.pem"), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.set("alice", "secret")
	var err error
	if w.signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(w.signer.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.keys, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) set(user, password string) {
	w.t.Helper()
	if err := passwd.Set(w.users, user, []byte(password), passwd.MinIterations); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// all takes passwords, tokens and certificates.
func (w *world) all(change ...func(*Config)) *Authenticator {
	w.t.Helper()
	c := Config{PasswordFile: w.users, JWTKeys: w.keys, Certificates: true, Now: w.clock}
	for _, f := range change {
		f(&c)
	}
	a, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) token(claims map[string]any) string {
	w.t.Helper()
	all := jwt.MapClaims{"iss": "issuer", "sub": "bob", "exp": w.clock().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	s, err := jwt.NewWithClaims(jwt.SigningMethodES256, all).SignedString(w.signer)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// certificate gives what TLS says of a client whose certificate it has verified.
func (w *world) certificate(change ...func(*x509.Certificate)) *tls.ConnectionState {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	uri, _ := url.Parse("spiffe://plant/dev1")
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: w.clock().Add(-time.Hour), NotAfter: w.clock().Add(time.Hour),
		Subject:  pkix.Name{CommonName: "dev1", Organization: []string{"Plant"}, OrganizationalUnit: []string{"North", "Line 2"}},
		DNSNames: []string{"dev1.plant", "dev1.other"}, EmailAddresses: []string{"dev1@plant"}, URIs: []*url.URL{uri},
	}
	for _, f := range change {
		f(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		w.t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
}

func origin(ip string) *access.Origin {
	return &access.Origin{Remote: &net.TCPAddr{IP: net.ParseIP(ip), Port: 4000}}
}

// withPassword is a CONNECT with credentials.
func withPassword(user, password string) *mqtt.Connect {
	return &mqtt.Connect{Version: mqtt.V5, Username: []byte(user), HasUsername: true, Password: []byte(password), HasPassword: true}
}

func withMethod(method, data string) *mqtt.Connect {
	return &mqtt.Connect{Version: mqtt.V5, AuthMethod: []byte(method), HasAuthMethod: true, AuthData: []byte(data), HasAuthData: true}
}

func connect(a *Authenticator, p *mqtt.Connect, from *access.Origin) access.Verdict {
	return a.Connect(p, "c1", from, nil)
}

func wantRefused(t *testing.T, what string, v access.Verdict, code mqtt.ReasonCode) {
	t.Helper()
	if v.Code != code || v.Identity != nil || v.Reason == "" {
		t.Errorf("%s: got 0x%02x %v (%s), want 0x%02x %v", what, byte(v.Code), v.Code, v.Reason, byte(code), code)
	}
}

func wantIdentity(t *testing.T, what string, v access.Verdict, method access.Method, user, owner string) *access.Identity {
	t.Helper()
	if v.Code.Failed() || v.Identity == nil {
		t.Fatalf("%s: refused with 0x%02x %v (%s)", what, byte(v.Code), v.Code, v.Reason)
	}
	id := v.Identity
	if id.Method != method || id.Username != user || id.Owner != owner || id.ClientID != "c1" {
		t.Errorf("%s: got %s of %q with owner %q and client ID %q, want %s of %q with owner %q", what, id.Method, id.Username, id.Owner, id.ClientID, method, user, owner)
	}
	return id
}

func TestWhatAClientShowsDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all()
	here, tlsHere := origin("192.0.2.1"), origin("192.0.2.1")
	tlsHere.TLS = w.certificate()
	good := w.token(nil)

	wantIdentity(t, "a password", connect(a, withPassword("alice", "secret"), here), access.Password, "alice", "user:alice")
	wantIdentity(t, "a token as the password", connect(a, withPassword("anything", good), here), access.Token, "bob", "token:issuer#bob")
	wantIdentity(t, "a token by the method JWT", connect(a, withMethod("JWT", good), here), access.Token, "bob", "token:issuer#bob")
	wantIdentity(t, "a token by the method K8S-SAT, from a file with a newline", connect(a, withMethod("K8S-SAT", good+"\n"), here), access.Token, "bob", "token:issuer#bob")
	id := wantIdentity(t, "a certificate", connect(a, &mqtt.Connect{}, tlsHere), access.Certificate, "dev1", "cert:CN=dev1")
	for name, want := range map[string]string{"CN": "dev1", "O": "Plant", "OU": "North", "OU.2": "Line 2", "DNS": "dev1.plant", "URI": "spiffe://plant/dev1", "issuerCN": "dev1"} {
		if got := id.Attributes[name]; got != want {
			t.Errorf("attribute %s: got %q, want %q", name, got, want)
		}
	}
	wantIdentity(t, "a certificate and a user name without a password", connect(a, &mqtt.Connect{HasUsername: true, Username: []byte("alice")}, tlsHere), access.Certificate, "dev1", "cert:CN=dev1")
	wantIdentity(t, "a certificate and a password", connect(a, withPassword("alice", "secret"), tlsHere), access.Password, "alice", "user:alice")

	wantRefused(t, "a certificate and a wrong password", connect(a, withPassword("alice", "wrong"), tlsHere), mqtt.BadUserNameOrPassword)
	wantRefused(t, "an unknown user", connect(a, withPassword("mallory", "secret"), here), mqtt.BadUserNameOrPassword)
	wantRefused(t, "a password without a user", connect(a, &mqtt.Connect{HasPassword: true, Password: []byte("secret")}, here), mqtt.BadUserNameOrPassword)
	wantRefused(t, "a broken token as the password", connect(a, withPassword("alice", "eyJx.y.z"), here), mqtt.BadUserNameOrPassword)
	wantRefused(t, "a broken token by a method", connect(a, withMethod("JWT", "x"), here), mqtt.NotAuthorized)
	wantRefused(t, "a method without data", connect(a, &mqtt.Connect{HasAuthMethod: true, AuthMethod: []byte("JWT")}, here), mqtt.NotAuthorized)
	wantRefused(t, "an unknown method", connect(a, withMethod("SCRAM-SHA-1", good), tlsHere), mqtt.BadAuthenticationMethod)
	wantRefused(t, "nothing", connect(a, &mqtt.Connect{}, here), mqtt.NotAuthorized)
	unverified := origin("192.0.2.1")
	unverified.TLS = &tls.ConnectionState{PeerCertificates: tlsHere.TLS.PeerCertificates}
	wantRefused(t, "a certificate that was not verified", connect(a, &mqtt.Connect{}, unverified), mqtt.NotAuthorized)
}

// Attributes are those of the one proof that decides who the client is. A certificate that
// is shown besides adds none, also none whose name the token doesn't have; a password has
// none.
func TestAttributesAreOfOneProof(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all()
	here := origin("192.0.2.1")
	here.TLS = w.certificate() // O=Plant, OU=North, OU=Line 2, CN=dev1
	for name, p := range map[string]*mqtt.Connect{
		"by a method":     withMethod("JWT", w.token(map[string]any{"OU": "Guests", "role": "visitor"})),
		"as the password": withPassword("any", w.token(map[string]any{"OU": "Guests", "role": "visitor"})),
	} {
		id := wantIdentity(t, name, connect(a, p, here), access.Token, "bob", "token:issuer#bob")
		for name, want := range map[string]string{"OU": "Guests", "role": "visitor", "OU.2": "", "O": "", "CN": "", "issuerCN": ""} {
			if got := id.Attributes[name]; got != want {
				t.Errorf("%s: attribute %s is %q, want %q", name, name, got, want)
			}
		}
	}
	if id := wantIdentity(t, "a password", connect(a, withPassword("alice", "secret"), here), access.Password, "alice", "user:alice"); len(id.Attributes) > 0 {
		t.Errorf("a password has the attributes %v", id.Attributes)
	}
	if id := wantIdentity(t, "the certificate alone", connect(a, &mqtt.Connect{}, here), access.Certificate, "dev1", "cert:CN=dev1"); id.Attributes["OU"] != "North" {
		t.Errorf("the certificate's attributes are %v", id.Attributes)
	}
}

func TestMethodsThatAreNotConfigured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here, tlsHere := origin("192.0.2.1"), origin("192.0.2.1")
	tlsHere.TLS = w.certificate()
	good := w.token(nil)

	passwords := w.all(func(c *Config) { c.JWTKeys = "" })
	wantRefused(t, "a token by a method", connect(passwords, withMethod("JWT", good), here), mqtt.BadAuthenticationMethod)
	wantRefused(t, "a token as the password", connect(passwords, withPassword("bob", good), here), mqtt.BadUserNameOrPassword)
	tokens := w.all(func(c *Config) { c.PasswordFile = "" })
	wantRefused(t, "a password", connect(tokens, withPassword("alice", "secret"), here), mqtt.BadUserNameOrPassword)
	certificates := w.all(func(c *Config) { c.PasswordFile, c.JWTKeys = "", "" })
	wantIdentity(t, "a certificate and a password that nothing checks", connect(certificates, withPassword("alice", "secret"), tlsHere), access.Certificate, "dev1", "cert:CN=dev1")
	wantRefused(t, "a password that nothing checks", connect(certificates, withPassword("alice", "secret"), here), mqtt.NotAuthorized)
}

func TestAnonymousClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here := origin("192.0.2.1")
	open := origin("192.0.2.1")
	open.Listener = &access.Listener{Anonymous: true}
	named := &mqtt.Connect{HasUsername: true, Username: []byte("alice")}

	closed, everywhere := w.all(), w.all(func(c *Config) { c.Anonymous = true })
	wantRefused(t, "without credentials", connect(closed, named, here), mqtt.NotAuthorized)
	wantIdentity(t, "on a listener that allows it", connect(closed, &mqtt.Connect{}, open), access.Anonymous, "", "")
	wantIdentity(t, "with a user name that nothing proves", connect(everywhere, named, here), access.Anonymous, "", "")
	wantRefused(t, "with a wrong password", connect(everywhere, withPassword("alice", "wrong"), open), mqtt.BadUserNameOrPassword)
	onlyTLS := w.all(func(c *Config) { c.PasswordFile, c.JWTKeys, c.Anonymous = "", "", true })
	wantRefused(t, "with a password that nothing checks", connect(onlyTLS, withPassword("alice", "x"), here), mqtt.NotAuthorized)
}

func TestNamesInCertificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from := func(change ...func(*x509.Certificate)) *access.Origin {
		o := origin("192.0.2.1")
		o.TLS = w.certificate(change...)
		return o
	}
	for name, want := range map[TLSName][2]string{
		"":         {"dev1", "cert:CN=dev1"},
		CommonName: {"dev1", "cert:CN=dev1"},
		SANDNS:     {"dev1.plant", "cert:DNS=dev1.plant"},
		SANURI:     {"spiffe://plant/dev1", "cert:URI=spiffe://plant/dev1"},
		SANEmail:   {"dev1@plant", "cert:email=dev1@plant"},
		Subject:    {"CN=dev1,OU=North+OU=Line 2,O=Plant", "cert:subject=CN=dev1,OU=North+OU=Line 2,O=Plant"},
	} {
		a := w.all(func(c *Config) { c.TLSIdentity = name })
		wantIdentity(t, string(name), connect(a, &mqtt.Connect{}, from()), access.Certificate, want[0], want[1])
	}
	a := w.all()
	for what, change := range map[string]func(*x509.Certificate){
		"without a CN": func(c *x509.Certificate) { c.Subject.CommonName = "" },
		"with two CNs": func(c *x509.Certificate) {
			c.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: commonNameOID, Value: "a"}, {Type: commonNameOID, Value: "b"}}
		},
		"with a control character":   func(c *x509.Certificate) { c.Subject.CommonName = "a\nb" },
		"with a name of 1,025 bytes": func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("x", maxName+1) },
		"that has expired":           func(c *x509.Certificate) { c.NotAfter = w.clock() },
	} {
		wantRefused(t, "a certificate "+what, connect(a, &mqtt.Connect{}, from(change)), mqtt.NotAuthorized)
	}
	long := from(func(c *x509.Certificate) { c.Subject.CommonName = strings.Repeat("x", maxName) })
	if v := connect(a, &mqtt.Connect{}, long); v.Code.Failed() {
		t.Errorf("a name of %d bytes: %s", maxName, v.Reason)
	}
	dns := w.all(func(c *Config) { c.TLSIdentity = SANDNS })
	wantRefused(t, "a certificate without a DNS name", connect(dns, &mqtt.Connect{}, from(func(c *x509.Certificate) { c.DNSNames = nil })), mqtt.NotAuthorized)
	// Its end is that of the connection.
	if v := connect(a, &mqtt.Connect{}, from()); !v.Identity.Expires.Equal(w.clock().Add(time.Hour)) {
		t.Errorf("expires at %v", v.Identity.Expires)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here := origin("192.0.2.1")
	a := w.all(func(c *Config) { c.JWTIssuer, c.JWTAudience, c.JWTUsername = "issuer", []string{"holdfast"}, "name" })
	good := map[string]any{"aud": "holdfast", "name": "robert", "area": "north"}
	id := wantIdentity(t, "a token", connect(a, withPassword("robert", w.token(good)), here), access.Token, "robert", "token:issuer#bob")
	if id.Attributes["area"] != "north" || !id.Expires.Equal(w.clock().Add(time.Hour+30*time.Second)) {
		t.Errorf("got attributes %v, expiry %v", id.Attributes, id.Expires)
	}
	wantIdentity(t, "without a user name", connect(a, withMethod("JWT", w.token(good)), here), access.Token, "robert", "token:issuer#bob")
	wantRefused(t, "with another user name", connect(a, withPassword("alice", w.token(good)), here), mqtt.BadUserNameOrPassword)
	wantRefused(t, "without the claim", connect(a, withMethod("JWT", w.token(map[string]any{"aud": "holdfast"})), here), mqtt.NotAuthorized)
	wantRefused(t, "for another audience", connect(a, withMethod("JWT", w.token(map[string]any{"aud": "x", "name": "robert"})), here), mqtt.NotAuthorized)
	expired := w.token(good)
	w.pass(time.Hour + time.Minute)
	v := connect(a, withMethod("JWT", expired), here)
	wantRefused(t, "an expired one", v, mqtt.NotAuthorized)
	if v.Reason != "the token has expired" {
		t.Errorf("the reason is %q", v.Reason)
	}
	// An issuer can't have a subject that makes it look like another issuer.
	open := w.all()
	one := connect(open, withMethod("JWT", w.token(map[string]any{"iss": "a#b", "sub": "c"})), here).Identity
	other := connect(open, withMethod("JWT", w.token(map[string]any{"iss": "a", "sub": "b#c"})), here).Identity
	if one.Owner == other.Owner {
		t.Errorf("both own %q", one.Owner)
	}
}

func TestReauthentication(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here := origin("192.0.2.1")
	a := w.all()
	id := wantIdentity(t, "the first token", connect(a, withMethod("JWT", w.token(nil)), here), access.Token, "bob", "token:issuer#bob")
	again := func(id *access.Identity, data string) access.Verdict {
		return a.Reauthenticate(id, &mqtt.Auth{AuthMethod: []byte("JWT"), HasAuthMethod: true, AuthData: []byte(data), HasAuthData: true}, here, nil)
	}
	w.pass(50 * time.Minute)
	next := wantIdentity(t, "the next token", again(id, w.token(map[string]any{"level": 2})), access.Token, "bob", "token:issuer#bob")
	if !next.Expires.After(id.Expires) || next.Attributes["level"] != "2" {
		t.Errorf("got %+v", next)
	}
	wantRefused(t, "a token of another subject", again(id, w.token(map[string]any{"sub": "mallory"})), mqtt.NotAuthorized)
	wantRefused(t, "a token of another issuer", again(id, w.token(map[string]any{"iss": "mallory"})), mqtt.NotAuthorized)
	wantRefused(t, "no token", again(id, ""), mqtt.NotAuthorized)
	password := connect(a, withPassword("alice", "secret"), here).Identity
	wantRefused(t, "a client that came with a password", again(password, w.token(nil)), mqtt.BadAuthenticationMethod)
	wantRefused(t, "a client that nothing is known of", again(nil, w.token(nil)), mqtt.BadAuthenticationMethod)
}

func TestBoundClientIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("c1", "secret")
	here, tlsHere, tlsC1 := origin("192.0.2.1"), origin("192.0.2.1"), origin("192.0.2.1")
	tlsHere.TLS = w.certificate()
	tlsC1.TLS = w.certificate(func(c *x509.Certificate) { c.Subject.CommonName = "c1" })

	a := w.all(func(c *Config) { c.BindClientID, c.Anonymous = BindUsername, true })
	wantIdentity(t, "its user name", connect(a, withPassword("c1", "secret"), here), access.Password, "c1", "user:c1")
	wantIdentity(t, "the name in its certificate", connect(a, &mqtt.Connect{}, tlsC1), access.Certificate, "c1", "cert:CN=c1")
	wantRefused(t, "another user's name", connect(a, withPassword("alice", "secret"), here), mqtt.ClientIdentifierNotValid)
	wantRefused(t, "an anonymous client", connect(a, &mqtt.Connect{}, here), mqtt.ClientIdentifierNotValid)

	a = w.all(func(c *Config) { c.BindClientID = BindCertificate })
	wantIdentity(t, "a password beside the certificate", connect(a, withPassword("alice", "secret"), tlsC1), access.Password, "alice", "user:alice")
	wantRefused(t, "another certificate", connect(a, &mqtt.Connect{}, tlsHere), mqtt.ClientIdentifierNotValid)
	wantRefused(t, "without a certificate", connect(a, withPassword("c1", "secret"), here), mqtt.ClientIdentifierNotValid)
}

// A user name that fails too often at one address must wait there, and no other does. The
// right password is of no use meanwhile: otherwise guessing could go on.
func TestFailedLoginsAreSlowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all(func(c *Config) { c.LoginBurst, c.LoginPause = 3, time.Second })
	here, there := origin("2001:db8::1"), origin("2001:db8:0:1::1")
	wantIdentity(t, "first", connect(a, withPassword("alice", "secret"), here), access.Password, "alice", "user:alice")
	for range 3 {
		wantRefused(t, "a wrong password", connect(a, withPassword("alice", "wrong"), here), mqtt.BadUserNameOrPassword)
	}
	hashed := a.Counters().Hashed.Load()
	neighbour := origin("2001:db8::2") // in the same /64
	wantRefused(t, "the next one", connect(a, withPassword("alice", "wrong"), here), mqtt.ConnectionRateExceeded)
	wantRefused(t, "the right password", connect(a, withPassword("alice", "secret"), neighbour), mqtt.ConnectionRateExceeded)
	if n := a.Counters().Hashed.Load(); n != hashed {
		t.Errorf("%d passwords were checked meanwhile", n-hashed)
	}
	wantIdentity(t, "at another address", connect(a, withPassword("alice", "secret"), there), access.Password, "alice", "user:alice")
	w.pass(time.Second)
	wantIdentity(t, "a second later", connect(a, withPassword("alice", "secret"), here), access.Password, "alice", "user:alice")
	if c := a.Counters(); c.Failed.Load() != 3 || c.Throttled.Load() != 2 {
		t.Errorf("counted %d failed and %d throttled, want 3 and 2", c.Failed.Load(), c.Throttled.Load())
	}
}

// Tokens that fail are slowed as well, and those of other clients at the address are not.
func TestFailedTokensAreSlowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all(func(c *Config) { c.LoginBurst = 2 })
	here := origin("192.0.2.1")
	for range 2 {
		wantRefused(t, "a broken token", connect(a, withMethod("JWT", "x"), here), mqtt.NotAuthorized)
	}
	wantRefused(t, "the next one", connect(a, withMethod("JWT", w.token(nil)), here), mqtt.ConnectionRateExceeded)
	if v := a.Connect(withMethod("JWT", w.token(nil)), "c2", here, nil); v.Code.Failed() {
		t.Errorf("another client at the address is refused: %s", v.Reason)
	}
}

// An unknown user costs a check like a known one, and a password that was right costs one
// check only.
func TestExpensiveChecks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all()
	here := origin("192.0.2.1")
	cost := func(user, password string) int64 {
		before := a.Counters().Hashed.Load()
		connect(a, withPassword(user, password), here)
		return a.Counters().Hashed.Load() - before
	}
	for i, c := range []struct {
		user, password string
		want           int64
	}{
		{"alice", "wrong", 1}, {"mallory", "wrong", 1}, {"alice", "secret", 1}, {"alice", "secret", 0}, {"alice", "wrong", 1}, {"mallory", "secret", 1},
	} {
		if got := cost(c.user, c.password); got != c.want {
			t.Errorf("%d: %s, %s: %d checks, want %d", i, c.user, c.password, got, c.want)
		}
	}
}

// Logins that can't be checked in time are told so, and none waits for another's failure.
func TestTooManyLoginsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all(func(c *Config) { c.MaxChecks, c.ConnectTime = 1, time.Millisecond })
	here := origin("192.0.2.1")
	if err := a.checks.Begin(prefixOf(here), nil); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "while another one is checked", connect(a, withPassword("alice", "secret"), here), mqtt.ServerBusy)
	if n := a.Counters().Busy.Load(); n != 1 || a.Counters().Failed.Load() != 0 {
		t.Errorf("counted %d busy and %d failed, want 1 and 0", n, a.Counters().Failed.Load())
	}
	a.checks.End()
	wantIdentity(t, "after it", connect(a, withPassword("alice", "secret"), here), access.Password, "alice", "user:alice")
}

func TestReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("carol", "secret")
	a := w.all()
	here := origin("192.0.2.1")
	alice := connect(a, withPassword("alice", "secret"), here).Identity
	carol := connect(a, withPassword("carol", "secret"), here).Identity
	bob := connect(a, withMethod("JWT", w.token(nil)), here).Identity
	w.set("alice", "changed")
	if err := a.ReloadPasswords(); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "the old password", connect(a, withPassword("alice", "secret"), here), mqtt.BadUserNameOrPassword)
	wantIdentity(t, "the new one", connect(a, withPassword("alice", "changed"), here), access.Password, "alice", "user:alice")
	if a.Holds(alice) || !a.Holds(carol) || !a.Holds(bob) || !a.Holds(nil) {
		t.Error("want alice's old identity, and no other one, not to hold any more")
	}
	// What can't be read changes nothing.
	if err := os.WriteFile(w.users, []byte("alice:x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.ReloadPasswords(); err == nil || !strings.Contains(err.Error(), w.users+":1: ") {
		t.Errorf("got %v, want an error with file and line", err)
	}
	if err := os.WriteFile(w.keys, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.ReloadKeys(); err == nil || !strings.Contains(err.Error(), w.keys+":1: ") {
		t.Errorf("got %v, want an error with file and line", err)
	}
	wantIdentity(t, "with broken files", connect(a, withPassword("carol", "secret"), here), access.Password, "carol", "user:carol")
	wantIdentity(t, "with broken files", connect(a, withMethod("JWT", w.token(nil)), here), access.Token, "bob", "token:issuer#bob")
	if !a.Holds(carol) || a.Users() != 2 {
		t.Error("the users have changed")
	}
}

// A token proves nothing any longer once its key is gone from the file, in whatever form
// and order the others are there; a key that comes again proves it again.
func TestATokenHoldsAsLongAsItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all()
	before, err := os.ReadFile(w.keys)
	if err != nil {
		t.Fatal(err)
	}
	bob := connect(a, withMethod("JWT", w.token(nil)), origin("192.0.2.1")).Identity
	other := anotherKey(t)
	for _, step := range []struct {
		name  string
		keys  []byte
		holds bool
	}{
		{"another key before it", slices.Concat(other, before), true},
		{"another key behind it", slices.Concat(before, other), true},
		{"only another key", other, false},
		{"its key again", before, true},
	} {
		if err := os.WriteFile(w.keys, step.keys, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := a.ReloadKeys(); err != nil {
			t.Fatal(err)
		}
		if a.Holds(bob) != step.holds {
			t.Errorf("%s: the token holds: %v, want %v", step.name, !step.holds, step.holds)
		}
		if step.holds { // whichever key is tried first, the token is known to be of its own
			if id := connect(a, withMethod("JWT", w.token(nil)), origin("192.0.2.1")).Identity; id == nil || id.Proof != bob.Proof {
				t.Errorf("%s: the identity is %+v", step.name, id)
			}
		}
	}
}

// anotherKey is a public key in PEM, for the algorithm of the world's tokens.
func anotherKey(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestContradictions(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		config Config
		want   string
	}{
		{Config{JWTIssuer: "x"}, "--jwt-issuer needs --jwt-keys"},
		{Config{JWTAudience: []string{"x"}}, "--jwt-audience needs --jwt-keys"},
		{Config{JWTUsername: "x"}, "--jwt-username needs --jwt-keys"},
		{Config{JWTKeys: "x", JWTAudience: []string{""}}, "--jwt-audience is empty"},
		{Config{TLSIdentity: SANDNS}, "--tls-identity needs a listener with --tls-client-ca"},
		{Config{BindClientID: BindCertificate, PasswordFile: "x"}, "--bind-client-id certificate needs a listener with --tls-client-ca"},
		{Config{BindClientID: BindUsername}, "--bind-client-id username needs clients that prove who they are"},
		{Config{PasswordFile: "/no/such/file"}, "cannot read the password file"},
		{Config{JWTKeys: "/no/such/file"}, "cannot read the keys of tokens"},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d: got %v, want an error with %q", i, err, c.want)
		}
	}
}

// Reloads, logins and failures at once, for the race detector.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.all()
	token := w.token(nil)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			here := origin(fmt.Sprint("192.0.2.", i))
			for range 20 {
				if v := connect(a, withPassword("alice", "secret"), here); v.Code.Failed() {
					t.Errorf("refused: %s", v.Reason)
				}
				if v := connect(a, withMethod("JWT", token), here); v.Code.Failed() {
					t.Errorf("refused: %s", v.Reason)
				}
			}
			connect(a, withPassword("alice", "wrong"), here)
		})
	}
	all.Go(func() {
		for range 20 {
			if err := a.ReloadPasswords(); err != nil {
				t.Error(err)
			}
			if err := a.ReloadKeys(); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
}

func prefixOf(from *access.Origin) netip.Prefix { return throttle.Network(from.Remote) }
