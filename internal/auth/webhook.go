package auth

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/auth/throttle"
	"github.com/holdfast-mqtt/holdfast/internal/mqtt"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// asksWebhook says whether the webhook is asked about a client: about each one that does not
// name a user of the password file. So those who are in the file get in while the webhook does
// not answer. A client without MQTT (Identify) is not asked about.
func (a *Authenticator) asksWebhook(p *mqtt.Connect) bool {
	if a.webhook == nil || p.Version == 0 {
		return false
	}
	f := a.passwords.Load()
	return !p.HasPassword || f == nil || f.Entry(string(p.Username)) == ""
}

// byWebhook asks the webhook who the client is. Both results are nil if it does not know the
// client.
func (a *Authenticator) byWebhook(p *mqtt.Connect, clientID string, from *access.Origin) (*access.Identity, *access.Verdict) {
	network, user := throttle.Network(from.Remote), string(p.Username)
	if user == "" {
		user = "client " + clientID
	}
	if v := a.throttled(network, user); v != nil {
		return nil, v
	}
	q := webhook.Question{ClientID: clientID, Username: string(p.Username), Remote: from.String(), Protocol: protocols[p.Version]}
	q.SetPassword(p.Password)
	if from.Listener != nil {
		q.Listener = from.Listener.Name
	}
	cert := verified(from.TLS)
	if cert != nil {
		q.CertificateCN = cert.Subject.CommonName
	}
	answer, err := a.webhook.Ask(&q)
	switch {
	case err != nil && a.webhook.IgnoresFailures():
		return nil, nil
	case webhook.Busy(err):
		a.counters.Busy.Add(1)
		return nil, refuse(mqtt.ServerBusy, "too many logins are being checked at the moment")
	case err != nil: // no fault of the client's: the code says that it may come again
		return nil, refuse(mqtt.ServerUnavailable, "the server cannot find out at the moment who the client is")
	case answer.Result == webhook.Ignored:
		return nil, nil
	case answer.Result == webhook.Denied && p.HasPassword:
		return nil, a.failed(network, user, mqtt.BadUserNameOrPassword, "the user name or the password is wrong")
	case answer.Result == webhook.Denied:
		return nil, a.failed(network, user, mqtt.NotAuthorized, "the client is not known here")
	}
	id := &access.Identity{ClientID: clientID, Username: answer.Username, Attributes: answer.Attributes, Rules: answer.Rules, Method: access.Webhook, Expires: answer.Until()}
	if id.Username == "" {
		id.Username = string(p.Username)
	}
	if cert != nil {
		if id.Username == "" {
			id.Username, _, _ = nameIn(cert, a.config.TLSIdentity)
		}
		if id.Expires.IsZero() || cert.NotAfter.Before(id.Expires) {
			id.Expires = cert.NotAfter
		}
	}
	if !id.Expires.IsZero() && !a.config.Now().Before(id.Expires) {
		return nil, a.failed(network, user, mqtt.NotAuthorized, "what the client has shown has expired")
	}
	if id.Username != "" {
		id.Owner = "webhook:" + id.Username
	}
	return id, nil
}

// protocols are the versions of MQTT as a Question says them.
var protocols = map[mqtt.Version]string{mqtt.V31: "3.1", mqtt.V311: "3.1.1", mqtt.V5: "5"}
