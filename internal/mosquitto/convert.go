package mosquitto

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/auth/passwd"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// Names of the files that a conversion makes; of a bridge's password: bridge-NAME.txt.
const (
	ConfigFile = "holdfast.yaml"
	usersFile  = "users"
	policyFile = "policy.yaml"
)

// File is a file that a conversion makes.
type File struct {
	Name    string // without a directory
	Content []byte
}

// Convert reads a configuration of Mosquitto and the files that it names for passwords and access
// control, and makes the files of a configuration of Holdfast, ConfigFile last. The problems are the
// lines that have no counterpart, by file and line. An error says that a file cannot be read,
// or that no listener is left.
func Convert(path string) ([]File, []Problem, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	c := &converter{dir: filepath.Dir(path), source: source{global: make(map[string]setting)}}
	c.first = &listener{set: make(map[string]setting), security: &security{}, port: 1883}
	c.current = c.first
	if err := c.parse(path, false); err != nil {
		return nil, nil, err
	}
	w := &writer{converter: c, values: make(map[string]string)}
	if err := w.convert(path); err != nil {
		return nil, nil, err
	}
	sort.SliceStable(c.problems, func(i, j int) bool {
		a, b := &c.problems[i], &c.problems[j]
		return a.File < b.File || a.File == b.File && a.Line < b.Line
	})
	return w.files, c.problems, nil
}

// writer makes the files.
type writer struct {
	*converter
	files  []File
	names  []string // of the settings of the server, in order
	values map[string]string
	kept   []*listener
	shared security // the files of all listeners that are kept
	lists  strings.Builder
	rules  strings.Builder // of the bridges, for the policy
}

// put sets a setting of the server.
func (w *writer) put(name, value string) {
	if _, is := w.values[name]; !is {
		w.names = append(w.names, name)
	}
	w.values[name] = value
}

// quoted is text in YAML, for which a string of JSON is one of its own.
func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

func (w *writer) convert(path string) error {
	w.limits()
	if err := w.listenerList(path); err != nil {
		return err
	}
	w.bridgeList()
	if err := w.credentials(); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Made of Mosquitto's %s.\n", strings.Trim(quoted(path), `"`))
	for _, name := range w.names {
		b.WriteString(name + ": " + w.values[name] + "\n")
	}
	b.WriteString(w.lists.String())
	w.files = append(w.files, File{ConfigFile, []byte(b.String())})
	return nil
}

// credentials makes the password file and the policy.
func (w *writer) credentials() error {
	if s := w.shared.passwords; s != nil {
		content, err := readFile(w.absolute(s.value), maxUsers)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", s.file, s.line, err)
		}
		if _, err := passwd.Parse(w.absolute(s.value), bytes.NewReader(content)); err != nil {
			return fmt.Errorf("%s:%d: %w", s.file, s.line, err)
		}
		w.files = append(w.files, File{usersFile, content})
		w.put("password-file", usersFile)
	}
	if s := w.shared.acl; s != nil {
		name := w.absolute(s.value)
		content, err := readFile(name, maxFile)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", s.file, s.line, err)
		}
		converted, problems := policy.ImportMosquitto(name, content)
		for _, p := range problems {
			w.problems = append(w.problems, Problem{name, p.Line, p.Text})
		}
		w.files = append(w.files, File{policyFile, append(converted, w.rules.String()...)})
		w.put("policy", policyFile)
	}
	return nil
}

// number reads the value of a setting, which is not negative.
func (w *writer) number(s setting, most int64) (int64, bool) {
	n, err := strconv.ParseInt(s.value, 10, 64)
	if err != nil || n < 0 || n > most {
		w.problem(s, "%s %.40q: want a whole number from 0 to %d", s.word, s.value, most)
		return 0, false
	}
	return n, true
}

// Bounds of the server's settings; of packets in bytes.
const (
	minPacket = 1 << 10 // that the server takes
	maxPacket = 268435455
	maxCount  = 1_000_000_000
	maxBytes  = 1 << 50
	overhead  = 66 << 10 // of a packet besides its payload: the longest topic, and properties
)

