package mosquitto

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is read.
const (
	maxFile  = 1 << 20 // bytes of a configuration file
	maxFiles = 1000    // of include_dir
	maxUsers = 64 << 20
)

// Problem is a line that has no counterpart, or one that differs.
type Problem struct {
	File string
	Line int // 0: the whole file
	Text string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ": " + p.Text
}

// setting is a line: a word, and what follows it.
type setting struct {
	file  string
	line  int
	word  string
	value string
}

// security is how clients of a listener, or of all, prove who they are, and what they may do.
type security struct {
	passwords, acl, anonymous *setting
	foreign                   *setting // a plugin, or pre-shared keys
}

type listener struct {
	at       setting
	port     int
	host     string
	set      map[string]setting
	security *security
}

type bridgeLines struct {
	at     setting
	set    map[string]setting
	topics []setting
}

// source is a configuration of Mosquitto.
type source struct {
	perListener bool
	all         security
	first       *listener // of the lines before the first listener
	firstUsed   bool
	listeners   []*listener
	bridges     []*bridgeLines
	global      map[string]setting
	logTypes    []setting

	current *listener
	bridge  *bridgeLines
	files   int
}

// converter collects the problems.
type converter struct {
	source
	dir      string // for names of files that are relative
	problems []Problem
}

func (c *converter) problem(at setting, format string, args ...any) {
	c.problems = append(c.problems, Problem{at.file, at.line, fmt.Sprintf(format, args...)})
}

// readFile reads a regular file: opening a pipe would wait for its writer.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return content, err
}

// parse reads a file, and those of include_dir in it.
func (c *converter) parse(path string, included bool) error {
	if c.files++; c.files > maxFiles {
		return fmt.Errorf("%s: more than %d files", path, maxFiles)
	}
	content, err := readFile(path, maxFile)
	if err != nil {
		return err
	}
	for i, text := range bytes.Split(content, []byte("\n")) {
		line := strings.Trim(string(text), " \t\r")
		if line == "" || line[0] == '#' {
			continue
		}
		word, value, _ := strings.Cut(line, " ")
		s := setting{file: path, line: i + 1, word: word, value: strings.Trim(value, " \t")}
		if word != "include_dir" {
			c.take(s)
			continue
		}
		if included {
			c.problem(s, "include_dir in an included file is not read")
			continue
		}
		names, err := filepath.Glob(filepath.Join(globQuote(c.absolute(s.value)), "*.conf"))
		if err != nil {
			return fmt.Errorf("%s:%d: %w", path, s.line, err)
		}
		if len(names) == 0 {
			c.problem(s, "%s has no file *.conf that can be read", s.value)
		}
		slices.Sort(names)
		for _, name := range names {
			if err := c.parse(name, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// globQuote has a name stand for itself in a pattern.
func globQuote(name string) string {
	return strings.NewReplacer(`*`, `[*]`, `?`, `[?]`, `[`, `[[]`).Replace(name)
}

// absolute is the name of a file, of which Mosquitto takes a relative one from its working directory:
// here it is the directory of the configuration.
func (c *converter) absolute(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.dir, name)
}

// take puts a line where it belongs.
func (c *converter) take(s setting) {
	if s.value == "" {
		c.problem(s, "%s has no value", s.word)
		return
	}
	switch s.word {
	case "per_listener_settings":
		c.perListener = s.value == "true"
	case "listener":
		c.listener(s)
	case "port", "bind_address":
		c.firstUsed = true
		if s.word == "bind_address" {
			c.first.host = s.value
		} else {
			c.first.port = c.port(s, s.value)
		}
		c.first.at, c.current = s, c.first
	case "connection":
		c.bridge = &bridgeLines{at: s, set: make(map[string]setting)}
		c.bridges = append(c.bridges, c.bridge)
	case "password_file", "acl_file", "allow_anonymous", "plugin", "auth_plugin", "psk_file":
		to := &c.all
		if c.perListener {
			to = c.current.security
			c.firstUsed = c.firstUsed || c.current == c.first
		}
		switch s.word {
		case "password_file":
			to.passwords = &s
		case "acl_file":
			to.acl = &s
		case "allow_anonymous":
			to.anonymous = &s
		default:
			to.foreign = &s
		}
	case "log_type":
		c.logTypes = append(c.logTypes, s)
	case "topic":
		if c.bridge == nil {
			c.problem(s, "topic belongs behind the connection of a bridge")
			return
		}
		c.bridge.topics = append(c.bridge.topics, s)
	default:
		c.other(s)
	}
}

// other takes a line that has one place only.
func (c *converter) other(s setting) {
	name := bridgeWord(s.word)
	switch {
	case bridgeWords[name]:
		if c.bridge == nil {
			c.problem(s, "%s belongs behind the connection of a bridge", s.word)
			return
		}
		c.bridge.set[name] = s
	case listenerWords[s.word]:
		c.current.set[s.word] = s
		if c.current.at.word == "" {
			c.current.at = s
		}
		c.firstUsed = c.firstUsed || c.current == c.first
	case globalWords[s.word]:
		c.global[s.word] = s
	case noCounterpart[s.word] != "":
		c.problem(s, "%s: %s", s.word, noCounterpart[s.word])
	case strings.HasPrefix(s.word, "auth_opt_"), strings.HasPrefix(s.word, "plugin_opt_"):
		c.problem(s, "%s: Holdfast has no plugins; --webhook asks a program of yours who a client is", s.word)
	default:
		c.problem(s, "%.60q is not a setting of Mosquitto 2.0 that is known here", s.word)
	}
}

func (c *converter) port(s setting, text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		c.problem(s, "%.20q: want a port from 1 to 65535; the listener is left out", text)
		return 0
	}
	return int(n)
}

func (c *converter) listener(s setting) {
	port, host, _ := strings.Cut(s.value, " ")
	l := &listener{at: s, host: strings.Trim(host, " "), set: make(map[string]setting), security: &security{}}
	if port == "0" {
		c.problem(s, "Holdfast has no listener on a Unix socket")
	} else {
		l.port = c.port(s, port)
	}
	c.current = l
	c.listeners = append(c.listeners, l)
}
