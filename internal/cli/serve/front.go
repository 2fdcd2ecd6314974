package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/admin"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/front"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/metrics"
	replica "github.com/holdfast-mqtt/holdfast/internal/replica/settings"
)

// frontFlags are those of the command front.
type frontFlags struct {
	o       front.Options
	listen  []string
	tls     certs.Files
	origins []string
	proxy   bool
	cluster replica.Settings
	admin   string
	log     logFlags
}

// NewFrontCommand makes the command front.
func NewFrontCommand() *cobra.Command {
	var f frontFlags
	cmd := &cobra.Command{
		Use:   "front",
		Short: "Hold the connections of clients in front of a cluster",
		Long: `Hold the connections of clients in front of a cluster, until SIGTERM or Ctrl-C, and pass
what they send on to the leader over few connections, which cost it less. A front keeps
nothing: run as many as you like, and stop them at any time. It does TLS, WebSocket and
keep-alives; all else is the leader's matter.

Give a front the same --listen as the nodes, in the same order: what a node's listener
says of its clients (--allow-anonymous, --tls-client-ca) holds for those that come in at
the front's listener in the same place. Beyond loopback front and nodes prove themselves to
each other by certificates: "holdfast cert front" makes that of a front.`,
		Example: `  holdfast front --listen 0.0.0.0:1883 --cluster-peers a=127.0.0.1:7001,b=127.0.0.1:7002,c=127.0.0.1:7003
  holdfast front --listen mqtts://0.0.0.0:8883 --tls-cert server.crt --tls-key server.key \
    --cluster-peers a=10.0.0.1:7001,b=10.0.0.2:7001,c=10.0.0.3:7001 \
    --cluster-cert f1.crt --cluster-key f1.key --cluster-ca ca.crt`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, flush := f.log.open(cmd.ErrOrStderr())
			defer flush()
			f.o.Logger = logger
			return f.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVar(&f.listen, "listen", []string{"127.0.0.1:1883"}, "`URL` to listen on: HOST:PORT or mqtt://HOST:PORT, mqtts://, ws:// or wss://; may be repeated")
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "PEM `FILE` with the certificate that clients see, for mqtts:// and wss://")
	fs.StringVar(&f.tls.Key, "tls-key", "", "PEM `FILE` with its private key")
	fs.StringVar(&f.tls.ClientCA, "tls-client-ca", "", "PEM `FILE` with the authorities of clients' certificates, which clients then show")
	fs.StringVar(&f.tls.CRL, "tls-crl", "", "`FILE` with revocation lists of these authorities")
	fs.Var(flags.Word(&f.tls.ClientAuth, certs.Required, certs.Optional), "tls-client-auth", "whether clients must show a certificate: required or optional (default required, with --tls-client-ca)")
	fs.Var(flags.Word(&f.tls.MinVersion, "1.2", "1.3"), "tls-min-version", "oldest version of TLS: 1.2 or 1.3 (default 1.2)")
	fs.StringArrayVar(&f.origins, "ws-origin", nil, "web origin (`PATTERN` of its host) whose pages may connect, otherwise none may; may be repeated")
	fs.BoolVar(&f.proxy, "proxy-protocol", false, "each connection begins with a PROXY header, version 2, of a balancer in front of the front, and clients have the address that it says")
	fs.StringSliceVar(&f.cluster.Peers, "cluster-peers", nil, "`NAME=HOST:PORT,...` of nodes of the cluster, as the nodes have them")
	fs.StringVar(&f.cluster.Cert, "cluster-cert", "", "PEM `FILE` with the front's certificate, for the nodes")
	fs.StringVar(&f.cluster.Key, "cluster-key", "", "PEM `FILE` with its private key")
	fs.StringVar(&f.cluster.CA, "cluster-ca", "", "PEM `FILE` with the authorities of the nodes' certificates")
	fs.IntVar(&f.o.MaxConnections, "max-connections", front.DefaultMaxConnections, "network connections; each takes 32 KiB of buffers at the most")
	fs.Var(flags.Bytes(&f.o.MaxBuffered), "max-buffered", "bytes of all clients that they, or the leader, have not read yet; beyond, the clients with most unread are disconnected (default 256MiB)")
	fs.IntVar(&f.o.Links, "links", front.DefaultLinks, "connections to the leader")
	fs.DurationVar(&f.o.ConnectTimeout, "connect-timeout", front.DefaultConnectTimeout, "time that a new connection has for its handshakes, and for the beginning of its CONNECT")
	fs.StringVar(&f.admin, "admin", "", "`HOST:PORT` of the loopback interface for /healthz, /readyz and /metrics (Prometheus) over HTTP (default none)")
	f.log.addFlags(fs)
	return cmd
}

