package main

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/cli/exit"
	"github.com/holdfast-mqtt/holdfast/internal/cli/serve"
)

// stopped is the context of a server that stops as soon as it has started.
func stopped(t *testing.T) context.Context {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	return ctx
}

// Whatever number, duration or size a setting takes, it refuses a negative one, and
// says which setting, which value, and what would be right.
func TestServeRefusesNegativeSettings(t *testing.T) {
	t.Parallel()
	negative := map[string]string{"int": "-1", "int64": "-1", "duration": "-5s", "BYTES": "-1"}
	checked := 0
	serve.NewCommand("test").Flags().VisitAll(func(f *pflag.Flag) {
		value, numeric := negative[f.Value.Type()]
		if !numeric {
			return
		}
		checked++
		var said strings.Builder
		code := run(stopped(t), []string{"serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--" + f.Name, value}, nil, io.Discard, &said)
		if want := "holdfast serve: --" + f.Name + ` "` + value + `": want `; code != exit.Failed || !strings.HasPrefix(said.String(), want) {
			t.Errorf("status %d, %q; want 2 and %q", code, said.String(), want)
		}
	})
	if checked < 20 {
		t.Errorf("%d settings were checked, there are more", checked)
	}
}

// What stands for the default inside of the program is not shown as one.
func TestServeHelpShowsOneDefault(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(serve.NewCommand("test").Flags().FlagUsages()) {
		if strings.Contains(line, "(default 0") || strings.Count(line, "(default") > 1 {
			t.Errorf("the help says %q", line)
		}
	}
}

func TestServeRefusesContradictions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"--remember 800h", "--remember 800h0m0s is more than --max-remember 720h0m0s: lower the one or raise the other"},
		{"--remember 2h --max-remember 1h", "--remember 2h0m0s is more than --max-remember 1h0m0s"},
		{"--max-queued-messages 500 --max-total-queued-messages 400", "--max-queued-messages 500 is more than --max-total-queued-messages 400"},
		{"--max-queued-bytes 2MiB --max-total-queued-bytes 1MiB", "--max-queued-bytes 2MiB is more than --max-total-queued-bytes 1MiB"},
		{"--max-key-size 2MiB --max-packet-size 1MiB", "--max-key-size 2MiB is more than --max-packet-size 1MiB"},
		{"--max-packet-size 256MiB --max-memory 128MiB", "--max-packet-size 256MiB is more than --max-memory 128MiB"},
		{"--max-sessions-per-address 11 --max-sessions 10", "--max-sessions-per-address 11 is more than --max-sessions 10"},
		{"--tls-cert x.crt --tls-key x.key", "--tls-cert is for listeners of mqtts:// and wss://, and for --admin, and there is none"},
		{"--max-keep-alive 1500ms", "--max-keep-alive 1.5s: want whole seconds"},
		{"--max-sessions 9223372036854775807", `--max-sessions "9223372036854775807": want a whole number from 1 to 1000000000`},
		{"--max-keys 010", `--max-keys "010": want a whole number from 1 to 1000000000`},
		{"--max-delay 2562047h", `--max-delay "2562047h": want a duration from 1ms to 876000h0m0s, for example`},
		{"--wire other", `--wire "other": want sdk or documented`},
		{"--node-id a:b", `--node-id "a:b": a node ID has no colon`},
		{"--sys-interval 1ms", `--sys-interval "1ms": want a duration from 100ms to 24h0m0s`},
		{"--receive-maximum 65536", `--receive-maximum "65536": want a whole number from 1 to 65535`},
		{"--max-packet-size 3GiB", `--max-packet-size "3GiB": at most 2GiB`},
		{"--max-packet-size 10", `--max-packet-size "10": want a number of bytes from 1KiB to 268435460`},
		{"--log-level loud", `--log-level "loud": want debug, info, warn or error`},
	} {
		var said strings.Builder
		code := run(stopped(t), append([]string{"serve", "--listen", "127.0.0.1:0", "--data", t.TempDir()}, strings.Fields(test.args)...), nil, io.Discard, &said)
		if code != exit.Failed || !strings.HasPrefix(said.String(), "holdfast serve: "+test.want) {
			t.Errorf("%s: status %d, %q; want 2 and %q", test.args, code, said.String(), test.want)
		}
	}
}

// Settings at the ends of their spans are accepted, the defaults among them.
func TestServeAcceptsSettingsAtTheirBounds(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--max-keep-alive 0s", "--max-keep-alive 65535s", "--receive-maximum 65535", "--receive-maximum 1",
		"--max-session-expiry 1s", "--max-packet-size 1KiB --max-key-size 1KiB", "--log-burst 0", "--sys-interval 100ms",
	} {
		var said strings.Builder
		all := append([]string{"serve", "--listen", "127.0.0.1:0", "--data", t.TempDir()}, strings.Fields(args)...)
		if code := run(stopped(t), all, nil, io.Discard, &said); code != exit.Done || !strings.Contains(said.String(), "holdfast stopped") {
			t.Errorf("%s: status %d, %q", args, code, said.String())
		}
	}
}

func TestFlagErrorsSayWhatIsWanted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"get -p 99999 k", `holdfast get: --port "99999": want a whole number from 0 to 65535`},
		{"get -p -1 k", `holdfast get: --port "-1": want a whole number from 0 to 65535`},
		{"-p x get k", `holdfast: --port "x": want a whole number from 0 to 65535`},
		{"watch --count -1 k", `holdfast watch: --count "-1": want a whole number that is not negative`},
		{"get --timeout 5 k", `holdfast get: --timeout "5": want a duration, for example 500ms, 10s or 2h`},
		{"get --tls=perhaps k", `holdfast get: --tls "perhaps": want true or false`},
		{"get --port", "holdfast get: --port needs a value: want a whole number from 0 to 65535"},
		{"get --cafile", "holdfast get: --cafile needs a value: want a FILE"},
		{"get -z k", "holdfast get: unknown flag -z; see holdfast get --help"},
		{"get --=x k", "holdfast get: --=x is not a flag: want --NAME, --NAME=VALUE or -LETTER; see holdfast get --help"},
		{"serve --durability often", `holdfast serve: --durability "often": want sync, interval=MS (for example interval=1000) or none`},
		{"serve --queue-full wait", `holdfast serve: --queue-full "wait": want end-session, reject or drop-oldest`},
	} {
		start(t, exec.Command(binary, strings.Fields(test.args)...), nil).want(t, test.args, 2, "", test.want+"\n")
	}
}

func TestNamesThatAreNearlyRight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"gte greeting", `holdfast: unknown command "gte"; did you mean get?; see holdfast --help`},
		{"sacn", `holdfast: unknown command "sacn"; did you mean scan?; see holdfast --help`},
		{"delte", `holdfast: unknown command "delte"; did you mean delete or del?; see holdfast --help`},
		{"get --hostnam x k", "holdfast get: unknown flag --hostnam; did you mean --hostname?; see holdfast get --help"},
		{"serve --max-session 5", "holdfast serve: unknown flag --max-session; did you mean --max-sessions"},
		{"get --frob k", "holdfast get: unknown flag --frob; see holdfast get --help"},
	} {
		start(t, exec.Command(binary, strings.Fields(test.args)...), nil).want(t, test.args, 2, "", test.want)
	}
}
