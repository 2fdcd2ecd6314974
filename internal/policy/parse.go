package policy

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a policy file. They are far above what files have that people write, and keep
// a generated one from taking the server's memory.
const (
	MaxFileBytes = 8 << 20
	maxRules     = 20_000
	maxGroups    = 1_000
	maxEntries   = 200_000 // items of all lists together
	maxText      = 4096    // bytes of a client ID, name, topic or key
)

// Read reads a policy file. The error is *Problems if the file could be read.
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

// Parse makes a Policy of the content of a file, which it calls file in its errors. The
// error is *Problems.
func Parse(file string, content []byte) (*Policy, error) {
	c := &checker{}
	if len(content) > MaxFileBytes {
		c.fail(0, "the file is larger than %d bytes", MaxFileBytes)
		return nil, c.result(file)
	}
	p := &Policy{File: file}
	if root := c.document(content); root != nil {
		c.file(p, root)
		c.finish(p)
	}
	if err := c.result(file); err != nil {
		return nil, err
	}
	p.Warnings = c.warnings
	p.buildIndex()
	return p, nil
}

// file reads the document: the rules, bare or in a resource.
func (c *checker) file(p *Policy, root *yaml.Node) {
	if root.Kind == yaml.SequenceNode { // the form of Azure's portal
		c.rules(p, root)
		return
	}
	found := 0 // line of the rules
	place := func(at *yaml.Node) bool {
		if found != 0 {
			c.fail(at.Line, "there are rules on line %d already; a file has them in one place", found)
			return false
		}
		found = at.Line
		return true
	}
	const known = "rules, groups; or apiVersion, kind, metadata and spec of a BrokerAuthorization"
	c.mapping(root, "the file", known, func(key string, at, value *yaml.Node) bool {
		switch key {
		case "rules":
			if place(at) {
				c.rules(p, value)
			}
		case "authorizationPolicies":
			if place(at) {
				c.policies(p, value)
			}
		case "spec", "properties":
			if place(at) {
				c.spec(p, value, key)
			}
		case "groups":
			c.groups(p, value)
		case "kind":
			if kind, ok := c.text(value, "kind"); ok && kind != "BrokerAuthorization" {
				c.fail(value.Line, "the kind is %q; a policy is a BrokerAuthorization", kind)
			}
		case "apiVersion", "metadata", "extendedLocation", "id", "name", "type", "systemData":
		default:
			return false
		}
		return true
	})
	if found == 0 && root.Kind == yaml.MappingNode {
		c.fail(root.Line, "there are no rules; without any, no client may do anything")
	}
}

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

