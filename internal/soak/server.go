package soak

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// server is the program under test: one that holdfast init has set up, with mutual TLS
// and a policy.
type server struct {
	*process.Process
	urls []string // one of each transport
	tls  *tls.Config
	data string
}

var listens = regexp.MustCompile(`holdfast listening on mqtts://([\d.:]+)`)
var listensWebSocket = regexp.MustCompile(`holdfast websocket on wss://([\d.:]+)`)

// configuration is that of the server; its files are those of holdfast init.
const configuration = `
data: data
sys-interval: 1s
listeners:
  - url: mqtts://127.0.0.1:0
  - url: wss://127.0.0.1:0
tls-cert: server.crt
tls-key: server.key
tls-client-ca: ca.crt
tls-crl: ca.crl
policy: soak-policy.yaml
audit-log: audit.log
`

// policy allows the clients what they do, and no more.
const policy = `
rules:
  - principals:
      usernames: [soak]
    brokerResources:
      - method: Connect
        clientIds: ["soak-*", observer]
      - method: Publish
        topics: ["soak/#", "clients/{principal.clientId}/#", "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"]
      - method: Subscribe
        topics: ["soak/#", "clients/{principal.clientId}/#"]
    stateStoreResources:
      - method: ReadWrite
        keyType: Pattern
        keys: ["soak/*"]
  - principals:
      clientIds: [observer]
    brokerResources:
      - method: Subscribe
        topics: ["$SYS/#"]
`

func startServer(binary, dir string) (*server, error) {
	site := filepath.Join(dir, "site")
	for _, args := range [][]string{{"init", site}, {"cert", "client", "soak", "--ca", site}} {
		if out, err := exec.Command(binary, args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("holdfast %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	config := filepath.Join(site, "soak.yaml")
	if err := errors.Join(
		os.WriteFile(config, []byte(configuration), 0o600),
		os.WriteFile(filepath.Join(site, "soak-policy.yaml"), []byte(policy), 0o600),
	); err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(filepath.Join(site, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(filepath.Join(site, "soak.crt"), filepath.Join(site, "soak.key"))
	if err != nil {
		return nil, err
	}
	p, err := process.Start(exec.Command(binary, "serve", "--config", config), listens)
	if err != nil {
		return nil, err
	}
	if err := p.AwaitReady(); err != nil {
		return nil, err
	}
	return &server{
		Process: p, data: filepath.Join(site, "data"),
		tls: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}},
		urls: []string{
			"mqtts://" + listens.FindStringSubmatch(p.Output())[1],
			"wss://" + listensWebSocket.FindStringSubmatch(p.Output())[1] + "/mqtt",
		},
	}, nil
}

// options are those of a client of package client.
func (s *server) options(id string) []client.Option {
	return []client.Option{client.WithClientID(id), client.WithTLS(s.tls)}
}
