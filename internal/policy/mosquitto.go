package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// imported is what an ACL file allows.
type imported struct {
	c     *checker
	users []*importedUser // in the order of the file; the first are clients without a name
	all   importedUser    // of pattern lines
}

type importedUser struct {
	name               string
	publish, subscribe []string
}

// ImportMosquitto converts the access control list of Mosquitto (acl_file) to a policy. It
// returns the policy file, and what of the list it could not convert, by lines: then the
// policy allows less than the list did, or, for deny lines, more.
//
// Mosquitto lets every client connect and subscribe to anything, and then delivers only
// what it may read. The policy lets every client connect, and refuses a subscription that
// could match what the client may not read.
func ImportMosquitto(file string, content []byte) (policy []byte, notConverted []Problem) {
	im := &imported{c: &checker{}}
	anonymous := &importedUser{}
	im.users = []*importedUser{anonymous}
	current := anonymous
	for i, line := range strings.Split(string(content), "\n") {
		line, at := strings.Trim(line, " \t\r"), i+1
		if line == "" || line[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.Trim(rest, " \t")
		switch word {
		case "user":
			if rest == "" {
				im.c.fail(at, "user needs a name; the lines up to the next user are left out")
				current = &importedUser{}
				continue
			}
			current = im.user(rest)
		case "topic":
			im.topic(at, current, rest, false)
		case "pattern":
			im.topic(at, &im.all, rest, true)
		default:
			im.c.fail(at, "unknown line %.40q; Mosquitto has user, topic and pattern", line)
		}
	}
	policy = im.write(file)
	if _, err := Parse(file, policy); err != nil {
		// A user name or topic that is longer than a policy may have, or too many of them.
		im.c.fail(0, "the policy cannot be used as it is: %v", err)
	}
	return policy, im.c.problems
}

func (im *imported) user(name string) *importedUser {
	for _, u := range im.users[1:] {
		if u.name == name {
			return u
		}
	}
	u := &importedUser{name: name}
	im.users = append(im.users, u)
	return u
}

// topic reads what follows topic or pattern: an access, or none, and a topic filter.
func (im *imported) topic(at int, u *importedUser, rest string, pattern bool) {
	access, filter, two := strings.Cut(rest, " ")
	filter = strings.Trim(filter, " \t")
	if !two || filter == "" {
		access, filter = "readwrite", rest
	}
	switch access {
	case "read", "write", "readwrite":
	case "deny":
		im.c.fail(at, "deny %q cannot be converted: rules of a policy only allow; make those narrower that allow it", filter)
		return
	default:
		im.c.fail(at, "unknown access %q; Mosquitto has read, write, readwrite and deny", access)
		return
	}
	if pattern {
		var ok bool
		if filter, ok = im.tokens(at, filter); !ok {
			return
		}
	} else if strings.Contains(filter, tokenOpening) {
		im.c.fail(at, "%q cannot be converted: to a policy, %s…} is a token", filter, tokenOpening)
		return
	}
	if _, wrong := parseTopic(item{text: filter}); wrong != "" {
		im.c.fail(at, "%q cannot be converted: %s", filter, wrong)
		return
	}
	if len(filter) > maxText {
		im.c.fail(at, "the topic has more than %d bytes", maxText)
		return
	}
	add := func(list *[]string) {
		if !slices.Contains(*list, filter) {
			*list = append(*list, filter)
		}
	}
	if access != "read" {
		add(&u.publish)
	}
	if access != "write" {
		add(&u.subscribe)
	}
}

// tokens puts our tokens in the place of %c and %u, which must be levels by themselves.
func (im *imported) tokens(at int, filter string) (string, bool) {
	levels := strings.Split(filter, "/")
	for i, l := range levels {
		switch {
		case l == "%c":
			levels[i] = "{principal.clientId}"
		case l == "%u":
			levels[i] = "{principal.username}"
		case strings.Contains(l, "%c") || strings.Contains(l, "%u"):
			im.c.fail(at, "%q cannot be converted: %%c and %%u must be levels by themselves", filter)
			return "", false
		case strings.Contains(l, tokenOpening):
			im.c.fail(at, "%q cannot be converted: to a policy, %s…} is a token", filter, tokenOpening)
			return "", false
		}
	}
	return strings.Join(levels, "/"), true
}

// write writes the policy file.
func (im *imported) write(file string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# Converted from Mosquitto's %s.\n", strings.Map(printable, file))
	b.WriteString("# Mosquitto lets a client subscribe to anything, and delivers only what it may read.\n")
	b.WriteString("# Here a subscription is refused that could match more.\n")
	b.WriteString("# The keys of the state store are new: see stateStoreResources in docs/policy.md.\n")
	b.WriteString("rules:\n- brokerResources:\n  - method: Connect\n")
	im.all.resources(&b, "  ")
	for i, u := range im.users {
		if len(u.publish)+len(u.subscribe) == 0 {
			continue
		}
		if i == 0 {
			b.WriteString("- principals:\n    anonymous: true\n  brokerResources:\n")
		} else {
			b.WriteString("- principals:\n    usernames:\n    - " + quoted(u.name) + "\n  brokerResources:\n")
		}
		u.resources(&b, "  ")
	}
	return []byte(b.String())
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7F || r == 0x85 || r == 0x2028 || r == 0x2029 {
		return -1
	}
	return r
}

func (u *importedUser) resources(b *strings.Builder, indent string) {
	for _, r := range []struct {
		method string
		topics []string
	}{{"Publish", u.publish}, {"Subscribe", u.subscribe}} {
		if len(r.topics) == 0 {
			continue
		}
		b.WriteString(indent + "- method: " + r.method + "\n" + indent + "  topics:\n")
		for _, topic := range r.topics {
			b.WriteString(indent + "  - " + quoted(topic) + "\n")
		}
	}
}

// quoted is text in YAML, for which a string of JSON is one of its own.
func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}
