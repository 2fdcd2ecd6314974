package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// protocolKind is what a server speaks.
type protocolKind string

const (
	speaksMQTT  protocolKind = "MQTT 5, QoS 1"
	speaksRedis protocolKind = "RESP"
	speaksNATS  protocolKind = "NATS"
	speaksEtcd  protocolKind = "gRPC"
)

// kind says how a server is started and what can be compared with it.
type kind struct {
	name       string
	protocol   protocolKind
	durability string // when a write is acknowledged; "" if it keeps nothing on disk
	begin      func(ctx context.Context, l *laboratory, dir string) (*target, error)
}

// The names of the servers.
const (
	holdfast       = "Holdfast"
	holdfastNone   = "Holdfast, durability none"
	bareLoop       = "bare loop"
	holdfastTLS    = "Holdfast, TLS"
	holdfastPolicy = "Holdfast, policy"
	bareTLS        = "bare loop, TLS"
	mosquitto      = "Mosquitto + responder"
	mochi          = "mochi-mqtt + hook"
	redis          = "Redis, fsync always"
	natsDefault    = "NATS, defaults"
	natsSync       = "NATS, sync always"
	etcd           = "etcd"
)

var kinds = []kind{
	{holdfast, speaksMQTT, "after fsync", func(ctx context.Context, l *laboratory, dir string) (*target, error) {
		return l.startHoldfast(ctx, dir, "sync")
	}},
	{holdfastNone, speaksMQTT, "before fsync", func(ctx context.Context, l *laboratory, dir string) (*target, error) {
		return l.startHoldfast(ctx, dir, "none")
	}},
	{bareLoop, speaksMQTT, "", startBare},
	{holdfastTLS, speaksMQTT, "after fsync", startHoldfastTLS},
	{bareTLS, speaksMQTT, "", startBareTLS},
	{holdfastPolicy, speaksMQTT, "after fsync", startHoldfastPolicy},
	{mochi, speaksMQTT, "", startMochi},
	{mosquitto, speaksMQTT, "", startMosquitto},
	{redis, speaksRedis, "after fsync (appendfsync always)", startRedis},
	{natsDefault, speaksNATS, "before fsync (sync_interval 2 min)", func(ctx context.Context, l *laboratory, dir string) (*target, error) {
		return startNATS(ctx, l, dir, false)
	}},
	{natsSync, speaksNATS, "after fsync (sync_interval always)", func(ctx context.Context, l *laboratory, dir string) (*target, error) {
		return startNATS(ctx, l, dir, true)
	}},
	{etcd, speaksEtcd, "after fsync (default)", startEtcd},
}

func kindOf(name string) *kind {
	for i := range kinds {
		if kinds[i].name == name {
			return &kinds[i]
		}
	}
	panic("no server named " + name)
}

// target is a server that runs.
type target struct {
	*kind
	version   string
	addr      string
	webSocket string // Holdfast's
	procs     processes
	dir       string
}

// laboratory builds what is to be measured, starts it, and remembers what could
// not be had.
type laboratory struct {
	repository string // of Holdfast
	dir        string // everything that a run writes, removed at its end
	built      map[string]string
	versions   map[string]string // server → version
	skipped    map[string]string // server → why
	only       []string          // parts of servers' names; empty: all
	started    int
}

// start starts a server with a fresh directory. nil: it can't be had, and
// skipped says why.
func (l *laboratory) start(ctx context.Context, name string) *target {
	if l.skipped[name] != "" || !l.wanted(name) {
		return nil
	}
	l.started++
	dir := filepath.Join(l.dir, fmt.Sprintf("%02d-%s", l.started, strings.NewReplacer(" ", "", ",", "-", "+", "-").Replace(name)))
	err := os.MkdirAll(dir, 0o700)
	var t *target
	if err == nil {
		t, err = kindOf(name).begin(ctx, l, dir)
	}
	if err != nil {
		l.skipped[name] = err.Error()
		logf("skipping %s: %v", name, err)
		return nil
	}
	t.kind, t.dir = kindOf(name), dir
	if t.version != "" {
		l.versions[name] = t.version
	}
	return t
}

// wanted says whether a server is to take part in this run.
func (l *laboratory) wanted(name string) bool {
	return len(l.only) == 0 || slices.ContainsFunc(l.only, func(part string) bool {
		return strings.Contains(strings.ToLower(name), strings.ToLower(part))
	})
}

// stop ends a server and removes what it kept.
func (t *target) stop() {
	t.procs.stop()
	os.RemoveAll(t.dir)
}

