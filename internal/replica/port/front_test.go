package port

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/certs/certstest"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

// A front may connect for what is for fronts, and for nothing else; a node may for everything.
func TestFrontsMayLess(t *testing.T) {
	t.Parallel()
	a := certstest.New(t)
	files := func(r certs.Request) *settings.Settings {
		r.Valid = time.Hour
		if err := a.Issue(r, a.File(r.Name)); err != nil {
			t.Fatal(err)
		}
		return &settings.Settings{Node: "a", Peers: []string{"a=127.0.0.1:1"}, Cert: a.File(r.Name + ".crt"), Key: a.File(r.Name + ".key"), CA: a.File(certs.AuthorityCert)}
	}
	node, err := files(certs.Request{Name: "node", Node: true, Hosts: []string{"127.0.0.1"}}).TLS(nil)
	if err != nil {
		t.Fatal(err)
	}
	front, err := files(certs.Request{Name: "front", Hosts: []string{settings.FrontURI}}).FrontTLS()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Listen(Options{Address: "127.0.0.1:0", TLS: node, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	answer := func(c net.Conn) {
		_, _ = io.WriteString(c, "hello")
		_ = c.Close()
	}
	const forNodes, forFronts = "holdfast test no", "holdfast test fr"
	p.Handle(forNodes, answer)
	p.HandleFronts(forFronts, answer)
	p.Complete()
	p.Serve()
	for _, test := range []struct {
		name   string
		config *tls.Config
		magic  string
		want   string
	}{
		{"a node", node, forNodes, "hello"},
		{"a node as a front", node, forFronts, "hello"},
		{"a front", front, forFronts, "hello"},
		{"a front as a node", front, forNodes, ""},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		c, err := NewDialer(test.config, nil).Dial(ctx, p.Addr().String(), test.magic)
		cancel()
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if got, _ := io.ReadAll(c); string(got) != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		_ = c.Close()
	}
}
