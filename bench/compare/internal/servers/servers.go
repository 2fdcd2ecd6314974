// Package servers builds and starts the servers that are compared.
package servers

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/client"
	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/process"
)

// protocolKind is what a server speaks.
type protocolKind string

const (
	speaksMQTT  protocolKind = "MQTT 5, QoS 1"
	SpeaksRedis protocolKind = "RESP"
	SpeaksNATS  protocolKind = "NATS"
	SpeaksEtcd  protocolKind = "gRPC"
)

// kind says how a server is started and what can be compared with it.
type kind struct {
	Name       string
	Protocol   protocolKind
	Durability string // when a write is acknowledged; "" if it keeps nothing on disk
	begin      func(ctx context.Context, l *Laboratory, dir string) (*Target, error)
}

// The names of the servers.
const (
	Holdfast       = "Holdfast"
	HoldfastNone   = "Holdfast, durability none"
	BareLoop       = "bare loop"
	HoldfastTLS    = "Holdfast, TLS"
	HoldfastPolicy = "Holdfast, policy"
	BareTLS        = "bare loop, TLS"
	Mosquitto      = "Mosquitto + responder"
	Mochi          = "mochi-mqtt + hook"
	Redis          = "Redis, fsync always"
	NatsDefault    = "NATS, defaults"
	NatsSync       = "NATS, sync always"
	Etcd           = "etcd"
)

// Kinds are the servers, in the order of the report.
var Kinds = []kind{
	{Holdfast, speaksMQTT, "after fsync", func(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
		return l.startHoldfast(ctx, dir, "sync")
	}},
	{HoldfastNone, speaksMQTT, "before fsync", func(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
		return l.startHoldfast(ctx, dir, "none")
	}},
	{BareLoop, speaksMQTT, "", startBare},
	{HoldfastTLS, speaksMQTT, "after fsync", startHoldfastTLS},
	{BareTLS, speaksMQTT, "", startBareTLS},
	{HoldfastPolicy, speaksMQTT, "after fsync", startHoldfastPolicy},
	{Mochi, speaksMQTT, "", startMochi},
	{Mosquitto, speaksMQTT, "", startMosquitto},
	{Redis, SpeaksRedis, "after fsync (appendfsync always)", startRedis},
	{NatsDefault, SpeaksNATS, "before fsync (sync_interval 2 min)", func(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
		return startNATS(ctx, l, dir, false)
	}},
	{NatsSync, SpeaksNATS, "after fsync (sync_interval always)", func(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
		return startNATS(ctx, l, dir, true)
	}},
	{Etcd, SpeaksEtcd, "after fsync (default)", startEtcd},
}

func kindOf(name string) *kind {
	for i := range Kinds {
		if Kinds[i].Name == name {
			return &Kinds[i]
		}
	}
	panic("no server named " + name)
}

// Target is a server that runs.
type Target struct {
	*kind
	version   string
	Addr      string
	WebSocket string // Holdfast's
	Procs     process.Group
	Dir       string
}

// At is a server that speaks MQTT and that another process has started.
func At(addr, webSocket string) *Target {
	return &Target{kind: kindOf(BareLoop), Addr: addr, WebSocket: webSocket}
}

// Laboratory builds what is to be measured, starts it, and remembers what could
// not be had.
type Laboratory struct {
	Repository string // of Holdfast
	Dir        string // everything that a run writes, removed at its end
	built      map[string]string
	Versions   map[string]string // server → version
	Skipped    map[string]string // server → why
	only       []string          // parts of servers' names; empty: all
	started    int
}

// NewLaboratory gives one that keeps its files in dir. binary, if any, is measured as
// Holdfast instead of what the repository has; only is parts of the names of the servers
// to start, all if it is empty.
func NewLaboratory(repository, dir, binary string, only []string) (*Laboratory, error) {
	l := &Laboratory{Repository: repository, Dir: dir, built: map[string]string{}, Versions: map[string]string{}, Skipped: map[string]string{}, only: only}
	if binary == "" {
		return l, nil
	}
	path, err := filepath.Abs(binary)
	l.built[holdfastPackage] = path
	return l, err
}