// limits converts the settings of the whole broker.
func (w *writer) limits() {
	packet := int64(0)
	smaller := func(n int64) {
		if packet == 0 || n < packet {
			packet = n
		}
	}
	for _, name := range sortedNames(w.global) {
		s := w.global[name]
		switch name {
		case "max_inflight_messages":
			if n, ok := w.number(s, math.MaxUint16); ok {
				if n == 0 {
					n = math.MaxUint16 // no bound
				}
				w.put("max-inflight", strconv.FormatInt(n, 10))
				w.put("max-inflight-v3", strconv.FormatInt(n, 10))
			}
		case "max_queued_messages":
			if n, ok := w.number(s, maxCount); ok && n > 0 {
				w.put("max-queued-messages", strconv.FormatInt(n, 10))
				w.problem(s, "%s: Mosquitto drops new messages at the bound; here the setting queue-full decides, which is reject: the publisher is told", s.word)
				w.put("queue-full", "reject")
			}
		case "max_queued_bytes":
			if n, ok := w.number(s, maxBytes); ok && n > 0 {
				w.put("max-queued-bytes", strconv.FormatInt(n, 10))
			}
		case "max_packet_size":
			if n, ok := w.number(s, maxPacket); ok && n > 0 {
				if n < minPacket {
					w.problem(s, "%s: Holdfast takes packets of %d bytes at least", s.word, minPacket)
				}
				smaller(max(n, minPacket))
			}
		case "message_size_limit":
			if n, ok := w.number(s, maxPacket); ok {
				if n == 0 {
					n = maxPacket
				}
				smaller(min(n+overhead, maxPacket))
			}
		case "memory_limit":
			if n, ok := w.number(s, math.MaxInt64); ok && n > 0 {
				w.problem(s, "%s: the memory of Mosquitto says little about that of Holdfast; max-memory bounds it", s.word)
			}
		case "max_keepalive":
			if n, ok := w.number(s, math.MaxUint16); ok && n > 0 {
				w.put("max-keep-alive", strconv.FormatInt(n, 10)+"s")
			}
		case "persistent_client_expiration":
			w.expiration(s)
		case "sys_interval":
			if n, ok := w.number(s, 24*60*60); ok && n > 0 {
				w.put("sys-interval", strconv.FormatInt(n, 10)+"s")
			} else if ok {
				w.problem(s, "the topics below $SYS cannot be switched off; a policy decides who reads them")
			}
		case "persistence":
			if s.value != "true" {
				w.problem(s, "Holdfast always keeps messages and sessions on disk")
			}
		case "persistence_location":
			w.put("data", quoted(filepath.Join(w.absolute(s.value), "holdfast")))
		case "log_dest":
			if s.value != "stderr" {
				w.problem(s, "log_dest: %s", ownOutput)
			}
		}
	}
	if packet > 0 {
		w.put("max-packet-size", strconv.FormatInt(packet, 10))
	}
	w.logLevel()
}

// expiration converts persistent_client_expiration, a number and a unit.
func (w *writer) expiration(s setting) {
	unit := s.value[len(s.value)-1:]
	hours := map[string]int64{"h": 1, "d": 24, "w": 7 * 24, "m": 30 * 24, "y": 365 * 24}[unit]
	n, err := strconv.ParseInt(strings.TrimSuffix(s.value, unit), 10, 64)
	const most = math.MaxUint32 / 3600 // of MQTT
	if err != nil || hours == 0 || n < 1 || n > most/hours {
		w.problem(s, "%s %.40q: want a whole number and h, d, w, m or y, up to %d hours", s.word, s.value, int64(most))
		return
	}
	w.put("max-session-expiry", strconv.FormatInt(n*hours, 10)+"h")
}

// logLevel is that of the least severe type of lines.
func (w *writer) logLevel() {
	levels := []string{"debug", "info", "warn", "error"}
	least := len(levels)
	for _, s := range w.logTypes {
		switch s.value {
		case "all", "debug":
			least = 0
		case "information", "notice":
			least = min(least, 1)
		case "warning":
			least = min(least, 2)
		case "error":
			least = min(least, 3)
		default:
			w.problem(s, "log_type %s: --log-level is debug, info, warn or error", s.value)
		}
	}
	if least < len(levels) {
		w.put("log-level", levels[least])
	}
}

