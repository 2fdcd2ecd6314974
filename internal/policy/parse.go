package policy

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a policy file. They are far above what a handwritten file needs; they keep a
// generated file from using up the server's memory.
const (
	MaxFileBytes = 8 << 20
	maxRules     = 20_000
	maxGroups    = 1_000
	maxEntries   = 200_000 // items of all lists together
	maxText      = 4096    // bytes of a client ID, name, topic or key
)

// Read reads the policy file and parses it. If the server could read the file and its
// content is not a valid policy, the error is a *Problems.
func Read(file string) (*Policy, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	defer func() { _ = f.Close() }()
	content, err := readBounded(f)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, &Problems{File: file, List: []Problem{{Text: fmt.Sprintf("the file is larger than %d bytes", MaxFileBytes)}}}
	case err != nil:
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	return Parse(file, content)
}

// Parse parses the content of a policy file. Errors name the file by the parameter file;
// they are of the type *Problems.
func Parse(file string, content []byte) (*Policy, error) {
	c := &checker{}
	if len(content) > MaxFileBytes {
		c.fail(0, "the file is larger than %d bytes", MaxFileBytes)
		return nil, c.result(file)
	}
	p := &Policy{File: file}
	if root := c.document(content); root != nil {
		c.file(p, root)
		c.references(p)
	}
	if err := c.result(file); err != nil {
		return nil, err
	}
	p.Warnings = c.warnings
	p.buildIndex()
	return p, nil
}

// file parses the whole document. It is a list of rules, a mapping with rules and groups, or
// a resource of the kind BrokerAuthorization, which has the mapping in its spec.
func (c *checker) file(p *Policy, root *yaml.Node) {
	if root.Kind == yaml.SequenceNode { // the form of Azure's portal
		c.rules(p, root)
		return
	}
	rulesLine := 0                      // 0: no rules yet
	first := func(at *yaml.Node) bool { // false, and a mistake, if the file has rules already
		if rulesLine != 0 {
			c.fail(at.Line, "line %d has rules already; write all rules of a file in one list", rulesLine)
			return false
		}
		rulesLine = at.Line
		return true
	}
	const known = "rules, groups; or apiVersion, kind, metadata and spec of a BrokerAuthorization"
	c.mapping(root, "the file", known, func(key string, at, value *yaml.Node) bool {
		switch key {
		case "rules":
			if first(at) {
				c.rules(p, value)
			}
		case "authorizationPolicies":
			if first(at) {
				c.policies(p, value)
			}
		case "spec", "properties":
			if first(at) {
				c.spec(p, value, key)
			}
		case "groups":
			c.groups(p, value)
		case "kind":
			if kind, ok := c.text(value, "kind"); ok && kind != "BrokerAuthorization" {
				c.fail(value.Line, "the kind is %q; it must be BrokerAuthorization", kind)
			}
		case "apiVersion", "metadata", "extendedLocation", "id", "name", "type", "systemData":
		default:
			return false
		}
		return true
	})
	if rulesLine == 0 && root.Kind == yaml.MappingNode {
		c.fail(root.Line, "the file has no rules; without rules, no client may do anything")
	}
}

// spec parses the value of spec or, in an Azure resource, of properties.
func (c *checker) spec(p *Policy, n *yaml.Node, what string) {
	found := false
	c.mapping(n, what, "authorizationPolicies", func(key string, _, value *yaml.Node) bool {
		switch key {
		case "authorizationPolicies":
			found = true
			c.policies(p, value)
		case "provisioningState", "healthState":
		default:
			return false
		}
		return true
	})
	if !found && n.Kind == yaml.MappingNode {
		c.fail(n.Line, "%s has no authorizationPolicies", what)
	}
}