func (c *checker) policies(p *Policy, n *yaml.Node) {
	found := false
	c.mapping(n, "authorizationPolicies", "rules, groups, cache", func(key string, _, value *yaml.Node) bool {
		switch key {
		case "rules":
			found = true
			c.rules(p, value)
		case "groups":
			c.groups(p, value)
		case "cache", "enableCache": // decisions are always cached, and never stale
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
		c.fail(n.Line, "there are %d rules; there may be %d", len(list), maxRules)
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
			r.principals = c.principals(value, "principals", true)
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
		c.fail(n.Line, "this rule allows nothing; it needs brokerResources or stateStoreResources")
	}
	return r
}

// principals reads the clients of a rule, or of a group, which has no groups.
func (c *checker) principals(n *yaml.Node, what string, groups bool) *principals {
	p := &principals{}
	known := "clientIds, usernames, attributes, anonymous"
	if groups {
		known += ", groups"
	}
	any := false
	c.mapping(n, what, known, func(key string, _, value *yaml.Node) bool {
		switch key {
		case "clientIds":
			p.clientIDs = c.texts(value, key)
			for _, one := range p.clientIDs {
				if strings.Contains(one.text, "*") {
					c.warn(one.line, "clientIds of principals are compared as they are: * is no wildcard here, but it is one in the clientIds of a Connect resource")
				}
			}
		case "usernames":
			p.usernames = c.texts(value, key)
		case "attributes":
			p.attributes = c.attributes(value)
		case "anonymous":
			if text, ok := c.text(value, key); ok && text != "true" {
				c.fail(value.Line, "anonymous is %q; it is true, or left out", text)
			}
			p.anonymous = true
		case "groups":
			if !groups {
				return false
			}
			p.groups = c.texts(value, key)
		default:
			return false
		}
		any = true
		return true
	})
	if !any && n.Kind == yaml.MappingNode {
		c.fail(n.Line, "%s is empty; name clients, or leave principals out of a rule that is for every client", what)
	}
	return p
}

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
			c.fail(one.Line, "an item of attributes names none, and every client would have them")
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
		c.fail(n.Line, "method is missing; it is Connect, Publish or Subscribe")
		return
	}
	// Azure's portal writes empty lists for what a method has no use for.
	if clientIDs != nil && isEmptyList(clientIDs) {
		clientIDs = nil
	}
	switch strings.ToLower(method) {
	case "connect":
		if topics != nil && !isEmptyList(topics) {
			c.fail(topics.Line, "Connect has no topics; write another item with the method Publish or Subscribe")
		}
		res := connectResource{line: n.Line}
		if clientIDs != nil {
			res.clientIDs = c.keyPatterns(c.texts(clientIDs, "clientIds"), starredKey)
		}
		r.connect = append(r.connect, res)
	case "publish", "subscribe":
		if clientIDs != nil {
			c.fail(clientIDs.Line, "%s has no clientIds; they restrict Connect, and principals choose clients", method)
		}
		if topics == nil {
			c.fail(n.Line, "topics is missing: which topics may be used with %s", method)
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
				c.warn(one.line, "%q: * is no wildcard in a topic; + is one level, # all that follow", one.text)
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
		c.fail(methodAt.Line, "unknown method %q; it is Connect, Publish or Subscribe", method)
	}
}

func (c *checker) keyPatterns(items []item, kind keyKind) (patterns []*keyPattern) {
	for _, one := range items {
		p, wrong := parseKey(one, kind)
		if wrong != "" {
			c.fail(one.line, "%q: %s", one.text, wrong)
			continue
		}
		if kind == globKey && p.openEnded() {
			c.warn(one.line, "%q: a wildcard follows the token, so a client \"a\" is allowed what is meant for a client \"ab\" as well; put a character between them that no such name has", one.text)
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
		c.fail(n.Line, "method is missing; it is Read, Write or ReadWrite")
	case strings.EqualFold(method, "Read"):
		res.read = true
	case strings.EqualFold(method, "Write"):
		res.write = true
	case strings.EqualFold(method, "ReadWrite"):
		res.read, res.write = true, true
	case method != "":
		c.fail(methodAt.Line, "unknown method %q; it is Read, Write or ReadWrite", method)
	}
	if keys == nil {
		c.fail(n.Line, "keys is missing: which keys may be used")
		return
	}
	if typeAt == nil {
		c.fail(n.Line, "keyType is missing; it is Pattern, String or Binary")
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
		c.fail(typeAt.Line, "unknown keyType %q; it is Pattern, String or Binary", keyType)
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

// groups reads groups:, a map of names and principals.
func (c *checker) groups(p *Policy, n *yaml.Node) {
	if len(p.groups) > 0 {
		c.fail(n.Line, "there are groups on line %d already", p.groups[0].line)
		return
	}
	if isEmptyList(n) || n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		c.fail(n.Line, "groups is empty; name a group, or leave it out")
		return
	}
	if len(n.Content)/2 > maxGroups {
		c.fail(n.Line, "there are %d groups; there may be %d", len(n.Content)/2, maxGroups)
		return
	}
	c.mapping(n, "groups", "the names of groups", func(key string, at, value *yaml.Node) bool {
		p.groups = append(p.groups, group{name: key, line: at.Line, principals: *c.principals(value, "the group "+strconv.Quote(key), false)})
		return true
	})
}

// finish checks what refers to something else in the file.
func (c *checker) finish(p *Policy) {
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