// Start starts a server with a fresh directory. nil: it can't be had, and
// skipped says why.
func (l *Laboratory) Start(ctx context.Context, name string) *Target {
	if l.Skipped[name] != "" || !l.wanted(name) {
		return nil
	}
	l.started++
	dir := filepath.Join(l.Dir, fmt.Sprintf("%02d-%s", l.started, strings.NewReplacer(" ", "", ",", "-", "+", "-").Replace(name)))
	err := os.MkdirAll(dir, 0o700)
	var t *Target
	if err == nil {
		t, err = kindOf(name).begin(ctx, l, dir)
	}
	if err != nil {
		l.Skipped[name] = err.Error()
		log.Printf("skipping %s: %v", name, err)
		return nil
	}
	t.kind, t.Dir = kindOf(name), dir
	if t.version != "" {
		l.Versions[name] = t.version
	}
	return t
}

// wanted says whether a server is to take part in this run.
func (l *Laboratory) wanted(name string) bool {
	return len(l.only) == 0 || slices.ContainsFunc(l.only, func(part string) bool {
		return strings.Contains(strings.ToLower(name), strings.ToLower(part))
	})
}

// Stop ends a server and removes what it kept.
func (t *Target) Stop() {
	t.Procs.Stop()
	os.RemoveAll(t.Dir)
}

// Build builds a package of the module in dir once, and gives the binary.
func (l *Laboratory) Build(ctx context.Context, dir, pkg string) (string, error) {
	if path := l.built[pkg]; path != "" {
		return path, nil
	}
	path := filepath.Join(l.Dir, "bin-"+filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w: %s", pkg, err, process.FirstLine(string(out)))
	}
	l.built[pkg] = path
	return path, nil
}

// Prepare builds everything, so that no compiler runs beside a measurement.
func (l *Laboratory) Prepare(ctx context.Context) error {
	if _, err := l.Build(ctx, l.Repository, holdfastPackage); err != nil {
		return err
	}
	if _, err := l.Build(ctx, l.Repository, LoopsPackage); err != nil {
		return err
	}
	for _, server := range []string{"bare", "proxy", "responder", "mochi", "nats", "etcd"} {
		if _, err := l.Build(ctx, filepath.Join(l.Repository, "bench/compare"), "./server/"+server); err != nil {
			log.Printf("%v", err) // targets that need it are skipped and named
		}
	}
	return nil
}

// own builds and starts one of this module's servers.
func (l *Laboratory) own(ctx context.Context, dir, name string, args ...string) (*process.Process, []string, error) {
	bin, err := l.Build(ctx, filepath.Join(l.Repository, "bench/compare"), "./server/"+name)
	if err != nil {
		return nil, nil, err
	}
	return process.Start(ctx, dir, name, "listening", append([]string{bin}, args...)...)
}

