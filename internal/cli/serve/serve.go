// Package serve has the command serve: a flag for each setting of internal/server, with
// its bounds, and the life of the process from the ready line to SIGTERM. The command
// config prints the same settings.
package serve

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/cli/output"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/server"
)

// shutdownGrace is how long clients may take their last packets on SIGTERM.
const shutdownGrace = 10 * time.Second

// NewCommand makes the command serve. version is that of the program.
func NewCommand(version string) *cobra.Command {
	set := newSettings(version)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the broker with its state store",
		Long: `Run the MQTT broker with the state store inside, until SIGTERM or Ctrl-C.

Without flags it listens on 127.0.0.1:1883 and keeps its data in ./holdfast-data.
Every limit that clients can run into has a flag.

Each flag can be set in the file of --config as well, by its name, and in a
variable of the environment: HOLDFAST_MAX_CONNECTIONS for --max-connections, with
commas between the values of one that may be repeated. A flag counts before a
variable, a variable before the file. "holdfast config" prints what is in force
and where it is from, "holdfast config reference" a file with all settings.`,
		Example: `  holdfast serve
  holdfast serve --listen 127.0.0.1:1884 --listen ws://127.0.0.1:9001 --data /var/lib/holdfast
  holdfast init site && holdfast serve --config site/holdfast.yaml
  holdfast serve --listen mqtts://0.0.0.0:8883 --tls-cert server.crt --tls-key server.key --tls-client-ca ca.crt
  holdfast serve --listen 0.0.0.0:1883 --allow-anonymous
  holdfast serve --node a --data a --cluster-peers a=127.0.0.1:7001,b=127.0.0.1:7002,c=127.0.0.1:7003`,
		Args: flags.AtMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := set.load(os.Environ()); err != nil {
				return err
			}
			if err := set.unreadable(); err != nil {
				return err
			}
			bar := output.NewProgress(cmd.ErrOrStderr())
			logger, flush := set.log.open(bar.Beside(cmd.ErrOrStderr()))
			defer flush()
			set.cfg.Logger = logger
			for _, name := range set.loaded.Unknown {
				logger.Warn("a variable of the environment sets nothing: no setting has its name", "variable", name)
			}
			return serve(cmd.Context(), set, cmd.ErrOrStderr(), bar)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().AddFlagSet(set.flags)
	return cmd
}

// serve runs a server until ctx ends. The line shows how much of its data has been read.
func serve(ctx context.Context, set *settings, out io.Writer, line *output.Progress) error {
	cfg := set.cfg
	if cfg.Cluster.InCluster() {
		return serveNode(ctx, set, out, line)
	}
	manager := newNotifier()
	manager.status("reading the data in " + cfg.DataDir)
	cfg.Progress = func(rows int64) { line.Show("reading the data in %s: %d rows", cfg.DataDir, rows) }
	s, err := server.StartContext(ctx, cfg)
	line.End()
	if err != nil {
		return err
	}
	hangup, stop := hangups(s, set) // before the log says that the server runs, and until it has stopped
	defer stop()
	say := sayer(&cfg, out, line)
	mqtt, webSocket := places(s.URLs())
	if len(webSocket) > 0 {
		say("holdfast websocket on %s", strings.Join(webSocket, " "))
	}
	say("holdfast listening on %s with data in %s (%s), durability %s", strings.Join(mqtt, " "), cfg.DataDir, output.Counted(s.Keys(), "key"), cfg.Durability)
	serving := "listening on " + strings.Join(append(mqtt, webSocket...), " ")
	manager.ready(serving)
	untilDone(ctx, hangup, func() {
		manager.reloading()
		set.reload(s)
		_ = s.Reload() // what went wrong is in the log
		manager.ready(serving)
	})
	manager.stopping()
	grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if err := s.Shutdown(grace); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	say("holdfast stopped")
	return nil
}

// sayer says what a person should know: on a terminal in sentences, otherwise in log lines
// like all others.
func sayer(cfg *server.Config, out io.Writer, line *output.Progress) func(format string, args ...any) {
	if output.IsTerminal(out) {
		out = line.Beside(out)
		return func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	}
	return func(format string, args ...any) {
		cfg.Logger.Info(fmt.Sprintf(format, args...), "version", cfg.Version)
	}
}

// places are the listeners as a person reads them: HOST:PORT where that says it all.
func places(urls []listen.URL) (mqtt, webSocket []string) {
	for _, u := range urls {
		text := u.String()
		if !u.IsTLS() && u.Path == "" {
			text = u.Host
		}
		if u.IsWebSocket() {
			webSocket = append(webSocket, text)
		} else {
			mqtt = append(mqtt, text)
		}
	}
	if len(mqtt) == 0 {
		mqtt = webSocket // nothing else would name a port
	}
	return mqtt, webSocket
}