const (
	maxFrontConnections = 10_000_000
	maxFrontLinks       = 64
	minFrontBuffered    = 1 << 20 // bytes
)

// check makes the options of the flags.
func (f *frontFlags) check() (err error) {
	switch {
	case len(f.cluster.Peers) == 0:
		return errors.New("say where the cluster's nodes are: --cluster-peers a=HOST:PORT,b=HOST:PORT,c=HOST:PORT")
	case f.o.MaxConnections < 1 || f.o.MaxConnections > maxFrontConnections:
		return fmt.Errorf("--max-connections: want 1 to %d", maxFrontConnections)
	case f.o.MaxBuffered != 0 && f.o.MaxBuffered < minFrontBuffered:
		return errors.New("--max-buffered: want 1MiB at least")
	case f.o.Links < 1 || f.o.Links > maxFrontLinks:
		return fmt.Errorf("--links: want 1 to %d", maxFrontLinks)
	case f.o.ConnectTimeout <= 0:
		return errors.New("--connect-timeout: want a time above 0")
	}
	for _, text := range f.listen {
		u, err := listen.ParseURL(text)
		if err != nil {
			return err
		}
		c := listen.Config{URL: u, TLS: f.tls, Proxy: f.proxy}
		if u.IsWebSocket() {
			c.AllowOrigins = f.origins
		}
		f.o.Listeners = append(f.o.Listeners, c)
	}
	f.o.MaxBuffered = cmp.Or(f.o.MaxBuffered, front.DefaultMaxBuffered)
	if f.o.Peers, err = f.cluster.ParsePeers(); err != nil {
		return err
	}
	f.o.TLS, err = f.cluster.FrontTLS()
	return err
}

// run runs a front until ctx ends.
func (f *frontFlags) run(ctx context.Context, out io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	manager := newNotifier()
	running, err := front.Start(f.o)
	if err != nil {
		return err
	}
	defer running.Close()
	if f.admin != "" {
		stop, err := f.serveAdmin(running)
		if err != nil {
			return err
		}
		defer stop()
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	mqtt, webSocket := places(running.URLs())
	if len(webSocket) > 0 && webSocket[0] != mqtt[0] {
		mqtt = append(mqtt, webSocket...)
	}
	f.o.Logger.Info(fmt.Sprintf("holdfast listening on %s as a front of a cluster of %d", strings.Join(mqtt, " "), len(f.o.Peers)))
	manager.ready("listening on " + strings.Join(mqtt, " "))
	for {
		select {
		case <-hangup:
			if err := running.Reload(); err != nil {
				f.o.Logger.Error("certificates stay as they were", "error", err)
			}
		case <-ctx.Done():
			manager.stopping()
			return nil
		}
	}
}

// serveAdmin serves health and metrics.
func (f *frontFlags) serveAdmin(running *front.Front) (stop func(), err error) {
	var handler http.Handler = metrics.FrontHandler(running.Figures)
	a, err := admin.Open(admin.Options{Addr: f.admin, TLS: f.tls, Log: f.o.Logger, Later: true, Part: admin.Part{Ready: running.Unready, Metrics: handler}})
	if err != nil {
		return nil, err
	}
	go func() {
		defer failstop.End(f.o.Logger, "the listener of --admin")
		a.Serve()
	}()
	f.o.Logger.Info("health and metrics are served", "admin", a.Addr())
	return func() {
		grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
		defer cancel()
		_ = a.Close(grace)
	}, nil
}
