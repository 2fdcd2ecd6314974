package metrics

import (
	"runtime"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/bridge"
	"github.com/holdfast-mqtt/holdfast/internal/histogram"
	"github.com/holdfast-mqtt/holdfast/internal/memory"
	"github.com/holdfast-mqtt/holdfast/internal/service"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/webhook"
)

// ofServer are the metrics of a server, in the order of docs/metrics.md. Those of a bound stand
// beside what it bounds, and end in _max.
var ofServer = []family{
	{name: "holdfast_build_info", kind: gauge, labels: []string{"version", "go"}, help: "1; the labels say which program runs",
		values: func(m *moment, emit func(float64, ...string)) { emit(1, m.Version, runtime.Version()) }},
	{name: "holdfast_uptime_seconds", kind: gauge, help: "time since the start",
		values: func(m *moment, emit func(float64, ...string)) { emit(time.Since(m.Started).Seconds()) }},

	// Connections and sessions.
	{name: "holdfast_connections", kind: gauge, help: "network connections", azure: "aio_broker_connected_sessions",
		values: one(func(m *moment) int64 { return int64(m.levels.Connections) })},
	{name: "holdfast_connections_max", kind: gauge, help: "bound of connections, besides those that are reserved (--max-connections)",
		values: one(func(m *moment) int64 { return m.Broker.MaxConnections() })},
	{name: "holdfast_connections_reserved", kind: gauge, help: "connections in the reserve for administrators",
		values: one(func(m *moment) int64 { return int64(m.held.Reserved) })},
	{name: "holdfast_connects_total", kind: counter, help: "connections whose CONNECT was accepted",
		values: one(func(m *moment) int64 { return m.stats.Connects.Load() })},
	{name: "holdfast_connects_refused_total", kind: counter, help: "connections refused in CONNACK",
		values: one(func(m *moment) int64 { return m.stats.Refused.Load() })},
	{name: "holdfast_connections_closed_total", kind: counter, labels: []string{"reason"}, help: "connections that the server closed",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, c := range []struct {
				reason string
				n      int64
			}{
				{"taken_over", m.stats.Takeovers.Load()}, {"displaced", m.stats.Displaced.Load()}, {"stranger", m.stats.Strangers.Load()}, {"keep_alive", m.stats.KeepAliveTimeouts.Load()},
				{"expired", m.stats.IdentitiesExpired.Load()}, {"revoked", m.stats.IdentitiesRevoked.Load()}, {"memory", m.stats.Relieved.Load()}, {"defect", m.stats.Panics.Load()}, {"descriptors", m.TurnedAway()},
			} {
				emit(float64(c.n), c.reason)
			}
		}},
	{name: "holdfast_handshakes", kind: gauge, help: "TLS and WebSocket handshakes under way", values: one(func(m *moment) int64 { n, _ := m.Handshakes(); return n })},
	{name: "holdfast_handshakes_ended_total", kind: counter, help: "handshakes ended to make room for others", values: one(func(m *moment) int64 { _, n := m.Handshakes(); return n })},
	{name: "holdfast_sessions", kind: gauge, help: "sessions, connected and away", azure: "aio_broker_store_total_sessions",
		values: one(func(m *moment) int64 { return int64(m.levels.Sessions) })},
	{name: "holdfast_sessions_max", kind: gauge, help: "bound of sessions (--max-sessions)", values: one(func(m *moment) int64 { return int64(m.Broker.Limits().MaxSessions) })},
	{name: "holdfast_sessions_ended_total", kind: counter, labels: []string{"reason"}, help: "sessions that the server ended: their expiry had passed, others needed the place, or their queue was full",
		values: func(m *moment, emit func(float64, ...string)) {
			emit(float64(m.stats.SessionsExpired.Load()), "expired")
			emit(float64(m.stats.SessionsDisplaced.Load()), "displaced")
			emit(float64(m.stats.SessionsOverflowed.Load()), "queue_full")
		}},
	{name: "holdfast_principals", kind: gauge, help: "principals that have a connection or a session", values: one(func(m *moment) int64 { return int64(m.held.Principals) })},
	{name: "holdfast_subscriptions", kind: gauge, help: "subscriptions of all sessions", azure: "aio_broker_store_subscriptions", values: one(func(m *moment) int64 { return m.stats.Subscriptions.Load() })},
	{name: "holdfast_automatic_subscriptions_refused_total", kind: counter, help: "automatic subscriptions (--auto-subscribe) that a client may not have, or that its name does not fit in", values: one(func(m *moment) int64 { return m.stats.AutomaticRefused.Load() })},
	{name: "holdfast_logins_failed_total", kind: counter, labels: []string{"reason"}, help: "logins that failed: the proof was wrong, the address had failed too often, or too many were being checked", azure: "aio_broker_authentication_failures",
		values: func(m *moment, emit func(float64, ...string)) {
			if m.Login == nil {
				return
			}
			c := m.Login.Counters()
			emit(float64(c.Failed.Load()), "wrong")
			emit(float64(c.Throttled.Load()), "throttled")
			emit(float64(c.Busy.Load()), "busy")
		}},
	{name: "holdfast_webhook_questions_total", kind: counter, labels: []string{"outcome"}, help: "CONNECTs about which the webhook was asked: allow, deny, ignore; remembered, without a request; timeout, busy (too many waited) and failed are those without an answer",
		values: ofWebhook(func(f *webhook.Figures, emit func(float64, ...string)) {
			for i, o := range webhook.Outcomes() {
				emit(float64(f.Outcomes[i]), o.String())
			}
		})},
	{name: "holdfast_webhook_seconds", labels: []string{}, help: "time that the webhook took for its answer",
		histograms: func(m *moment, emit func(histogram.Snapshot, float64, ...string)) {
			if m.Login != nil && m.Login.Webhook() != nil {
				emit(m.Login.Webhook().Figures().Latency, float64(time.Second))
			}
		}},
	{name: "holdfast_webhook_failing", kind: gauge, help: "1 if the last question to the webhook had no answer", values: ofWebhook(func(f *webhook.Figures, emit func(float64, ...string)) {
		if f.Failing {
			emit(1)
		} else {
			emit(0)
		}
	})},
	{name: "holdfast_webhook_requests", kind: gauge, labels: []string{"state"}, help: "requests to the webhook under way, and clients that wait for their place", values: ofWebhook(func(f *webhook.Figures, emit func(float64, ...string)) {
		emit(float64(f.UnderWay), "under_way")
		emit(float64(f.Waiting), "waiting")
	})},
	{name: "holdfast_webhook_remembered", kind: gauge, help: "answers of the webhook that are remembered", values: ofWebhook(func(f *webhook.Figures, emit func(float64, ...string)) { emit(float64(f.Answers)) })},
	{name: "holdfast_webhook_remembered_bytes", kind: gauge, help: "their bytes", values: ofWebhook(func(f *webhook.Figures, emit func(float64, ...string)) { emit(float64(f.Bytes)) })},
	{name: "holdfast_webhook_remembered_bytes_max", kind: gauge, help: "bound of these bytes (--webhook-remember-bytes)", values: ofWebhook(func(f *webhook.Figures, emit func(float64, ...string)) { emit(float64(f.MaxBytes)) })},

	{name: "holdfast_client_events_total", kind: counter, help: "events of clients that were published on $SYS (--client-events)", values: one(func(m *moment) int64 { return m.Broker.Events().Sent() })},
	{name: "holdfast_client_events_dropped_total", kind: counter, help: "events of clients that were not published: there were more in a second than --client-events, or too many waited", values: one(func(m *moment) int64 { return m.Broker.Events().Dropped() })},
	{name: "holdfast_api_requests_total", kind: counter, labels: []string{"status"}, help: "requests to the HTTP API, by the first digit of the answer's status",
		values: func(m *moment, emit func(float64, ...string)) {
			if a := m.api(); a != nil {
				emit(float64(a.Answers(2)), "2xx")
				emit(float64(a.Answers(4)), "4xx")
				emit(float64(a.Answers(5)), "5xx")
			}
		}},

	// Messages.
	{name: "holdfast_packets_received_total", kind: counter, help: "packets of all types from clients", values: one(func(m *moment) int64 { return m.stats.PacketsIn.Load() })},
	{name: "holdfast_messages_received_total", kind: counter, labels: []string{"qos"}, help: "PUBLISH packets from clients, requests to the state store included", azure: "aio_broker_publishes_received",
		values: func(m *moment, emit func(float64, ...string)) {
			for q := range qos {
				emit(float64(m.stats.In[q].Messages.Load()), qos[q])
			}
		}},
	{name: "holdfast_messages_sent_total", kind: counter, labels: []string{"qos"}, help: "PUBLISH packets to clients, responses and notifications of the state store included", azure: "aio_broker_publishes_sent",
		values: func(m *moment, emit func(float64, ...string)) {
			for q := range qos {
				emit(float64(m.stats.Out[q].Messages.Load()), qos[q])
			}
		}},
	{name: "holdfast_message_bytes_received_total", kind: counter, labels: []string{"qos"}, help: "bytes of their payloads", azure: "aio_broker_payload_bytes_received",
		values: func(m *moment, emit func(float64, ...string)) {
			for q := range qos {
				emit(float64(m.stats.In[q].Bytes.Load()), qos[q])
			}
		}},
	{name: "holdfast_message_bytes_sent_total", kind: counter, labels: []string{"qos"}, help: "bytes of their payloads", azure: "aio_broker_payload_bytes_sent",
		values: func(m *moment, emit func(float64, ...string)) {
			for q := range qos {
				emit(float64(m.stats.Out[q].Bytes.Load()), qos[q])
			}
		}},
	{name: "holdfast_messages_dropped_total", kind: counter, labels: []string{"reason"}, help: "messages that a subscriber did not get: its output or queue was full, their expiry had passed, or it takes no packet that large", azure: "aio_broker_qos0_messages_dropped, for a part of those with the reason full",
		values: func(m *moment, emit func(float64, ...string)) {
			emit(float64(m.stats.Dropped.Load()), "full")
			emit(float64(m.stats.Expired.Load()), "expired")
			emit(float64(m.stats.TooLarge.Load()), "too_large")
		}},
	{name: "holdfast_publishes_rejected_total", kind: counter, help: "publishes refused at a bound", azure: "aio_broker_backpressure_packets_rejected", values: one(func(m *moment) int64 { return m.stats.Rejected.Load() })},
	{name: "holdfast_publishes_denied_total", kind: counter, help: "publishes and wills refused by the policy", azure: "aio_broker_authorization_deny, which counts other packets as well",
		values: one(func(m *moment) int64 { return m.stats.Unauthorized.Load() + m.stats.WillsUnauthorized.Load() })},
	{name: "holdfast_publishes_held_up_total", kind: counter, help: "publishes that waited because their principal published faster than it may", values: one(func(m *moment) int64 { return m.stats.HeldToRate.Load() })},
	{name: "holdfast_wills_total", kind: counter, help: "wills published", values: one(func(m *moment) int64 { return m.stats.Wills.Load() })},
	{name: "holdfast_queued_messages", kind: gauge, help: "messages of QoS 1 and 2 in the queues of sessions", values: one(func(m *moment) int64 { return m.stats.Queued.Load() })},
	{name: "holdfast_queued_disk_bytes", kind: gauge, help: "bytes of queues on disk", values: one(func(m *moment) int64 { return m.Broker.StoredBytes() })},
	{name: "holdfast_queued_disk_bytes_max", kind: gauge, help: "bound of them (--max-total-queued-bytes)", values: one(func(m *moment) int64 { return m.queued[1] })},
	{name: "holdfast_queues_near_full_total", kind: counter, help: "times that a queue, or all together, came within a fifth of the bound", values: one(func(m *moment) int64 { return m.stats.NearFull.Load() })},
	{name: "holdfast_retained_messages", kind: gauge, help: "retained messages", azure: "aio_broker_store_retained_messages", values: one(func(m *moment) int64 { return int64(m.levels.Retained) })},
	{name: "holdfast_retained_messages_max", kind: gauge, help: "bound of them (--max-retained-messages)", values: one(func(m *moment) int64 { return int64(m.Broker.Retained.Bounds().Messages) })},
	{name: "holdfast_retained_bytes", kind: gauge, help: "bytes of retained messages", azure: "aio_broker_store_retained_bytes", values: one(func(m *moment) int64 { return m.levels.RetainedBytes })},
	{name: "holdfast_retained_bytes_max", kind: gauge, help: "bound of them (--max-retained-bytes)", values: one(func(m *moment) int64 { return m.Broker.Retained.Bounds().Bytes })},
	{name: "holdfast_bridge_connected", kind: gauge, labels: []string{"bridge"}, help: "1: the bridge is connected to the other broker, and has its subscriptions at both; 0: it is not",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, l := range m.Bridges {
				connected := 0.0
				if l.Connected() {
					connected = 1
				}
				emit(connected, l.Name())
			}
		}},
	{name: "holdfast_bridge_connects_total", kind: counter, labels: []string{"bridge"}, help: "how often the bridge has connected",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, l := range m.Bridges {
				emit(float64(l.Connects()), l.Name())
			}
		}},
	{name: "holdfast_bridge_failures_total", kind: counter, labels: []string{"bridge", "reason"}, help: "attempts to connect, and connections, of the bridge that have failed: its URL leads to this server itself; refused by a broker with a reason code; or failed otherwise, as the log says",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, l := range m.Bridges {
				for _, r := range bridge.Reasons {
					emit(float64(l.Failures(r)), l.Name(), r.String())
				}
			}
		}},
	{name: "holdfast_bridge_messages_total", kind: counter, labels: []string{"bridge", "direction", "outcome"}, help: "messages from this broker to the other one (out) and from that to this one (in): passed on, those that were sent again counted again; refused by the receiving broker; or dropped, as the log says",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, l := range m.Bridges {
				for direction, f := range map[string]*bridge.Figures{"out": &l.Out, "in": &l.In} {
					emit(float64(f.Messages.Load()), l.Name(), direction, "passed")
					emit(float64(f.Refused.Load()), l.Name(), direction, "refused")
					emit(float64(f.Dropped.Load()), l.Name(), direction, "dropped")
				}
			}
		}},
	{name: "holdfast_bridge_bytes_total", kind: counter, labels: []string{"bridge", "direction"}, help: "bytes of the payloads of messages that a bridge has passed on",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, l := range m.Bridges {
				emit(float64(l.Out.Bytes.Load()), l.Name(), "out")
				emit(float64(l.In.Bytes.Load()), l.Name(), "in")
			}
		}},
	{name: "holdfast_timers", kind: gauge, help: "messages that are kept to be delivered later", values: one(func(m *moment) int64 { return m.levels.Timers.Timers })},
	{name: "holdfast_timers_max", kind: gauge, help: "bound of them (--max-timers)", values: one(func(m *moment) int64 { return int64(m.Broker.Limits().MaxTimers) })},
	{name: "holdfast_timer_bytes", kind: gauge, help: "bytes on disk of messages that are kept to be delivered later", values: one(func(m *moment) int64 { return m.levels.Timers.Bytes })},
	{name: "holdfast_timer_bytes_max", kind: gauge, help: "bound of them (--max-timer-bytes)", values: one(func(m *moment) int64 { return m.Broker.Limits().MaxTimerBytes })},
	{name: "holdfast_timers_late_seconds", kind: gauge, help: "how late the message was that was due last",
		values: func(m *moment, emit func(float64, ...string)) { emit(float64(m.levels.Timers.LagMs) / 1000) }},
	{name: "holdfast_timers_total", kind: counter, labels: []string{"event"}, help: "messages that were set to be delivered later; cancelled; delivered; retried (due, and found no room); denied (due, and the policy did not allow them any more); refused (at a bound)",
		values: func(m *moment, emit func(float64, ...string)) {
			emit(float64(m.stats.TimersSet.Load()), "set")
			emit(float64(m.stats.TimersCancelled.Load()), "cancelled")
			emit(float64(m.stats.TimersPublished.Load()), "delivered")
			emit(float64(m.stats.TimersRetried.Load()), "retried")
			emit(float64(m.stats.TimersDenied.Load()), "denied")
			emit(float64(m.stats.TimersRefused.Load()), "refused")
		}},

	// The state store.
	{name: "holdfast_store_keys", kind: gauge, help: "keys in the store", values: one(func(m *moment) int64 { return m.store.Keys })},
	{name: "holdfast_store_keys_max", kind: gauge, help: "bound of them (--max-keys)", values: one(func(m *moment) int64 { return m.store.MaxKeys })},
	{name: "holdfast_store_bytes", kind: gauge, help: "bytes of keys and values", values: one(func(m *moment) int64 { return m.store.Bytes })},
	{name: "holdfast_store_bytes_max", kind: gauge, help: "bound of them (--max-store-bytes)", values: one(func(m *moment) int64 { return m.store.MaxBytes })},
	{name: "holdfast_store_commands_total", kind: counter, labels: []string{"command", "outcome"}, help: "commands executed: ok; missed (no such key, or a condition was not met); quota, denied or error (answered with an error)",
		azure: "aio_broker_state_store_retrievals (GET), _insertions and _modifications (SET), _deletions (DEL, VDEL), _keynotify_requests (KEYNOTIFY)",
		values: func(m *moment, emit func(float64, ...string)) {
			stats := m.Service.Stats()
			for v := range stats.Commands {
				for o := range stats.Commands[v] {
					name := statestore.Verb(v).String()
					if n := stats.Commands[v][o].Load(); n > 0 || v > 0 {
						emit(float64(n), name, service.Outcome(o).String())
					}
				}
			}
		}},
	{name: "holdfast_store_command_seconds", labels: []string{"command"}, help: "time from a command to its answer, of a write until it is durable; of one command in 64 of a connection",
		histograms: func(m *moment, emit func(histogram.Snapshot, float64, ...string)) {
			for v, h := range m.Service.Stats().Latency {
				if h != nil {
					emit(h.Read(), 1e9, statestore.Verb(v).String())
				}
			}
		}},
	{name: "holdfast_store_requests_refused_total", kind: counter, labels: []string{"reason"}, help: "requests that were not executed: at QoS 0 or by MQTT 3.1.1, which cannot be answered; malformed; or expired",
		values: func(m *moment, emit func(float64, ...string)) {
			stats := m.Service.Stats()
			emit(float64(stats.Ignored.Load()), "unanswerable")
			emit(float64(stats.Malformed.Load()), "malformed")
			emit(float64(stats.Expired.Load()), "expired")
		}},
	{name: "holdfast_store_quota_errors_total", kind: counter, labels: []string{"setting"}, help: "requests answered with the quota error, by the setting that they have run into, for example max-txn-deliveries",
		values: func(m *moment, emit func(float64, ...string)) {
			for b := statestore.NoBound + 1; b < statestore.Bounds; b++ {
				emit(float64(m.Service.Stats().Exceeded[b].Load()), b.String())
			}
		}},
	{name: "holdfast_spans_total", kind: counter, labels: []string{"outcome"}, help: "spans of requests (--otlp-endpoint): sent to the collector; dropped, because their queue was full; failed, because the collector did not take them",
		values: func(m *moment, emit func(float64, ...string)) {
			if m.Spans == nil {
				return
			}
			sent, dropped, failed := m.Spans()
			emit(float64(sent), "sent")
			emit(float64(dropped), "dropped")
			emit(float64(failed), "failed")
		}},
	{name: "holdfast_store_notifications_total", kind: counter, help: "notifications of changed keys given to connections", azure: "aio_broker_state_store_notifications_sent", values: one(func(m *moment) int64 { return m.Service.Stats().Notices.Load() })},
	{name: "holdfast_store_watches", kind: gauge, help: "keys that connections watch", values: one(func(m *moment) int64 { return m.store.Watches })},
	{name: "holdfast_store_scans", kind: gauge, help: "SCANs that read at the moment", values: one(func(m *moment) int64 { return m.store.Scans })},
	{name: "holdfast_store_expired_total", kind: counter, help: "keys whose expiry had passed", values: one(func(m *moment) int64 { return m.store.Expired })},
	{name: "holdfast_store_transactions_total", kind: counter, labels: []string{"outcome"}, help: "TXNs: committed; repeated (ONCE remembered them); unmet (a condition was not met); refused (an error)",
		values: func(m *moment, emit func(float64, ...string)) {
			stats := m.Service.Stats()
			emit(float64(stats.TxnCommitted.Load()), "committed")
			emit(float64(stats.TxnRepeated.Load()), "repeated")
			emit(float64(stats.TxnUnmet.Load()), "unmet")
			emit(float64(stats.TxnRefused.Load()), "refused")
		}},
	{name: "holdfast_store_remembered_messages", kind: gauge, help: "messages that consistent messaging remembers", values: one(func(m *moment) int64 { return m.store.Remembered.Messages })},
	{name: "holdfast_store_remembered_bytes", kind: gauge, help: "what these messages count against their bound", values: one(func(m *moment) int64 { return m.store.Remembered.Bytes })},
	{name: "holdfast_store_remembered_bytes_max", kind: gauge, help: "bound of them (--max-remembered-bytes)", values: one(func(m *moment) int64 { return m.store.MaxRemembered })},
	{name: "holdfast_store_forgotten_total", kind: counter, help: "remembered messages whose time had come", values: one(func(m *moment) int64 { return m.store.Forgotten })},
	{name: "holdfast_store_clock_ahead_seconds", kind: gauge, help: "how far the last version is ahead of the machine's clock",
		values: func(m *moment, emit func(float64, ...string)) { emit(float64(m.store.AheadMs) / 1000) }},

	// Journal and disk.
	{name: "holdfast_journal_batch_bytes", help: "bytes of a batch of rows that was committed",
		histograms: func(m *moment, emit func(histogram.Snapshot, float64, ...string)) { emit(m.journal.BatchBytes, 1) }},
	fsyncTimes,
	{name: "holdfast_disk_free_bytes", kind: gauge, help: "free space of the disk",
		values: func(m *moment, emit func(float64, ...string)) {
			if free, _, known := m.Journal.Free(); known {
				emit(float64(free))
			}
		}},
	{name: "holdfast_disk_reserve_bytes", kind: gauge, help: "free space below which new data is refused (--disk-reserve)",
		values: func(m *moment, emit func(float64, ...string)) {
			if _, reserve, known := m.Journal.Free(); known {
				emit(float64(reserve))
			}
		}},
	{name: "holdfast_disk_low", kind: gauge, help: "1 while new data is refused for lack of free space",
		values: one(func(m *moment) int64 {
			if m.Journal.Low() {
				return 1
			}
			return 0
		})},

	// The process.
	{name: "holdfast_memory_max_bytes", kind: gauge, help: "memory that the process takes at most (--max-memory); process_resident_memory_bytes is what it takes", values: one(func(m *moment) int64 { return m.Maximum })},
	{name: "holdfast_memory_pool_bytes", kind: gauge, help: "what the server holds for clients", values: one(func(m *moment) int64 { return m.Memory.Used() })},
	{name: "holdfast_memory_pool_max_bytes", kind: gauge, help: "bound of that", values: one(func(m *moment) int64 { return m.Memory.Limit() })},
	{name: "holdfast_memory_kind_bytes", kind: gauge, labels: []string{"kind"}, help: "what the server holds for clients, by what it is for",
		values: func(m *moment, emit func(float64, ...string)) {
			for _, kind := range memory.Kinds() {
				emit(float64(m.Memory.UsedBy(kind)), kind.String())
			}
		}},
	{name: "holdfast_memory_refused_total", kind: counter, help: "times that something was refused for lack of memory", values: one(func(m *moment) int64 { return m.Memory.Refused() })},
	{name: "holdfast_descriptors_max", kind: gauge, help: "files and sockets that the process may have open; process_open_fds is what it has", values: one(func(m *moment) int64 { return int64(m.Descriptors) })},
}