func (l *Laboratory) startHoldfast(ctx context.Context, dir, durability string, more ...string) (*Target, error) {
	bin, err := l.Build(ctx, l.Repository, holdfastPackage)
	if err != nil {
		return nil, err
	}
	p, lines, err := process.Start(ctx, dir, "holdfast", "listening on", append([]string{
		bin, "serve", "--listen", "127.0.0.1:0", "--ws", "127.0.0.1:0", "--data", filepath.Join(dir, "data"), "--durability", durability,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	return &Target{Addr: process.AddressIn(lines), WebSocket: process.AddressAfter(lines, "websocket on "), Procs: process.Group{p}, version: l.commit()}, nil
}

// What is built of Holdfast: the server, and the loops that process messages.
const (
	holdfastPackage = "./cmd/holdfast"
	LoopsPackage    = "./internal/loops"
)

// commit names what is checked out.
func (l *Laboratory) commit() string {
	cmd := exec.Command("git", "describe", "--always", "--dirty")
	cmd.Dir = l.Repository
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func startBare(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	p, lines, err := l.own(ctx, dir, "bare")
	if err != nil {
		return nil, err
	}
	return &Target{Addr: process.AddressIn(lines), Procs: process.Group{p}}, nil
}

// certificates makes those of a server, and says where they are.
func (l *Laboratory) certificates(ctx context.Context, dir string) (cert, key string, err error) {
	bin, err := l.Build(ctx, l.Repository, holdfastPackage)
	if err != nil {
		return "", "", err
	}
	site := filepath.Join(dir, "site")
	if out, err := exec.CommandContext(ctx, bin, "init", site).CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("holdfast init: %w: %s", err, process.FirstLine(string(out)))
	}
	return filepath.Join(site, "server.crt"), filepath.Join(site, "server.key"), nil
}

func startHoldfastTLS(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	cert, key, err := l.certificates(ctx, dir)
	if err != nil {
		return nil, err
	}
	p, lines, err := process.Start(ctx, dir, "holdfast", "listening on", l.built[holdfastPackage], "serve",
		"--listen", "mqtts://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--data", filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	return &Target{Addr: process.AddressIn(lines), Procs: process.Group{p}, version: l.commit()}, nil
}

func startBareTLS(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	cert, key, err := l.certificates(ctx, dir)
	if err != nil {
		return nil, err
	}
	p, lines, err := l.own(ctx, dir, "bare", "-cert", cert, "-key", key)
	if err != nil {
		return nil, err
	}
	return &Target{Addr: client.OverTLS + process.AddressIn(lines), Procs: process.Group{p}}, nil
}

func startMochi(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	p, lines, err := l.own(ctx, dir, "mochi")
	if err != nil {
		return nil, err
	}
	return &Target{Addr: process.AddressIn(lines), Procs: process.Group{p}, version: l.moduleVersion("github.com/mochi-mqtt/server/v2")}, nil
}

// moduleVersion is the version of a module that the servers here are built with.
func (l *Laboratory) moduleVersion(module string) string {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = filepath.Join(l.Repository, "bench/compare")
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// mosquittoConfig takes every bound off that would drop messages, and keeps
// nothing on disk.
const mosquittoConfig = `listener %d 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
log_type error
`

func startMosquitto(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	bin, err := lookPath("mosquitto")
	if err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "mosquitto.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, mosquittoConfig, port), 0o600); err != nil {
		return nil, err
	}
	p, _, err := process.Start(ctx, dir, "mosquitto", "", bin, "-c", config)
	if err != nil {
		return nil, err
	}
	t := &Target{Addr: fmt.Sprintf("127.0.0.1:%d", port), Procs: process.Group{p}, version: mosquittoVersion(bin)}
	if err := process.AwaitPort(t.Addr); err != nil {
		t.Procs.Stop()
		return nil, err
	}
	r, _, err := l.own(ctx, dir, "responder", "-broker", t.Addr)
	if err != nil {
		t.Procs.Stop()
		return nil, err
	}
	t.Procs = append(t.Procs, r)
	return t, nil
}

func mosquittoVersion(bin string) string {
	out, _ := exec.Command(bin, "-h").Output() // exits with 3
	return strings.TrimPrefix(process.FirstLine(string(out)), "mosquitto version ")
}

// lookPath finds a program of a Debian package, which may be where only root looks.
func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath("/usr/sbin/" + name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s is not installed", name)
}

func startRedis(ctx context.Context, _ *Laboratory, dir string) (*Target, error) {
	bin, err := lookPath("redis-server")
	if err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	p, _, err := process.Start(ctx, dir, "redis", "Ready to accept connections", bin, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return nil, err
	}
	version := ""
	if out, err := exec.Command(bin, "--version").Output(); err == nil {
		for _, f := range strings.Fields(string(out)) {
			if v, ok := strings.CutPrefix(f, "v="); ok {
				version = v
			}
		}
	}
	return &Target{Addr: fmt.Sprintf("127.0.0.1:%d", port), Procs: process.Group{p}, version: version}, nil
}

func startNATS(ctx context.Context, l *Laboratory, dir string, sync bool) (*Target, error) {
	p, lines, err := l.own(ctx, dir, "nats", "-data", filepath.Join(dir, "data"), fmt.Sprintf("-sync-always=%v", sync))
	if err != nil {
		return nil, err
	}
	t := &Target{Addr: process.AddressIn(lines), Procs: process.Group{p}, version: printedVersion(lines)}
	if err := client.CreateBucket(t.Addr, 1); err != nil {
		t.Procs.Stop()
		return nil, err
	}
	return t, nil
}

func startEtcd(ctx context.Context, l *Laboratory, dir string) (*Target, error) {
	p, lines, err := l.own(ctx, dir, "etcd", "-data", filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	return &Target{Addr: process.AddressIn(lines), Procs: process.Group{p}, version: printedVersion(lines)}, nil
}

func printedVersion(lines []string) string {
	for _, l := range lines {
		if v, ok := strings.CutPrefix(l, "version "); ok {
			return v
		}
	}
	return ""
}

// Restart ends a server and starts it again with what it has on disk. It gives
// how long the start took, until requests are accepted.
func (t *Target) Restart(ctx context.Context, l *Laboratory, sig syscall.Signal) (time.Duration, error) {
	for _, p := range t.Procs {
		p.End(sig)
	}
	start := time.Now()
	again, err := t.begin(ctx, l, t.Dir)
	if err != nil {
		return 0, err
	}
	t.Addr, t.Procs = again.Addr, again.Procs
	return time.Since(start), nil
}

// Settle gives a server time to return what it doesn't need.
func Settle() { time.Sleep(2 * time.Second) }