// policies parses the value of authorizationPolicies.
func (c *checker) policies(p *Policy, n *yaml.Node) {
	found := false
	c.mapping(n, "authorizationPolicies", "rules, groups, cache", func(key string, _, value *yaml.Node) bool {
		switch key {
		case "rules":
			found = true
			c.rules(p, value)
		case "groups":
			c.groups(p, value)
		case "cache", "enableCache": // ignored: the server compiles the grants of each identity anew for every policy, so they are never stale
		default:
			return false
		}
		return true
	})
	if !found && n.Kind == yaml.MappingNode {
		c.fail(n.Line, "authorizationPolicies has no rules")
	}
}

func (c *checker) rules(p *Policy, n *yaml.Node) {
	list := c.sequence(n, "rules")
	if len(list) > maxRules {
		c.fail(n.Line, "the file has %d rules; at most %d are allowed", len(list), maxRules)
		return
	}
	for _, one := range list {
		p.rules = append(p.rules, c.rule(one))
	}
}

func (c *checker) rule(n *yaml.Node) (r rule) {
	r.line = n.Line
	allows := false
	c.mapping(n, "a rule", "principals, brokerResources, stateStoreResources", func(key string, _, value *yaml.Node) bool {
		switch key {
		case "principals":
			r.principals = c.principals(value, "principals", nil)
		case "brokerResources":
			if isEmptyList(value) { // Azure requires the key
				return true
			}
			allows = true
			for _, one := range c.sequence(value, "brokerResources") {
				c.brokerResource(&r, one)
			}
		case "stateStoreResources":
			if isEmptyList(value) {
				return true
			}
			allows = true
			for _, one := range c.sequence(value, "stateStoreResources") {
				c.stateStoreResource(&r, one)
			}
		default:
			return false
		}
		return true
	})
	if !allows && n.Kind == yaml.MappingNode {
		c.fail(n.Line, "this rule allows nothing; add brokerResources or stateStoreResources")
	}
	return r
}

// principals parses the clients of a rule (ofGroup is nil) or of a group. ofGroup parses
// the other keys of a group; a group cannot name groups.
func (c *checker) principals(n *yaml.Node, what string, ofGroup func(key string, value *yaml.Node) bool) *principals {
	p := &principals{}
	known := "clientIds, usernames, attributes, anonymous, groups"
	if ofGroup != nil {
		known = "clientIds, usernames, attributes, anonymous, quotas"
	}
	any := false
	c.mapping(n, what, known, func(key string, _, value *yaml.Node) bool {
		switch key {
		case "clientIds":
			p.clientIDs = c.texts(value, key)
			for _, one := range p.clientIDs {
				if strings.Contains(one.text, "*") {
					c.warn(one.line, "* is not a wildcard in the clientIds of principals; it is one in the clientIds of a resource with the method Connect")
				}
			}
		case "usernames":
			p.usernames = c.texts(value, key)
		case "attributes":
			p.attributes = c.attributes(value)
		case "anonymous":
			if text, ok := c.text(value, key); ok && text != "true" {
				c.fail(value.Line, "anonymous is %q; write true, or leave anonymous out", text)
			}
			p.anonymous = true
		case "groups":
			if ofGroup != nil {
				return false
			}
			p.groups = c.texts(value, key)
		default:
			return ofGroup != nil && ofGroup(key, value) // these keys name no clients, so any stays as it is
		}
		any = true
		return true
	})
	if !any && n.Kind == yaml.MappingNode {
		if ofGroup != nil {
			c.fail(n.Line, "%s names no clients; add clientIds, usernames, attributes or anonymous", what)
		} else {
			c.fail(n.Line, "%s is empty; name clients, or leave principals out if the rule is for every client", what)
		}
	}
	return p
}