// build builds a package of the module in dir once, and gives the binary.
func (l *laboratory) build(ctx context.Context, dir, pkg string) (string, error) {
	if path := l.built[pkg]; path != "" {
		return path, nil
	}
	path := filepath.Join(l.dir, "bin-"+filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w: %s", pkg, err, firstLine(string(out)))
	}
	l.built[pkg] = path
	return path, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// prepare builds everything, so that no compiler runs beside a measurement.
func (l *laboratory) prepare(ctx context.Context) error {
	if _, err := l.build(ctx, l.repository, holdfastPackage); err != nil {
		return err
	}
	if _, err := l.build(ctx, l.repository, loopsPackage); err != nil {
		return err
	}
	for _, server := range []string{"bare", "responder", "mochi", "nats", "etcd"} {
		if _, err := l.build(ctx, filepath.Join(l.repository, "bench/compare"), "./server/"+server); err != nil {
			logf("%v", err) // targets that need it are skipped and named
		}
	}
	return nil
}

// own builds and starts one of this module's servers.
func (l *laboratory) own(ctx context.Context, dir, name string, args ...string) (*process, []string, error) {
	bin, err := l.build(ctx, filepath.Join(l.repository, "bench/compare"), "./server/"+name)
	if err != nil {
		return nil, nil, err
	}
	return start(ctx, dir, name, "listening", append([]string{bin}, args...)...)
}

func (l *laboratory) startHoldfast(ctx context.Context, dir, durability string, more ...string) (*target, error) {
	bin, err := l.build(ctx, l.repository, holdfastPackage)
	if err != nil {
		return nil, err
	}
	p, lines, err := start(ctx, dir, "holdfast", "listening on", append([]string{
		bin, "serve", "--listen", "127.0.0.1:0", "--ws", "127.0.0.1:0", "--data", filepath.Join(dir, "data"), "--durability", durability,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	return &target{addr: addressIn(lines), webSocket: addressAfter(lines, "websocket on "), procs: processes{p}, version: l.commit()}, nil
}

// holdfastPackage is what is measured as Holdfast.
const holdfastPackage = "./cmd/holdfast"

// commit names what is checked out.
func (l *laboratory) commit() string {
	cmd := exec.Command("git", "describe", "--always", "--dirty")
	cmd.Dir = l.repository
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func startBare(ctx context.Context, l *laboratory, dir string) (*target, error) {
	p, lines, err := l.own(ctx, dir, "bare")
	if err != nil {
		return nil, err
	}
	return &target{addr: addressIn(lines), procs: processes{p}}, nil
}

// certificates makes those of a server, and says where they are.
func (l *laboratory) certificates(ctx context.Context, dir string) (cert, key string, err error) {
	bin, err := l.build(ctx, l.repository, holdfastPackage)
	if err != nil {
		return "", "", err
	}
	site := filepath.Join(dir, "site")
	if out, err := exec.CommandContext(ctx, bin, "init", site).CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("holdfast init: %w: %s", err, firstLine(string(out)))
	}
	return filepath.Join(site, "server.crt"), filepath.Join(site, "server.key"), nil
}

func startHoldfastTLS(ctx context.Context, l *laboratory, dir string) (*target, error) {
	cert, key, err := l.certificates(ctx, dir)
	if err != nil {
		return nil, err
	}
	p, lines, err := start(ctx, dir, "holdfast", "listening on", l.built[holdfastPackage], "serve",
		"--listen", "mqtts://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--data", filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	return &target{addr: addressIn(lines), procs: processes{p}, version: l.commit()}, nil
}

func startBareTLS(ctx context.Context, l *laboratory, dir string) (*target, error) {
	cert, key, err := l.certificates(ctx, dir)
	if err != nil {
		return nil, err
	}
	p, lines, err := l.own(ctx, dir, "bare", "-cert", cert, "-key", key)
	if err != nil {
		return nil, err
	}
	return &target{addr: overTLS + addressIn(lines), procs: processes{p}}, nil
}

func startMochi(ctx context.Context, l *laboratory, dir string) (*target, error) {
	p, lines, err := l.own(ctx, dir, "mochi")
	if err != nil {
		return nil, err
	}
	return &target{addr: addressIn(lines), procs: processes{p}, version: l.moduleVersion("github.com/mochi-mqtt/server/v2")}, nil
}

// moduleVersion is the version of a module that the servers here are built with.
func (l *laboratory) moduleVersion(module string) string {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = filepath.Join(l.repository, "bench/compare")
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

func startMosquitto(ctx context.Context, l *laboratory, dir string) (*target, error) {
	bin, err := lookPath("mosquitto")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "mosquitto.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, mosquittoConfig, port), 0o600); err != nil {
		return nil, err
	}
	p, _, err := start(ctx, dir, "mosquitto", "", bin, "-c", config)
	if err != nil {
		return nil, err
	}
	t := &target{addr: fmt.Sprintf("127.0.0.1:%d", port), procs: processes{p}, version: mosquittoVersion(bin)}
	if err := awaitPort(t.addr); err != nil {
		t.procs.stop()
		return nil, err
	}
	r, _, err := l.own(ctx, dir, "responder", "-broker", t.addr)
	if err != nil {
		t.procs.stop()
		return nil, err
	}
	t.procs = append(t.procs, r)
	return t, nil
}

func mosquittoVersion(bin string) string {
	out, _ := exec.Command(bin, "-h").Output() // exits with 3
	return strings.TrimPrefix(firstLine(string(out)), "mosquitto version ")
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

func startRedis(ctx context.Context, _ *laboratory, dir string) (*target, error) {
	bin, err := lookPath("redis-server")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p, _, err := start(ctx, dir, "redis", "Ready to accept connections", bin, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
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
	return &target{addr: fmt.Sprintf("127.0.0.1:%d", port), procs: processes{p}, version: version}, nil
}

func startNATS(ctx context.Context, l *laboratory, dir string, sync bool) (*target, error) {
	p, lines, err := l.own(ctx, dir, "nats", "-data", filepath.Join(dir, "data"), fmt.Sprintf("-sync-always=%v", sync))
	if err != nil {
		return nil, err
	}
	t := &target{addr: addressIn(lines), procs: processes{p}, version: printedVersion(lines)}
	if err := createBucket(t.addr); err != nil {
		t.procs.stop()
		return nil, err
	}
	return t, nil
}

func startEtcd(ctx context.Context, l *laboratory, dir string) (*target, error) {
	p, lines, err := l.own(ctx, dir, "etcd", "-data", filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	return &target{addr: addressIn(lines), procs: processes{p}, version: printedVersion(lines)}, nil
}

func printedVersion(lines []string) string {
	for _, l := range lines {
		if v, ok := strings.CutPrefix(l, "version "); ok {
			return v
		}
	}
	return ""
}
