package mosquitto

import "strings"

func words(text string) map[string]bool {
	all := make(map[string]bool)
	for _, w := range strings.Fields(text) {
		all[w] = true
	}
	return all
}

// Words of each kind. Those of listeners and bridges have a place of their own.
var (
	listenerWords = words(`protocol max_connections mount_point bind_interface socket_domain use_username_as_clientid
		websockets_origin http_dir max_qos cafile capath certfile keyfile crlfile ciphers ciphers_tls1.3 dhparamfile
		require_certificate tls_version tls_engine tls_keyform tls_engine_kpass_sha1 use_identity_as_username
		use_subject_as_username psk_hint`)
	bridgeWords = words(`address remote_clientid remote_username remote_password cleansession keepalive_interval
		bridge_protocol_version start_type bridge_cafile bridge_capath bridge_certfile bridge_keyfile bridge_insecure
		bridge_psk bridge_identity`)
	globalWords = words(`max_inflight_messages max_queued_messages max_queued_bytes max_packet_size message_size_limit
		memory_limit max_keepalive persistent_client_expiration sys_interval persistence persistence_location log_dest`)
)

var bridgeAliases = map[string]string{
	"addresses": "address", "clientid": "remote_clientid", "username": "remote_username", "password": "remote_password",
}

const (
	noSetting  = "Holdfast has no setting for that"
	ownSession = "the session of a bridge here is named by the bridge, and lasts"
	ownOutput  = "the log is written to standard error, in the form that --log-format says"
	ownDisk    = "Holdfast writes each acknowledged message to disk before it acknowledges it"
)

// noCounterpart says of words why nothing is made of them.
var noCounterpart = map[string]string{
	"allow_duplicate_messages":   noSetting,
	"allow_zero_length_clientid": noSetting,
	"auto_id_prefix":             "a client without a client ID is given one that has no prefix",
	"autosave_interval":          ownDisk, "autosave_on_changes": ownDisk, "persistence_file": ownDisk,
	"check_retain_source": noSetting,
	"clientid_prefixes":   "the policy may say which client IDs connect (clientIds of principals)",
	"connection_messages": "--log-level says what is logged",
	"log_facility":        ownOutput, "log_timestamp": ownOutput, "log_timestamp_format": ownOutput, "websockets_log_level": ownOutput,
	"max_inflight_bytes":      "messages in flight are bounded by their number (max-inflight)",
	"max_topic_alias":         "topic aliases are bounded for all listeners (topic-alias-maximum)",
	"max_topic_alias_broker":  noSetting,
	"pid_file":                "let the service manager start and end the server; it writes no file with its process ID",
	"queue_qos0_messages":     noSetting,
	"retain_available":        "retained messages cannot be switched off; a policy decides who publishes",
	"set_tcp_nodelay":         noSetting,
	"upgrade_outgoing_qos":    "messages are delivered at the lower of both QoS",
	"user":                    "the server runs as the user that starts it",
	"websockets_headers_size": noSetting,
	"bridge_alpn":             "bridges have no ALPN", "bridge_attempt_unsubscribe": "bridges do not unsubscribe",
	"bridge_bind_address":    "the system chooses the address",
	"bridge_max_packet_size": "the other broker says how large packets may be",
	"bridge_max_topic_alias": "bridges have no such bound", "bridge_outgoing_retain": "bridges pass RETAIN on",
	"bridge_require_ocsp": "bridges do not ask for OCSP", "bridge_tls_version": "bridges have TLS 1.2 at least",
	"bridge_tcp_keepalive": "the keep-alive of MQTT ends a connection that is dead", "bridge_tcp_user_timeout": "the keep-alive of MQTT ends a connection that is dead",
	"idle_timeout": "bridges are always connected", "threshold": "bridges are always connected",
	"local_clientid": ownSession, "local_cleansession": ownSession, "local_username": "a bridge has the user name bridge/NAME here", "local_password": "a bridge needs no password here",
	"notifications": "its state is at $SYS/broker/connection/NAME/state of this server only", "notifications_local_only": "its state is at $SYS/broker/connection/NAME/state of this server only", "notification_topic": "its state is at $SYS/broker/connection/NAME/state of this server only",
	"restart_timeout": "a bridge tries again after half a second, and later after up to 30 seconds",
	"round_robin":     "a bridge goes on at the next address when its connection is lost, and does not return to the first by itself", "try_private": "bridges to MQTT 3.1.1 always say that they are some",
}

// bridgeWord is the name of a setting of bridges that has two.
func bridgeWord(word string) string {
	if name := bridgeAliases[word]; name != "" {
		return name
	}
	return word
}
