package mosquitto

import (
	"net"
	"strconv"
)

// listenerItem writes a listener.
func (w *writer) listenerItem(l *listener, localOnly bool) {
	scheme := map[[2]bool]string{{false, false}: "mqtt", {true, false}: "mqtts", {false, true}: "ws", {true, true}: "wss"}
	tls := l.set["certfile"].value != ""
	host := l.host
	if host == "" { // all addresses
		host = map[string]string{"ipv4": "0.0.0.0", "ipv6": "::"}[l.set["socket_domain"].value]
	}
	item := func(name, value string) { w.lists.WriteString("    " + name + ": " + value + "\n") }
	file := func(name, word string) {
		if s, is := l.set[word]; is {
			item(name, quoted(w.absolute(s.value)))
		}
	}
	url := scheme[[2]bool{tls, l.set["protocol"].value == "websockets"}] + "://" + net.JoinHostPort(host, strconv.Itoa(l.port))
	w.lists.WriteString("  - url: " + quoted(url) + "\n")
	if l.anonymous(localOnly) {
		item("anonymous", "true")
	}
	if tls {
		file("tls-cert", "certfile")
		file("tls-key", "keyfile")
		if l.is("require_certificate") {
			file("tls-client-ca", "cafile")
			file("tls-crl", "crlfile")
		}
		w.tlsVersion(l, item)
	}
	for _, word := range sortedNames(l.set) {
		w.listenerSetting(l, l.set[word], item)
	}
	s := l.security
	if s.passwords == nil && w.shared.passwords != nil {
		w.problem(l.at, "the listener %s had no password_file; a client that shows a password here must be a user of that of the other listeners", w.name(l))
	}
	if s.passwords == nil && s.acl != nil && !l.certificate() {
		w.problem(*s.acl, "clients of the listener %s prove no user name: what the list allows to users it does not allow to them", w.name(l))
	}
}

func (w *writer) tlsVersion(l *listener, item func(name, value string)) {
	s, is := l.set["tls_version"]
	switch {
	case !is, s.value == "tlsv1.2":
	case s.value == "tlsv1.3":
		item("tls-min-version", `"1.3"`)
	default:
		w.problem(s, "tls_version %s: Holdfast has TLS 1.2 and 1.3", s.value)
	}
}

// listenerSetting converts, or names, what the URL and the files do not say.
func (w *writer) listenerSetting(l *listener, s setting, item func(name, value string)) {
	switch s.word {
	case "max_connections":
		if s.value == "-1" {
			return
		}
		if n, ok := w.number(s, maxCount); ok && n > 0 {
			item("max-connections", strconv.FormatInt(n, 10))
		}
	case "websockets_origin":
		if l.set["protocol"].value == "websockets" {
			item("ws-origin", "["+quoted(s.value)+"]")
		}
	case "require_certificate":
		if s.value == "true" && l.set["certfile"].value == "" {
			w.problem(s, "require_certificate has no effect without certfile and keyfile")
		} else if s.value == "true" && !l.certificate() {
			w.problem(s, "a client that shows no password has the name in its certificate here (--tls-identity)")
		}
	case "use_subject_as_username":
		if s.value == "true" && !l.is("use_identity_as_username") {
			w.put("tls-identity", "subject")
			w.problem(s, "the order in which the fields of the subject are written may differ: look at the names in the policy")
		}
	case "use_username_as_clientid":
		if s.value == "true" {
			w.problem(s, "Holdfast does not replace client IDs; --bind-client-id username refuses those that are not the user name")
		}
	case "crlfile", "cafile":
		if !l.is("require_certificate") {
			w.problem(s, "%s has no effect without require_certificate true", s.word)
		}
	case "max_qos":
		w.problem(s, "max_qos: clients may use all QoS on each listener")
	case "http_dir":
		w.problem(s, "http_dir: Holdfast serves no files; --admin has a console")
	case "socket_domain":
		if l.host != "" {
			w.problem(s, "socket_domain: the address of the listener decides")
		}
	case "ciphers", "ciphers_tls1.3", "dhparamfile":
		w.problem(s, "%s: the ciphers are those that Go takes for safe", s.word)
	case "tls_engine", "tls_keyform", "tls_engine_kpass_sha1":
		w.problem(s, "%s: keys are read from PEM files only", s.word)
	}
}
