package serve

import (
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-mqtt/holdfast/internal/auth"
	"github.com/holdfast-mqtt/holdfast/internal/broker/limits"
	"github.com/holdfast-mqtt/holdfast/internal/certs"
	"github.com/holdfast-mqtt/holdfast/internal/cli/connect"
	"github.com/holdfast-mqtt/holdfast/internal/cli/flags"
	"github.com/holdfast-mqtt/holdfast/internal/config"
	"github.com/holdfast-mqtt/holdfast/internal/journal"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/protocol"
	replica "github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/spans"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// settings are what the flags of serve set, and where they have it from.
type settings struct {
	cfg   server.Config
	log   logFlags
	file  string // of the configuration
	flags *pflag.FlagSet

	commandLine []argument       // as load has found it
	loaded      *config.Settings // after load
}

// configFlag names the flag of the configuration file.
const configFlag = "config"

// newSettings are the defaults. version is that of the program.
func newSettings(version string) *settings {
	s := &settings{cfg: server.Default(), flags: pflag.NewFlagSet("serve", pflag.ContinueOnError)}
	s.cfg.Version = version
	s.cfg.OwnProcess = true
	addServeFlags(s.flags, &s.cfg)
	s.flags.StringVar(&s.file, configFlag, "", "`FILE` with settings: flags by their names, a list of listeners, each with rules of its own, and a list of bridges")
	s.log.addFlags(s.flags)
	flags.Limit(s.flags, serveSpans)
	return s
}

// load takes the settings that the command line does not give from the environment and
// from the configuration file, and checks all of them.
func (s *settings) load(environment []string) (err error) {
	s.commandLine = arguments(s.flags)
	s.loaded, err = config.Load(s.flags, config.Options{File: configFlag, Environment: environment, Others: connect.AllVariables(), Explain: flags.ExplainValue})
	if err != nil {
		return err
	}
	s.cfg.Listeners, s.cfg.Bridges = s.loaded.Listeners, s.loaded.Bridges
	if len(s.cfg.Listeners) > 0 && !s.flags.Changed("listen") {
		s.cfg.Listen = nil // the default
	}
	if err := s.contradiction(); err != nil {
		return err
	}
	if err := s.unusedTLS(); err != nil {
		return s.loaded.Place(err)
	}
	if err := s.bridgeToItself(); err != nil {
		return err
	}
	if k := s.cfg.Limits.MaxKeepAlive; k%time.Second != 0 {
		return s.loaded.Place(fmt.Errorf("--max-keep-alive %v: want whole seconds", k))
	}
	return s.loaded.Place(s.cfg.Check())
}

// unreadable says which file cannot be read that a setting names, and where the setting is from.
func (s *settings) unreadable() (err error) {
	s.flags.VisitAll(func(f *pflag.Flag) {
		name, _ := pflag.UnquoteUsage(f)
		path := f.Value.String()
		if err != nil || name != "FILE" || path == "" || f.Name == "audit-log" { // which is written
			return
		}
		info, failed := os.Stat(path)
		if failed == nil && info.Mode().IsRegular() {
			var file *os.File
			if file, failed = os.Open(path); failed == nil {
				_ = file.Close()
			}
		}
		if failed != nil {
			err = fmt.Errorf("%s: %w", s.loaded.Name(f.Name), failed)
		}
	})
	return err
}

func addServeFlags(f *pflag.FlagSet, cfg *server.Config) {
	f.SortFlags = false
	f.StringArrayVar(&cfg.Listen, "listen", cfg.Listen, "`URL` to listen on: HOST:PORT or mqtt://HOST:PORT, mqtts://, ws:// or wss://; may be repeated")
	f.StringArrayVar(&cfg.WebSocket, "ws", nil, "`HOST:PORT` to listen on for MQTT over WebSocket, the same as --listen ws://HOST:PORT; may be repeated")
	f.StringVar(&cfg.TLS.Cert, "tls-cert", "", "PEM `FILE` with the server's certificate, for mqtts:// and wss://; read again when it changes")
	f.StringVar(&cfg.TLS.Key, "tls-key", "", "PEM `FILE` with its private key")
	f.StringVar(&cfg.TLS.ClientCA, "tls-client-ca", "", "PEM `FILE` with the authorities of clients' certificates, which clients then show")
	f.StringVar(&cfg.TLS.CRL, "tls-crl", "", "`FILE` with revocation lists of these authorities")
	f.Var(flags.Word(&cfg.TLS.ClientAuth, certs.Required, certs.Optional), "tls-client-auth", "whether clients must show a certificate: required or optional (default required, with --tls-client-ca)")
	f.Var(flags.Word(&cfg.TLS.MinVersion, "1.2", "1.3"), "tls-min-version", "oldest version of TLS: 1.2 or 1.3 (default 1.2)")
	f.IntVar(&cfg.MaxHandshakes, "max-handshakes", 0, "TLS and WebSocket handshakes under way; beyond, the oldest of the address that has most is ended (default 1000, or fewer with little memory)")
	f.StringArrayVar(&cfg.AllowOrigins, "ws-origin", nil, "web origin (`PATTERN` of its host) whose pages may connect, otherwise none may; may be repeated")
	f.StringVar(&cfg.Admin, "admin", "", "`HOST:PORT` for the console (a web page), /healthz, /readyz, /metrics (Prometheus), the HTTP API and profiles over HTTP; beyond loopback over HTTPS with --tls-cert, and for administrators: principals with the quota reserve (default none)")
	f.StringArrayVar(&cfg.TopicRewrites, "topic-rewrite", nil, "`RULE` that replaces topics and filters of clients: FROM -> TO, for example 'old/+/# -> new/{1}/{2}', with publish or subscribe before it for one of both; may be repeated, the first that fits counts")
	f.StringArrayVar(&cfg.AutoSubscribe, "auto-subscribe", nil, "`RULE` for a subscription that each client has from when it connects: a FILTER, in which {principal.clientId} and {principal.username} may be levels, and behind it any of qos=1, no-local, retain-as-published, retain-handling=0 and clients=PATTERN; may be repeated")
	f.IntVar(&cfg.ClientEvents, "client-events", 0, "events of clients (connected, disconnected, refused, taken over) that are published in a second at most, on $SYS/brokers/holdfast/clients/ID/EVENT; who may read $SYS learns names and addresses of clients (default none)")
	o := &cfg.Spans
	f.StringVar(&o.Endpoint, "otlp-endpoint", "", "`URL` of a collector of OpenTelemetry, such as http://127.0.0.1:4318, that gets a span for each request to the store whose user property traceparent says that it is sampled, by OTLP over HTTP (default none)")
	f.StringArrayVar(&o.Headers, "otlp-header", nil, "`NAME=VALUE` of a header for the requests to that collector; other users of the machine can read flags, so put secrets into --otlp-header-file; may be repeated, up to 16")
	f.StringVar(&o.HeaderFile, "otlp-header-file", "", "`FILE` with such headers, one on each line, such as Authorization: Bearer SECRET; read again when it changes, and on SIGHUP (default none)")
	f.Float64Var(&o.Ratio, "otlp-sample", 0, "`RATIO`, 0 to 1, of the requests without traceparent that have a span (default none)")
	f.IntVar(&o.Queue, "otlp-queue", 0, "spans that wait for the collector; more are dropped and counted (default 2048)")
	f.Var(flags.Word(&o.Keys, spans.HashedKey, spans.PlainKey, spans.NoKey), "otlp-keys", "what a span says of the key: hash (of its SHA-256), plain or none (default hash)")
	f.StringVar(&cfg.DataDir, "data", cfg.DataDir, "`DIR` for the data")
	f.Var(durabilityValue{&cfg.Durability}, "durability", "when a write is acknowledged: sync (after its fsync), interval=MS (when applied; fsync at that interval) or none (when applied)")
	f.Var(flags.Bytes(&cfg.DiskReserve), "disk-reserve", "free space on the disk below which new data is refused (default the smaller of 256MiB and 5% of it)")
	f.Var(flags.Bytes(&cfg.MaxMemory), "max-memory", "memory that the process takes at most; clients share what the server does not need itself (default 9/10 of the cgroup's limit, or 3/4 of the machine's memory)")
	f.BoolVar(&cfg.AllowAnonymous, "allow-anonymous", false, "listen beyond loopback although clients are not authenticated")
	a := &cfg.Login
	f.StringVar(&a.PasswordFile, "password-file", "", "`FILE` with users and their passwords, as holdfast passwd and mosquitto_passwd write it; read again when it changes, and on SIGHUP")
	f.StringVar(&a.JWTKeys, "jwt-keys", "", "`FILE` with the public keys of JSON Web Tokens, JWKS or PEM, which clients show as their password or by the methods JWT and K8S-SAT; read again when it changes, and on SIGHUP")
	f.StringVar(&a.JWTIssuer, "jwt-issuer", "", "`NAME` that the claim iss of each token must be (default any)")
	f.StringArrayVar(&a.JWTAudience, "jwt-audience", nil, "`NAME` that must be in the claim aud of each token; may be repeated: one of them must be (default any)")
	f.StringVar(&a.JWTUsername, "jwt-username", "", "`CLAIM` that is the user name, which CONNECT may name besides but not contradict (default sub, and CONNECT may name any)")
	f.Var(flags.Word((*string)(&a.TLSIdentity), string(auth.CommonName), string(auth.SANDNS), string(auth.SANURI), string(auth.SANEmail), string(auth.Subject)), "tls-identity", "what of a client's certificate is its user name: cn, san-dns, san-uri, san-email or subject (default cn)")
	f.Var(flags.Word((*string)(&a.BindClientID), string(auth.BindUsername), string(auth.BindCertificate)), "bind-client-id", "what a client identifier must be: username (that the client has proven) or certificate (the name in it) (default any)")
	f.IntVar(&a.MaxChecks, "max-password-checks", 0, "passwords that are checked at the same time (default all processors but one)")
	f.IntVar(&a.LoginBurst, "login-burst", 0, "failed logins of one address and user name before more are refused unseen; ten times as many of one address (default 10)")
	f.DurationVar(&a.LoginPause, "login-pause", 0, "after how long there is one more of them (default 2s)")
	w := &a.Webhook
	f.StringVar(&w.URL, "webhook", "", "`URL` that is asked about each CONNECT, but for tokens and for users of --password-file, by a POST with JSON: http:// or https:// (default none)")
	f.StringVar(&w.HeaderFile, "webhook-header-file", "", "`FILE` whose first line is a header for these requests, such as Authorization: Bearer SECRET; read again when it changes, and on SIGHUP")
	f.StringVar(&w.CA, "webhook-ca", "", "PEM `FILE` with the authorities of the webhook's certificate (default those of the system)")
	f.StringVar(&w.Cert, "webhook-cert", "", "PEM `FILE` with the certificate that is shown to the webhook")
	f.StringVar(&w.Key, "webhook-key", "", "PEM `FILE` with its private key")
	f.DurationVar(&w.Timeout, "webhook-timeout", webhook.DefaultTimeout, "time that the webhook has for its answer, shorter than --connect-timeout")
	f.Var(flags.Word(&w.Failure, webhook.Deny, webhook.Ignore), "webhook-failure", "what a CONNECT gets while the webhook does not answer as it must: deny (0x88), or ignore: the client proves who it is in another way (default deny)")
	f.IntVar(&w.Requests, "webhook-requests", 0, "requests to the webhook under way (default 16)")
	f.IntVar(&w.Queue, "webhook-queue", 0, "clients that wait for one of these places; more are refused (default 1000)")
	f.DurationVar(&w.Remember, "webhook-remember", webhook.DefaultRemember, "how long an answer is remembered that allows a client")
	f.DurationVar(&w.Denied, "webhook-remember-denied", webhook.DefaultDenied, "how long another one is")
	f.Var(flags.Bytes(&w.MaxBytes), "webhook-remember-bytes", "bytes of answers that are remembered (default 16MiB)")
	f.StringVar(&cfg.AuditLog, "audit-log", "", "`FILE` for lines of JSON about who connected, was refused (also in the TLS handshake, for a certificate), took over, or changed the configuration, or - for standard output; opened again on SIGHUP")
	f.StringVar(&cfg.Policy, "policy", "", "`FILE` that says what clients may do; read again when it changes, and on SIGHUP (default: every client may do everything)")

	c := &cfg.Cluster
	f.StringVar(&c.Node, "node", "", "`NAME` of this node of a cluster, one of those in --cluster-peers")
	f.StringSliceVar(&c.Peers, "cluster-peers", nil, "`NAME=HOST:PORT` of all nodes of the cluster, this one included, with commas between them: names, and the addresses at which the nodes listen for each other; may be repeated")
	f.StringVar(&c.Listen, "cluster-listen", "", "`HOST:PORT` to listen on for the other nodes (default: this node's address in --cluster-peers)")
	f.BoolVar(&c.Bootstrap, "cluster-bootstrap", false, "make a cluster of this one node out of the data of a server by itself, or of a backup that was restored, if that was not done before; others are added by holdfast cluster add")
	f.StringVar(&c.Cert, "cluster-cert", "", "PEM `FILE` with this node's certificate, as holdfast cert node makes it; needed beyond loopback")
	f.StringVar(&c.Key, "cluster-key", "", "PEM `FILE` with its private key")
	f.StringVar(&c.CA, "cluster-ca", "", "PEM `FILE` with the authorities of the nodes' certificates")
	f.Var(flags.Word(&c.Reads, replica.Lease, replica.Quorum), "cluster-reads", "how the leader knows that it may answer from memory: lease (clocks run nearly at the same rate) or quorum (each read asks a quorum) (default lease)")
	f.DurationVar(&c.Election, "cluster-election-timeout", 0, "after how long without a leader the nodes elect another one (default 1s)")
	f.Var(flags.Bytes(&c.LogKeep), "cluster-log-keep", "bytes of its log that the node keeps on disk for others that are behind (default 256MiB)")
	f.Var(flags.Bytes(&c.SnapshotRate), "cluster-snapshot-rate", "bytes per second that the leader sends at most to a node that lacks all data, so that the rest is for its clients; four times as many while clients write so much that the node could not catch up otherwise (default 32MiB)")
	f.Var(flags.Bytes(&c.RelayMemory), "cluster-relay-memory", "bytes of buffers for what this node passes on to the leader and its clients, or the leader, have not read yet; connections beyond have 1 KiB for each direction; on the leader, bytes of buffers for what clients of fronts have sent and it has not read yet (default 64MiB)")

	cfg.Wire = protocol.SDK.String()
	f.Var(flags.Word(&cfg.Wire, protocol.SDK.String(), protocol.Documented.String()), "wire", "wire form of the state store: sdk (what the SDKs need) or documented")
	f.StringVar(&cfg.NodeID, "node-id", "StateStore", "node ID in the store's versions")
	f.DurationVar(&cfg.MaxClockSkew, "max-clock-skew", time.Minute, "how far ahead of our clock a request's timestamp may be")
	f.BoolVar(&cfg.AllowClockRegression, "allow-clock-regression", false, "start although the clock is behind the last version issued")
	f.Var(flags.IntBytes(&cfg.MaxKeySize), "max-key-size", "bytes of one key; requests with a longer one are refused, also those that only read it (default 64KiB)")
	f.Int64Var(&cfg.MaxKeys, "max-keys", 0, "keys in the store; clients that hold less than a sixteenth of them may go that much beyond (default 1000000)")
	f.Var(flags.Bytes(&cfg.MaxStoreBytes), "max-store-bytes", "bytes of keys and values in the store, likewise (default 1GiB)")
	f.Int64Var(&cfg.MaxClientKeys, "max-keys-per-client", 0, "keys that one principal may have written last, counted since the start, unless a quota says otherwise (default: no bound but --max-keys)")
	f.Var(flags.Bytes(&cfg.MaxClientKeyBytes), "max-key-bytes-per-client", "bytes of those keys and their values (default: no bound but --max-store-bytes)")
	f.DurationVar(&cfg.Remember, "remember", 0, "how long a message is remembered whose STORE has no KEEP (default 168h, or --max-remember if that is less)")
	f.DurationVar(&cfg.MaxRemember, "max-remember", 0, "longest KEEP granted (default 720h)")
	f.Var(flags.Bytes(&cfg.MaxRemembered), "max-remembered-bytes", "bytes of remembered messages on disk; at the bound every STORE, and every TXN with ONCE, gets the quota error (default a quarter of what the disk has free at the start)")
	f.IntVar(&cfg.MaxWatches, "max-watches", 0, "keys that one connection may watch (default 10000)")
	f.Var(flags.Bytes(&cfg.MaxWatchBytes), "max-watch-bytes", "bytes of the keys that one connection may watch, with 200 for each (default 4MiB)")
	f.IntVar(&cfg.MaxScans, "max-scans", 0, "SCANs that read at the same time, one of a connection; others wait for their turn (default 4)")
	f.IntVar(&cfg.MaxTxnOperations, "max-txn-operations", 0, "operations of each kind of one TXN (conditions, writes, messages, ...), up to 10000; more are refused (default 128)")

	l := &cfg.Limits
	f.IntVar(&l.MaxConnections, "max-connections", 0, "network connections; beyond, the principal that has most of them loses one to a principal that has fewer (default 100000, or what the limit of open files leaves room for if that is less)")
	f.IntVar(&l.LoopbackConnections, "loopback-connections", 0, "connections of clients on this machine that are accepted beyond --max-connections (default 16, at most a sixteenth of that)")
	f.IntVar(&l.ReservedConnections, "reserved-connections", 0, "connections beyond --max-connections, and sessions beyond --max-sessions, for principals of groups with the quota reserve (default 16, at most a sixteenth of --max-connections)")
	f.IntVar(&l.MaxSessions, "max-sessions", 0, "sessions, connected or away (default 200000)")
	f.DurationVar(&l.MaxSessionExpiry, "max-session-expiry", 7*24*time.Hour, "longest session expiry granted")
	f.Var(flags.IntBytes(&l.MaxPacketSize), "max-packet-size", "bytes of one packet from a client (default 4097KiB)")
	f.Var(flags.IntBytes(&l.MaxConnectSize), "max-connect-size", "bytes of a CONNECT, with its will and its password or token; with a larger one the connection is closed (default 64KiB, at most --max-packet-size)")
	f.DurationVar(&l.MaxKeepAlive, "max-keep-alive", 0, "longest keep-alive granted; 0: whatever the client asks")
	f.IntVar(&l.ReceiveMaximum, "receive-maximum", 0, "inflight publishes (QoS 1 and 2) from one client (default 1024)")
	f.IntVar(&l.MaxInflight, "max-inflight", 0, "inflight deliveries (QoS 1 and 2) to one client (default 1024)")
	f.IntVar(&l.MaxInflightV3, "max-inflight-v3", 0, "the same for a client of MQTT 3.1 or 3.1.1, which cannot say how many it takes (default 20)")
	f.IntVar(&l.TopicAliasMaximum, "topic-alias-maximum", 0, "topic aliases of one connection, each way (default 32)")
	f.IntVar(&l.MaxQueued, "max-queued-messages", 0, "messages waiting for one session or shared subscription (default no bound but that of bytes)")
	f.Var(flags.Bytes(&l.MaxQueuedBytes), "max-queued-bytes", "bytes waiting on disk for one session or shared subscription (default a quarter of --max-total-queued-bytes)")
	f.IntVar(&l.MaxTotalQueued, "max-total-queued-messages", 0, "messages waiting for all sessions together (default no bound but that of bytes)")
	f.Var(flags.Bytes(&l.MaxTotalQueuedBytes), "max-total-queued-bytes", "bytes waiting on disk for all sessions together (default half of what the disk has free at the start)")
	f.Var(flags.Bytes(&l.MaxQueuedMemory), "max-queued-memory", "bytes waiting in memory only for one client: messages of a session that ends with its connection, responses and notifications (default 64MiB)")
	f.Var(queueFullValue{&l.QueueFull}, "queue-full", "when a session's queue is full: end-session, reject or drop-oldest (default end-session)")
	f.Var(flags.Word((*string)(&l.SharedStrategy), string(limits.RoundRobin), string(limits.Sticky), string(limits.HashClient), string(limits.HashTopic)), "shared-strategy", "which member of a shared subscription gets a message: round-robin, sticky (one as long as it is connected), hash-client (the same those of a publisher) or hash-topic (the same those of a topic) (default round-robin)")
	f.Var(strategiesValue{&l.SharedStrategies}, "shared-strategies", "strategy of one group of shared subscriptions, `GROUP=STRATEGY`, instead of --shared-strategy; may be repeated, and be a mapping in the file")
	f.BoolVar(&l.KeepQueueFull, "keep-queue-full", false, "refuse sessions that choose another --queue-full for themselves (user property holdfast-queue-full in CONNECT)")
	f.IntVar(&l.MaxTxnDeliveries, "max-txn-deliveries", 0, "deliveries of the messages of one TXN, one for each message and session that gets it; more are refused (default 100000)")
	f.IntVar(&l.MaxNotifications, "max-notifications", 0, "state store notifications waiting for one connection (default 10000)")
	f.IntVar(&l.MaxSubscriptions, "max-subscriptions", 0, "subscriptions of one session (default 10000); a packet with more than twice as many filters ends the connection")
	f.IntVar(&l.MaxUserProperties, "max-user-properties", 0, "user properties of one packet (default 1000)")
	f.Var(flags.IntBytes(&l.MaxFilterBytes), "max-filter-bytes", "bytes of one session's topic filters (default 1MiB)")
	f.Var(flags.IntBytes(&l.MaxAliasBytes), "max-alias-bytes", "bytes of the topics of one connection's topic aliases, each way (default 64KiB)")
	f.IntVar(&l.MaxSessionsPerPrincipal, "max-sessions-per-address", 0, "sessions of one principal, or of one client address as far as clients have not proven who they are, unless a quota says otherwise (default half of --max-sessions)")
	f.IntVar(&l.MaxClientID, "max-client-id", 0, "bytes of a client identifier (default 1024)")
	f.IntVar(&l.MaxTopicLevels, "max-topic-levels", 0, "levels of a topic (default 128)")
	f.IntVar(&l.MaxRetained, "max-retained-messages", 0, "retained messages; clients that hold less than a sixteenth of them may go that much beyond (default 1000000)")
	f.Var(flags.Bytes(&l.MaxRetainedBytes), "max-retained-bytes", "bytes of retained messages, likewise (default 1GiB)")
	f.IntVar(&l.MaxClientRetained, "max-retained-per-client", 0, "retained messages that one principal may have published last, unless a quota says otherwise (default: no bound but --max-retained-messages)")
	f.Var(flags.Bytes(&l.MaxClientRetainedBytes), "max-retained-bytes-per-client", "bytes of those messages (default: no bound but --max-retained-bytes)")
	f.DurationVar(&l.MaxDelay, "max-delay", 366*24*time.Hour, "how far off a message may be that is to be delivered later (a timer)")
	f.IntVar(&l.MaxTimers, "max-timers", 0, "messages that are kept to be delivered later (default 10000000)")
	f.Var(flags.Bytes(&l.MaxTimerBytes), "max-timer-bytes", "bytes of those messages on disk (default 4GiB)")
	f.IntVar(&l.MaxClientTimers, "max-timers-per-client", 0, "those messages of one principal (default: no bound but --max-timers)")
	f.Var(flags.Bytes(&l.MaxClientTimerBytes), "max-timer-bytes-per-client", "bytes of those messages on disk (default: no bound but --max-timer-bytes)")
	f.Var(flags.IntBytes(&l.OutputBuffer), "output-buffer", "bytes buffered for a connection before its messages wait in the queue (default 64KiB)")
	f.DurationVar(&l.ConnectTimeout, "connect-timeout", 10*time.Second, "time that a new connection has for its CONNECT")
	f.DurationVar(&l.PacketTimeout, "packet-timeout", 2*time.Minute, "time that a client has for one packet, from its first byte to its last")
	f.DurationVar(&l.TakeoverWait, "takeover-wait", time.Second, "time that the server takes for what a client had sent over its old connection when it connects again")
	f.DurationVar(&cfg.SysInterval, "sys-interval", 10*time.Second, "how often $SYS topics are brought up to date")
}

// serveSpans are those of the flags for which not every positive value will do.
var serveSpans = map[string]flags.Span{
	"max-clock-skew":           flags.Between(int64(time.Millisecond), int64(24*time.Hour)),
	"max-session-expiry":       flags.Between(int64(time.Second), math.MaxUint32*int64(time.Second)),
	"max-keep-alive":           flags.Between(0, math.MaxUint16*int64(time.Second)),
	"receive-maximum":          flags.Between(1, math.MaxUint16),
	"max-inflight":             flags.Between(1, math.MaxUint16),
	"max-inflight-v3":          flags.Between(1, math.MaxUint16),
	"topic-alias-maximum":      flags.Between(1, math.MaxUint16),
	"max-client-id":            flags.Between(23, math.MaxUint16), // [MQTT-3.1.3-5]
	"max-key-size":             flags.Between(1, math.MaxUint16<<10),
	"max-txn-operations":       flags.Between(1, protocol.MostTxnOperations),
	"max-packet-size":          flags.Between(1<<10, 268_435_460), // what MQTT can say
	"max-connect-size":         flags.Between(1<<10, 268_435_460),
	"max-memory":               flags.Between(memory.MinMaximum, 1<<50),
	"output-buffer":            flags.Between(1<<10, math.MaxInt32),
	"sys-interval":             flags.Between(int64(100*time.Millisecond), int64(24*time.Hour)),
	"cluster-election-timeout": flags.Between(int64(100*time.Millisecond), int64(time.Minute)),
	"cluster-log-keep":         flags.Between(1<<20, 1<<50),
	"cluster-snapshot-rate":    flags.Between(64<<10, 1<<50),
	"cluster-relay-memory":     flags.Between(64<<10, 1<<50),
	"webhook-timeout":          flags.Between(int64(10*time.Millisecond), int64(time.Minute)),
	"webhook-remember":         flags.Between(int64(time.Millisecond), int64(24*time.Hour)),
	"webhook-remember-denied":  flags.Between(int64(time.Millisecond), int64(24*time.Hour)),
	"webhook-requests":         flags.Between(1, webhook.MaxRequests),
	"webhook-queue":            flags.Between(1, webhook.MaxQueue),
	"otlp-queue":               flags.Between(1, spans.MaxQueue),
	"log-burst":                flags.Between(0, 1_000_000_000),
}

// durabilityValue is a flag for a journal.Durability.
type durabilityValue struct{ to *journal.Durability }

func (v durabilityValue) String() string {
	if v.to == nil {
		return ""
	}
	return v.to.String()
}
func (v durabilityValue) Type() string { return "MODE" }
func (v durabilityValue) Set(s string) (err error) {
	*v.to, err = journal.ParseDurability(s)
	return err
}

// queueFullValue is a flag of one of three words.
type queueFullValue struct{ to *limits.QueueFull }

func (v queueFullValue) String() string {
	if v.to == nil {
		return ""
	}
	return string(*v.to)
}
func (v queueFullValue) Type() string { return "POLICY" }
func (v queueFullValue) Set(s string) error {
	switch q := limits.QueueFull(s); q {
	case limits.EndSession, limits.Reject, limits.DropOldest:
		*v.to = q
		return nil
	}
	return fmt.Errorf("want %s, %s or %s", limits.EndSession, limits.Reject, limits.DropOldest)
}
