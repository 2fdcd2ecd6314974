package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/units"
)

// quotas are what an item of groups: has under quotas.
type quotas struct {
	access.Quota
	said []saidQuota // in the order of quotaKinds
}

// saidQuota is one of them as it stands in the file.
type saidQuota struct {
	kind *quotaKind
	text string
	line int
}

// quotaKind is a key of quotas.
type quotaKind struct {
	key       string
	read      func(text string) (int64, error)
	of        func(*access.Quota) *int64         // nil: it is one of the next two
	duration  func(*access.Quota) *time.Duration // nil: it is a number or a switch
	otherwise string                             // what applies if no group says it
}

// Bounds of what may be said: more is no bound, and may be a mistake.
const (
	maxCount      = 1 << 40
	maxQuotaBytes = 1 << 50
	maxSkew       = 24 * time.Hour // that of --max-clock-skew
)

var quotaKinds = []quotaKind{
	{key: "connections", read: readCount, of: func(q *access.Quota) *int64 { return &q.Connections }, otherwise: "no bound but --max-connections"},
	{key: "sessions", read: readCount, of: func(q *access.Quota) *int64 { return &q.Sessions }, otherwise: "--max-sessions-per-address"},
	{key: "subscriptions", read: readCount, of: func(q *access.Quota) *int64 { return &q.Subscriptions }, otherwise: "no bound but --max-subscriptions of each session"},
	{key: "keys", read: readCount, of: func(q *access.Quota) *int64 { return &q.Keys }, otherwise: "--max-keys-per-client"},
	{key: "keyBytes", read: readBytes, of: func(q *access.Quota) *int64 { return &q.KeyBytes }, otherwise: "--max-key-bytes-per-client"},
	{key: "retainedMessages", read: readCount, of: func(q *access.Quota) *int64 { return &q.Retained }, otherwise: "--max-retained-per-client"},
	{key: "retainedBytes", read: readBytes, of: func(q *access.Quota) *int64 { return &q.RetainedBytes }, otherwise: "--max-retained-bytes-per-client"},
	{key: "publishesPerSecond", read: readCount, of: func(q *access.Quota) *int64 { return &q.Publishes }, otherwise: "no bound"},
	{key: "publishBytesPerSecond", read: readBytes, of: func(q *access.Quota) *int64 { return &q.PublishBytes }, otherwise: "no bound"},
	{key: "timestampSkew", duration: func(q *access.Quota) *time.Duration { return &q.TimestampSkew }, otherwise: "--max-clock-skew"},
	{key: "reserve", otherwise: "no"},
}

func quotaKeys() string {
	var keys []string
	for i := range quotaKinds {
		keys = append(keys, quotaKinds[i].key)
	}
	return strings.Join(keys, ", ")
}

func readCount(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !units.IsDecimal(text) || n < 1 || n > maxCount {
		return 0, fmt.Errorf("want a whole number from 1 to %d; leave it out for the server's own bound", int64(maxCount))
	}
	return n, nil
}

func readBytes(text string) (int64, error) {
	n, err := units.ParseBytes(text)
	if err == nil && n > maxQuotaBytes {
		err = errors.New("want at most 1024TiB")
	}
	return n, err
}

// quotas reads the value of quotas: in a group.
func (c *checker) quotas(n *yaml.Node, what string) *quotas {
	q := &quotas{}
	c.mapping(n, what, quotaKeys(), func(key string, _, value *yaml.Node) bool {
		i := slices.IndexFunc(quotaKinds, func(k quotaKind) bool { return k.key == key })
		if i < 0 {
			return false
		}
		text, ok := c.text(value, key)
		if !ok {
			return true
		}
		if err := q.set(&quotaKinds[i], text); err != nil {
			c.fail(value.Line, "%s is %q: %v", key, text, err)
			return true
		}
		q.said = append(q.said, saidQuota{&quotaKinds[i], text, value.Line})
		return true
	})
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		c.fail(n.Line, "%s are empty; give one, or leave quotas out", what)
	}
	return q
}

// set takes one quota from its text.
func (q *quotas) set(k *quotaKind, text string) (err error) {
	switch {
	case k.of != nil:
		*k.of(&q.Quota), err = k.read(text)
	case k.duration != nil:
		d, bad := units.ParseDuration(text)
		if bad != nil || d < time.Millisecond || d > maxSkew {
			return errors.New("want a time from 1ms to 24h, for example 5s")
		}
		*k.duration(&q.Quota) = d
	case text != "true":
		return errors.New("it is true, or left out")
	default:
		q.Reserve = true
	}
	return err
}

// quotaOf is the quota of a principal: of each the largest that one of its groups says.
func (p *Policy) quotaOf(groups []int32) (q access.Quota) {
	for _, g := range groups {
		of := p.groups[g].quotas
		if of == nil {
			continue
		}
		for i := range quotaKinds {
			switch k := &quotaKinds[i]; {
			case k.of != nil:
				*k.of(&q) = max(*k.of(&q), *k.of(&of.Quota))
			case k.duration != nil:
				*k.duration(&q) = max(*k.duration(&q), *k.duration(&of.Quota))
			default:
				q.Reserve = q.Reserve || of.Reserve
			}
		}
	}
	return q
}

// ExplainQuotas says what a client's principal may hold, and which group says so: one line
// for each quota.
func (p *Policy) ExplainQuotas(id *access.Identity) (lines []string) {
	_, groups := p.rulesOf(id)
	q := p.quotaOf(groups)
	for i := range quotaKinds {
		k := &quotaKinds[i]
		line := k.key + ": " + k.otherwise
		for _, g := range groups { // the first with the largest
			if said := p.groups[g].says(k, &q); said != nil {
				line = fmt.Sprintf("%s: %s, by group %q (%s:%d)", k.key, said.text, p.groups[g].name, p.File, said.line)
				break
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// says gives what a group says of a kind if that is what q has.
func (g *group) says(k *quotaKind, q *access.Quota) *saidQuota {
	if g.quotas == nil {
		return nil
	}
	for i := range g.quotas.said {
		said := &g.quotas.said[i]
		switch {
		case said.kind != k:
		case k.of != nil && *k.of(&g.quotas.Quota) != *k.of(q):
		case k.duration != nil && *k.duration(&g.quotas.Quota) != *k.duration(q):
		default:
			return said
		}
	}
	return nil
}
