package server

import (
	"errors"

	"github.com/holdfast-mqtt/holdfast/internal/audit"
	"github.com/holdfast-mqtt/holdfast/internal/auth"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// openLogin opens the audit log, and makes the authenticator that the configuration asks
// for.
func (s *Server) openLogin() (err error) {
	cfg := &s.config
	if cfg.AuditLog != "" {
		if s.audit, err = audit.Open(cfg.AuditLog, s.log); err != nil {
			return err
		}
	}
	login, err := cfg.login()
	if err != nil || !login.Enabled() {
		return err
	}
	if cfg.Auth != nil {
		return errors.New("there are settings of logins and another authenticator; give one of them")
	}
	login.CheckRules, login.Log = policy.CheckRules, s.log
	if s.login, err = auth.New(login); err != nil {
		return err
	}
	cfg.Auth = s.login
	if hook := s.login.Webhook(); hook != nil {
		s.addReloader(Reloader{Name: "webhook", Files: login.Webhook.Files, Reload: hook.Reload})
	}
	s.reloadLogin("password file", login.PasswordFile, s.login.ReloadPasswords)
	s.reloadLogin("keys of tokens", login.JWTKeys, s.login.ReloadKeys)
	return nil
}

// reloadLogin has a file be read again that clients are known by, if there is one, and those
// be disconnected that it proves no more.
func (s *Server) reloadLogin(name, file string, reload func() error) {
	if file == "" {
		return
	}
	s.addReloader(Reloader{Name: name, Files: func() []string { return []string{file} }, Reload: s.endingRevoked(reload)})
}

// login is how clients prove who they are, with what the other settings say of that.
func (c *Config) login() (auth.Config, error) {
	login := c.Login
	login.Anonymous = login.Anonymous || c.AllowAnonymous
	login.ConnectTime = c.Limits.ConnectTimeout
	listeners, err := c.ListenConfigs()
	for _, l := range listeners {
		login.Certificates = login.Certificates || l.URL.IsTLS() && l.TLS.ClientCA != ""
	}
	return login, errors.Join(err, login.Check())
}

// asksClients says whether clients have to prove who they are on every listener, or are
// known by an authenticator that is given.
func (c *Config) asksClients() bool {
	return c.Auth != nil || c.Login.PasswordFile != "" || c.Login.JWTKeys != "" || c.Login.Webhook.URL != ""
}

// loginFigures adds the figures of logins.
func (s *Server) loginFigures(figures map[string]int64) {
	if s.login == nil {
		return
	}
	c := s.login.Counters()
	figures["broker/logins/failed"] = c.Failed.Load()
	figures["broker/logins/throttled"] = c.Throttled.Load()
	figures["broker/logins/busy"] = c.Busy.Load()
	figures["broker/logins/hashed"] = c.Hashed.Load()
	figures["broker/logins/waiting"] = int64(s.login.Waiting())
	figures["broker/logins/users"] = int64(s.login.Users())
}