func sortedNames(m map[string]setting) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// listenerList converts the listeners, and decides on the files that they share.
func (w *writer) listenerList(path string) error {
	all := w.listeners
	localOnly := len(all) == 0 && w.first.at.word != "port" && w.first.at.word != "bind_address"
	if w.firstUsed || len(all) == 0 {
		if w.first.at.word == "" {
			w.first.at = setting{file: path}
		}
		if localOnly {
			w.first.host = "127.0.0.1"
		}
		all = append([]*listener{w.first}, all...)
	}
	for _, l := range all {
		if l.port == 0 {
			continue
		}
		if !w.perListener {
			l.security = &w.all
		}
		if why := w.refuse(l, localOnly); why.word != "" {
			w.problem(why, "the listener %s is left out: %s", w.name(l), why.value)
			continue
		}
		if w.shared.acl = l.security.acl; l.security.passwords != nil {
			w.shared.passwords = l.security.passwords
		}
		w.kept = append(w.kept, l)
	}
	if len(w.kept) == 0 {
		texts := []string{path + ": no listener can be converted"}
		for _, p := range w.problems {
			texts = append(texts, p.String())
		}
		return errors.New(strings.Join(texts, "\n"))
	}
	w.lists.WriteString("listeners:\n")
	for _, l := range w.kept {
		w.listenerItem(l, localOnly)
	}
	return nil
}

func (w *writer) name(l *listener) string { return net.JoinHostPort(l.host, strconv.Itoa(l.port)) }

func (l *listener) is(word string) bool { return l.set[word].value == "true" }

// anonymous says whether clients without credentials may connect.
func (l *listener) anonymous(localOnly bool) bool {
	if s := l.security.anonymous; s != nil {
		return s.value == "true"
	}
	return localOnly
}

// certificate says whether the certificate of a client says who it is.
func (l *listener) certificate() bool {
	return l.is("require_certificate") && (l.is("use_identity_as_username") || l.is("use_subject_as_username"))
}

func same(a, b *setting) bool {
	return a == nil && b == nil || a != nil && b != nil && a.value == b.value
}

// refuse says why a listener must not be converted: with its line as word and line, and the reason as
// the value.
func (w *writer) refuse(l *listener, localOnly bool) setting {
	because := func(s setting, format string, args ...any) setting {
		s.value = fmt.Sprintf(format, args...)
		return s
	}
	for _, word := range []string{"mount_point", "bind_interface", "psk_hint", "capath"} {
		if s, is := l.set[word]; is && (word != "capath" || l.is("require_certificate")) {
			return because(s, "%s", map[string]string{
				"mount_point":    "Holdfast has no mount_point, and its clients would see the topics of others",
				"bind_interface": "Holdfast does not bind to interfaces, and would listen on all; give the listener an address",
				"psk_hint":       "Holdfast has no TLS with pre-shared keys",
				"capath":         "Holdfast reads authorities from one file (cafile), not from a directory",
			}[word])
		}
	}
	if p := l.set["protocol"].value; p != "" && p != "mqtt" && p != "websockets" {
		return because(l.set["protocol"], "Holdfast does not speak %.20s", p)
	}
	if (l.set["certfile"].value == "") != (l.set["keyfile"].value == "") {
		return because(l.at, "certfile and keyfile belong together")
	}
	s := l.security
	switch {
	case s.foreign != nil:
		return because(*s.foreign, "Holdfast has no plugins and no pre-shared keys; --webhook asks a program of yours who a client is")
	case s.passwords == nil && !l.certificate() && !l.anonymous(localOnly):
		return because(l.at, "no client could log in: it has no password_file, no certificates as names, and no allow_anonymous true")
	}
	return w.refuseFiles(l, because)
}

// refuseFiles says whether the listener needs other files than those before it.
func (w *writer) refuseFiles(l *listener, because func(setting, string, ...any) setting) setting {
	if !w.perListener || len(w.kept) == 0 {
		return setting{}
	}
	s, first := l.security, w.kept[0].security
	switch {
	case !same(s.acl, first.acl):
		return because(l.at, "it has another acl_file than the listener before it, and Holdfast has one policy for all listeners")
	case s.passwords != nil && w.shared.passwords != nil && !same(s.passwords, w.shared.passwords):
		return because(l.at, "it has another password_file than the listener before it, and Holdfast has one for all listeners")
	}
	return setting{}
}
