package httpapi

import (
	"net/http"
	"strings"

	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/policy"
)

// Policy says what the policy in force allows a client, and why.
type Policy struct {
	File    string   `json:"file"` // empty: there is none, and every client may do everything
	Rules   int      `json:"rules"`
	Groups  int      `json:"groups"`
	Answers []Answer `json:"answers"`
	Quotas  []string `json:"quotas"` // of the client's principal, one by one
}

// Answer says whether a client may do one thing.
type Answer struct {
	Action  string   `json:"action"` // connect, publish, subscribe, read or write
	Name    string   `json:"name,omitempty"`
	Allowed bool     `json:"allowed"`
	Lines   []string `json:"lines"` // the first says it, the others why
}

// maxAttributes is how many attributes of a client may be given.
const maxAttributes = 64

func (a *API) explain(q *request) (any, error) {
	id := &access.Identity{ClientID: q.query.Get("client"), Username: q.query.Get("username"), Attributes: map[string]string{}}
	for pair := range strings.SplitSeq(q.query.Get("attributes"), ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" || len(id.Attributes) == maxAttributes {
			return nil, failed(http.StatusBadRequest, "the parameter attributes has %q: want up to %d NAME=VALUE, with commas between them", cut(pair), maxAttributes)
		}
		id.Attributes[name] = value
	}
	questions := []policy.Question{{Action: policy.ToConnect}}
	if topic := q.query.Get("topic"); topic != "" {
		questions = append(questions, policy.Question{Action: policy.ToPublish, Name: topic}, policy.Question{Action: policy.ToSubscribe, Name: topic})
	}
	if key := q.query.Get("key"); key != "" {
		questions = append(questions, policy.Question{Action: policy.ToRead, Name: key}, policy.Question{Action: policy.ToWrite, Name: key})
	}
	out := Policy{Answers: []Answer{}, Quotas: []string{}}
	var p *policy.Policy
	if a.o.Policy != nil {
		p = a.o.Policy()
		out.File, out.Rules, out.Groups, out.Quotas = p.File, p.Rules(), p.Groups(), p.ExplainQuotas(id)
	}
	for _, one := range questions {
		e := policy.Explanation{Allowed: true, Lines: []string{"allowed: there is no policy file (--policy), so every client may do everything"}}
		if p != nil {
			e = p.Explain(id, one)
		}
		out.Answers = append(out.Answers, Answer{Action: string(one.Action), Name: one.Name, Allowed: e.Allowed, Lines: e.Lines})
	}
	return out, nil
}