// attributes parses a list of sets of attributes. A client matches the list if it has all
// attributes of at least one set.
func (c *checker) attributes(n *yaml.Node) (list []attributes) {
	for _, one := range c.sequence(n, "attributes") {
		a := attributes{line: one.Line}
		c.mapping(one, "an item of attributes", "the names of attributes", func(key string, at, value *yaml.Node) bool {
			if key == "" {
				c.fail(at.Line, "the name of an attribute is empty")
				return true
			}
			if text, ok := c.text(value, "the attribute "+strconv.Quote(key)); ok {
				a.list = append(a.list, attribute{key, text})
			}
			return true
		})
		if len(a.list) == 0 {
			c.fail(one.Line, "an item of attributes is empty and would match every client; name an attribute, or remove the item")
			continue
		}
		list = append(list, a)
	}
	return list
}

func (c *checker) brokerResource(r *rule, n *yaml.Node) {
	var method string
	var methodAt *yaml.Node
	var clientIDs, topics *yaml.Node
	c.mapping(n, "an item of brokerResources", "method, clientIds, topics", func(key string, _, value *yaml.Node) bool {
		switch key {
		case "method":
			method, _ = c.text(value, key)
			methodAt = value
		case "clientIds":
			clientIDs = value
		case "topics":
			topics = value
		default:
			return false
		}
		return true
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	if methodAt == nil {
		c.fail(n.Line, "method is missing; want Connect, Publish or Subscribe")
		return
	}
	// Azure's portal writes an empty list where a method does not use the key.
	if clientIDs != nil && isEmptyList(clientIDs) {
		clientIDs = nil
	}
	switch strings.ToLower(method) {
	case "connect":
		if topics != nil && !isEmptyList(topics) {
			c.fail(topics.Line, "an item with the method Connect cannot have topics; write another item with the method Publish or Subscribe")
		}
		res := connectResource{line: n.Line}
		if clientIDs != nil {
			res.clientIDs = c.keyPatterns(c.texts(clientIDs, "clientIds"), starredKey)
		}
		r.connect = append(r.connect, res)
	case "publish", "subscribe":
		if clientIDs != nil {
			c.fail(clientIDs.Line, "an item with the method %s cannot have clientIds; name clients in the rule's principals", method)
		}
		if topics == nil {
			c.fail(n.Line, "topics is missing; list the topic filters that %s is allowed for", method)
			return
		}
		res := topicResource{line: n.Line}
		for _, one := range c.texts(topics, "topics") {
			p, wrong := parseTopic(one)
			if wrong != "" {
				c.fail(one.line, "%q: %s", one.text, wrong)
				continue
			}
			if strings.Contains(one.text, "*") {
				c.warn(one.line, "%q: * is not a wildcard in a topic; + matches one level, # all levels that follow", one.text)
			}
			res.topics = append(res.topics, p)
		}
		if strings.EqualFold(method, "publish") {
			r.publish = append(r.publish, res)
		} else {
			r.subscribe = append(r.subscribe, res)
		}
	case "":
	default:
		c.fail(methodAt.Line, "unknown method %q; want Connect, Publish or Subscribe", method)
	}
}

// keyPatterns parses a list of patterns: of keys, or of client IDs.
func (c *checker) keyPatterns(items []item, kind keyKind) (patterns []*keyPattern) {
	for _, one := range items {
		p, wrong := parseKey(one, kind)
		if wrong != "" {
			c.fail(one.line, "%q: %s", one.text, wrong)
			continue
		}
		if kind == globKey && p.openEnded() {
			c.warn(one.line, "%q: a wildcard directly follows a token, so a client \"a\" may use the keys of a client \"ab\" as well; write a separator between them that no client's name contains", one.text)
		}
		patterns = append(patterns, p)
	}
	return patterns
}

func (c *checker) stateStoreResource(r *rule, n *yaml.Node) {
	var method, keyType string
	var methodAt, typeAt, keys *yaml.Node
	c.mapping(n, "an item of stateStoreResources", "method, keyType, keys", func(key string, _, value *yaml.Node) bool {
		switch key {
		case "method":
			method, _ = c.text(value, key)
			methodAt = value
		case "keyType":
			keyType, _ = c.text(value, key)
			typeAt = value
		case "keys":
			keys = value
		default:
			return false
		}
		return true
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	res := keyResource{line: n.Line}
	switch {
	case methodAt == nil:
		c.fail(n.Line, "method is missing; want Read, Write or ReadWrite")
	case strings.EqualFold(method, "Read"):
		res.read = true
	case strings.EqualFold(method, "Write"):
		res.write = true
	case strings.EqualFold(method, "ReadWrite"):
		res.read, res.write = true, true
	case method != "":
		c.fail(methodAt.Line, "unknown method %q; want Read, Write or ReadWrite", method)
	}
	if keys == nil {
		c.fail(n.Line, "keys is missing; list the keys that the rule is for")
		return
	}
	if typeAt == nil {
		c.fail(n.Line, "keyType is missing; want Pattern, String or Binary")
		return
	}
	items := c.texts(keys, "keys")
	var patterns []*keyPattern
	switch strings.ToLower(keyType) {
	case "pattern":
		patterns = c.keyPatterns(items, globKey)
	case "string":
		patterns = c.keyPatterns(items, exactKey)
	case "binary":
		for _, one := range items {
			p, wrong := parseBinary(one)
			if wrong != "" {
				c.fail(one.line, "%q: %s", one.text, wrong)
				continue
			}
			patterns = append(patterns, p)
		}
	case "":
	default:
		c.fail(typeAt.Line, "unknown keyType %q; want Pattern, String or Binary", keyType)
	}
	for _, p := range patterns {
		if p.parts == nil && p.match.exact != nil {
			if res.exact == nil {
				res.exact = map[string]int{}
			}
			res.exact[string(p.match.exact)] = p.line
			continue
		}
		res.patterns = append(res.patterns, p)
	}
	r.keys = append(r.keys, res)
}

// groups parses the mapping groups: from the name of each group to its principals.
func (c *checker) groups(p *Policy, n *yaml.Node) {
	if len(p.groups) > 0 {
		c.fail(n.Line, "line %d has groups already; write all groups of a file in one mapping", p.groups[0].line)
		return
	}
	if isEmptyList(n) || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		c.fail(n.Line, "groups is empty; name a group, or leave groups out")
		return
	}
	if len(n.Content)/2 > maxGroups {
		c.fail(n.Line, "the file has %d groups; at most %d are allowed", len(n.Content)/2, maxGroups)
		return
	}
	c.mapping(n, "groups", "the names of groups", func(key string, at, value *yaml.Node) bool {
		g := group{name: key, line: at.Line}
		what := "the group " + strconv.Quote(key)
		g.principals = *c.principals(value, what, func(inner string, value *yaml.Node) bool {
			if inner != "quotas" {
				return false
			}
			g.quotas = c.quotas(value, "the quotas of "+what)
			g.used = true // a group with quotas needs no rule
			return true
		})
		p.groups = append(p.groups, g)
		return true
	})
}

// references makes the checks that need the whole file: each rule's groups must be defined.
// It warns of groups that no rule refers to, and of a policy that lets no client connect.
func (c *checker) references(p *Policy) {
	groups := map[string]*group{}
	for i := range p.groups {
		groups[p.groups[i].name] = &p.groups[i]
	}
	connect := false
	for i := range p.rules {
		r := &p.rules[i]
		connect = connect || len(r.connect) > 0
		if r.principals == nil {
			continue
		}
		for _, one := range r.principals.groups {
			g := groups[one.text]
			if g == nil {
				c.fail(one.line, "there is no group %q; define it under groups", one.text)
				continue
			}
			g.used = true
		}
	}
	for i := range p.groups {
		if !p.groups[i].used {
			c.warn(p.groups[i].line, "no rule refers to the group %q", p.groups[i].name)
		}
	}
	if !connect && len(p.rules) > 0 {
		c.warn(p.rules[0].line, "no rule has the method Connect, so no client may connect")
	}
}
