package auth

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/auth/throttle"
	"github.com/holdfast-mqtt/holdfast/internal/auth/token"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// Methods are the Authentication Methods of MQTT 5 that the server takes: the data is a
// token in both. K8S-SAT is what the SDKs of Azure IoT Operations call the token of a
// Kubernetes service account.
var Methods = []string{"JWT", "K8S-SAT"}

// Authenticator says who clients are. It is safe for concurrent use.
type Authenticator struct {
	config    Config
	rules     token.Rules
	passwords atomic.Pointer[passwd.File] // nil: there is no password file
	keys      atomic.Pointer[token.Keys]  // nil: tokens are not taken
	failures  *throttle.Failures
	checks    *throttle.Checks
	webhook   *webhook.Webhook // nil: there is none
	counters  Counters
}

// Counters count what an Authenticator has done.
type Counters struct {
	Failed    atomic.Int64 // logins refused because what the client showed was wrong
	Throttled atomic.Int64 // logins refused unseen, because too many of that address and user name had failed
	Busy      atomic.Int64 // logins refused because too many others were being checked
	Hashed    atomic.Int64 // expensive checks of passwords
}

// New makes an Authenticator, and reads the files that it needs.
func New(c Config) (*Authenticator, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.MaxChecks == 0 {
		c.MaxChecks = throttle.Places()
	}
	if c.LoginBurst == 0 {
		c.LoginBurst = DefaultBurst
	}
	if c.LoginPause == 0 {
		c.LoginPause = DefaultPause
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	wait := longestWait
	if c.ConnectTime > 0 {
		wait = min(wait, c.ConnectTime/2)
	}
	a := &Authenticator{
		config:   c,
		rules:    token.Rules{Issuer: c.JWTIssuer, Audience: c.JWTAudience, Now: c.Now},
		failures: throttle.NewFailures(throttle.Options{Burst: c.LoginBurst, Interval: c.LoginPause, Entries: maxFailures, Now: c.Now}),
		checks:   throttle.NewChecks(c.MaxChecks, maxWaiting, wait),
	}
	if err := errors.Join(a.ReloadPasswords(), a.ReloadKeys()); err != nil {
		return nil, err
	}
	if c.Webhook.URL != "" {
		var err error
		if a.webhook, err = webhook.New(c.Webhook, c.CheckRules, c.Log, c.Now); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Close ends questions to the webhook that are under way.
func (a *Authenticator) Close() {
	if a.webhook != nil {
		a.webhook.Close()
	}
}

// Webhook is the one that is asked who clients are; nil: there is none.
func (a *Authenticator) Webhook() *webhook.Webhook { return a.webhook }

// ReloadPasswords reads the password file again. After an error the old content counts.
func (a *Authenticator) ReloadPasswords() error {
	if a.config.PasswordFile == "" {
		return nil
	}
	f, err := passwd.Reload(a.config.PasswordFile, a.passwords.Load())
	if err == nil {
		a.passwords.Store(f)
	}
	return err
}

// ReloadKeys reads the keys of tokens again. After an error the old ones count.
func (a *Authenticator) ReloadKeys() error {
	if a.config.JWTKeys == "" {
		return nil
	}
	keys, err := token.LoadKeys(a.config.JWTKeys)
	if err == nil {
		a.keys.Store(keys)
	}
	return err
}

// Counters are what the Authenticator counts.
func (a *Authenticator) Counters() *Counters { return &a.counters }

// Waiting is how many logins wait for a check of their password.
func (a *Authenticator) Waiting() int { return a.checks.Waiting() }

// Users is how many users the password file has.
func (a *Authenticator) Users() int {
	if f := a.passwords.Load(); f != nil {
		return f.Len()
	}
	return 0
}

// Connect implements access.Authenticator.
func (a *Authenticator) Connect(p *mqtt.Connect, clientID string, from *access.Origin, stop <-chan struct{}) access.Verdict {
	id, refusal := a.identify(p, clientID, from, stop)
	if refusal == nil {
		refusal = a.bind(id, clientID, from)
	}
	if refusal != nil {
		return *refusal
	}
	return access.Verdict{Identity: id}
}

// Identify says who a client is that does not speak MQTT: by a user name and password, by a
// token as its password, or with neither by its certificate. Otherwise the reason says why
// that is not known. It waits as Connect does.
func (a *Authenticator) Identify(username, password string, from *access.Origin, stop <-chan struct{}) (id *access.Identity, reason string) {
	p := mqtt.Connect{Username: []byte(username), HasUsername: username != "", Password: []byte(password), HasPassword: password != ""}
	id, refusal := a.identify(&p, "", from, stop)
	switch {
	case refusal != nil:
		return nil, refusal.Reason
	case id.Method == access.Anonymous:
		return nil, "the client has shown no credentials"
	}
	return id, ""
}

func refuse(code mqtt.ReasonCode, reason string) *access.Verdict {
	return &access.Verdict{Code: code, Reason: reason}
}

// identify says who the client is.
func (a *Authenticator) identify(p *mqtt.Connect, clientID string, from *access.Origin, stop <-chan struct{}) (*access.Identity, *access.Verdict) {
	network := throttle.Network(from.Remote)
	switch {
	case p.HasAuthMethod:
		keys := a.keys.Load()
		if keys == nil || !known(p.AuthMethod) {
			return nil, refuse(mqtt.BadAuthenticationMethod, "the authentication method is not supported")
		}
		return a.byToken(keys, p, p.AuthData, clientID, network, mqtt.NotAuthorized)
	case p.HasPassword && a.keys.Load() != nil && token.Looks(p.Password):
		return a.byToken(a.keys.Load(), p, p.Password, clientID, network, mqtt.BadUserNameOrPassword)
	}
	if a.asksWebhook(p) {
		if id, refusal := a.byWebhook(p, clientID, from); id != nil || refusal != nil {
			return id, refusal
		}
	}
	switch {
	case p.HasPassword && a.passwords.Load() != nil:
		return a.byPassword(p, clientID, network, stop)
	case p.HasPassword && a.keys.Load() != nil:
		a.counters.Failed.Add(1)
		return nil, refuse(mqtt.BadUserNameOrPassword, "the password is not a token")
	}
	if cert := verified(from.TLS); cert != nil {
		id, err := certificateIdentity(cert, a.config.TLSIdentity, clientID)
		switch {
		case err != nil:
			a.counters.Failed.Add(1)
			return nil, refuse(mqtt.NotAuthorized, err.Error())
		case !a.config.Now().Before(id.Expires): // since the handshake, or in a session that TLS has resumed
			a.counters.Failed.Add(1)
			return nil, refuse(mqtt.NotAuthorized, "the certificate has expired")
		}
		return id, nil
	}
	if !p.HasPassword && (a.config.Anonymous || from.Listener != nil && from.Listener.Anonymous) {
		return &access.Identity{ClientID: clientID, Method: access.Anonymous}, nil
	}
	a.counters.Failed.Add(1)
	return nil, refuse(mqtt.NotAuthorized, "the client has shown no credentials")
}

// known says whether this is one of Methods.
func known(method []byte) bool {
	for _, m := range Methods {
		if string(method) == m {
			return true
		}
	}
	return false
}

// byPassword looks the client's password up in the password file.
func (a *Authenticator) byPassword(p *mqtt.Connect, clientID string, network netip.Prefix, stop <-chan struct{}) (*access.Identity, *access.Verdict) {
	user := string(p.Username)
	if v := a.throttled(network, user); v != nil {
		return nil, v
	}
	f := a.passwords.Load()
	if !f.Proven(user, p.Password) {
		if err := a.checks.Begin(network, stop); err != nil {
			a.counters.Busy.Add(1)
			return nil, refuse(mqtt.ServerBusy, "too many logins are being checked at the moment")
		}
		v := a.verify(network, user, p.Password)
		a.checks.End() // not deferred: it takes a lock
		if v != nil {
			return nil, v
		}
		f = a.passwords.Load()
	}
	return &access.Identity{ClientID: clientID, Username: user, Owner: "user:" + user, Method: access.Password, Proof: f.Entry(user)}, nil
}

// verify checks a password by its hash, in a place of checks.
func (a *Authenticator) verify(network netip.Prefix, user string, password []byte) *access.Verdict {
	// Logins that waited beside this one may have failed meanwhile.
	if v := a.throttled(network, user); v != nil {
		return v
	}
	a.counters.Hashed.Add(1)
	if !a.passwords.Load().Verify(user, password) {
		return a.failed(network, user, mqtt.BadUserNameOrPassword, "the user name or the password is wrong")
	}
	return nil
}

// throttled refuses an address that has failed too often.
func (a *Authenticator) throttled(network netip.Prefix, user string) *access.Verdict {
	if a.failures.Allowed(network, user) {
		return nil
	}
	a.counters.Throttled.Add(1)
	return refuse(mqtt.ConnectionRateExceeded, "too many failed logins; try again later")
}

// failed counts a failed login.
func (a *Authenticator) failed(network netip.Prefix, user string, code mqtt.ReasonCode, reason string) *access.Verdict {
	a.counters.Failed.Add(1)
	a.failures.Failed(network, user)
	return refuse(code, reason)
}

// byToken verifies the client's token.
func (a *Authenticator) byToken(keys *token.Keys, p *mqtt.Connect, data []byte, clientID string, network netip.Prefix, code mqtt.ReasonCode) (*access.Identity, *access.Verdict) {
	who := tokenOf(clientID)
	if v := a.throttled(network, who); v != nil {
		return nil, v
	}
	id, err := a.identityOf(keys, data, clientID)
	if err != nil {
		return nil, a.failed(network, who, code, err.Error())
	}
	if claim := a.config.JWTUsername; claim != "" && p.HasUsername && string(p.Username) != id.Username {
		return nil, a.failed(network, who, code, "the user name is not the one in the token")
	}
	return id, nil
}

// tokenOf is in whose name failures of tokens are counted: whose token it is isn't known
// before it is verified.
func tokenOf(clientID string) string { return "token of " + clientID }

// errNoUsername says that a token lacks the claim of --jwt-username.
var errNoUsername = errors.New("the token has no user name")

// identityOf makes an identity of a token.
func (a *Authenticator) identityOf(keys *token.Keys, data []byte, clientID string) (*access.Identity, error) {
	claims, err := a.rules.Verify(keys, bytes.TrimSpace(data)) // a file with a token may end with a newline
	if err != nil {
		return nil, err
	}
	username := claims.Subject
	if claim := a.config.JWTUsername; claim != "" {
		if username = claims.Attributes[claim]; username == "" {
			return nil, errNoUsername
		}
	}
	return &access.Identity{
		ClientID: clientID, Username: username, Owner: "token:" + escapeHash.Replace(claims.Issuer) + "#" + claims.Subject,
		Attributes: claims.Attributes, Method: access.Token, Expires: claims.Expires,
		Proof: string(claims.Key[:]),
	}, nil
}

// escapeHash keeps the subject of one issuer from looking like a part of another issuer.
var escapeHash = strings.NewReplacer("%", "%25", "#", "%23")

// bind refuses a client ID that isn't the client's.
func (a *Authenticator) bind(id *access.Identity, clientID string, from *access.Origin) *access.Verdict {
	var name string
	switch a.config.BindClientID {
	case BindUsername:
		name = id.Username
	case BindCertificate:
		if cert := verified(from.TLS); cert != nil {
			name, _, _ = nameIn(cert, a.config.TLSIdentity)
		}
	default:
		return nil
	}
	if name != "" && name == clientID {
		return nil
	}
	a.counters.Failed.Add(1)
	return refuse(mqtt.ClientIdentifierNotValid, fmt.Sprintf("the client identifier must be the client's %s", map[Binding]string{BindUsername: "user name", BindCertificate: "name in its certificate"}[a.config.BindClientID]))
}

// Reauthenticate implements access.Authenticator. It does nothing that takes long: other
// clients may wait for the connection's reader.
func (a *Authenticator) Reauthenticate(id *access.Identity, p *mqtt.Auth, from *access.Origin, _ <-chan struct{}) access.Verdict {
	keys := a.keys.Load()
	if keys == nil || id == nil || id.Method != access.Token {
		return *refuse(mqtt.BadAuthenticationMethod, "the authentication method is not supported")
	}
	network, who := throttle.Network(from.Remote), tokenOf(id.ClientID)
	if v := a.throttled(network, who); v != nil {
		return *v
	}
	next, err := a.identityOf(keys, p.AuthData, id.ClientID)
	if err != nil {
		return *a.failed(network, who, mqtt.NotAuthorized, err.Error())
	}
	if next.Owner != id.Owner || next.Username != id.Username {
		return *a.failed(network, who, mqtt.NotAuthorized, "the token is of another client")
	}
	return access.Verdict{Identity: next}
}

// Holds says whether what a client has proven is still so, after a file was read again: its
// user is in the password file with the same entry; the key that its token is signed with
// is there. Certificates are the listeners' to judge.
func (a *Authenticator) Holds(id *access.Identity) bool {
	switch {
	case id == nil:
	case id.Method == access.Password:
		f := a.passwords.Load()
		return f != nil && f.Entry(id.Username) == id.Proof
	case id.Method == access.Token:
		keys := a.keys.Load()
		return keys != nil && len(id.Proof) == len(token.KeyID{}) && keys.Has(token.KeyID([]byte(id.Proof)))
	}
	return true
}
