package store

import (
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/crashtest/history"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
	"github.com/holdfast-mqtt/holdfast/internal/statestore/txn"
)

// transactorWindow is how many requests a transactor has under way, at most: each may link
// all of the chapter's joint keys, and the search for their order gets harder with it.
const transactorWindow = 2

// messageIDs bounds the messages for which transactors of one chapter do something once.
const messageIDs = 40

// NewTransactor makes a client of the joint keys of a chapter. Every other of its requests is
// a TXN.
func NewTransactor(number int, rng *rand.Rand, c *Chapter, tokens []hlc.Timestamp) *Client {
	t := NewClient(number, rng, c, tokens)
	t.historian = newHistorian(fmt.Sprintf("transactor%d", number), rng)
	t.window, t.transacts = transactorWindow, true
	return t
}

// message is one of a key, that transactors of the chapter share: the key's number is that
// of the ID, so that a message has one key.
func (c *Client) message() history.Message {
	n := c.rng.IntN(min(messageIDs, 4+int(c.order)/8))
	return history.Message{Key: c.Chapter.joint[n%len(c.Chapter.joint)], ID: fmt.Sprintf("m%d", n)}
}

// randomTxn is a TXN with some conditions and some writes.
func (c *Client) randomTxn() history.Request {
	r := c.request(statestore.Txn, "")
	x := &history.Txn{}
	for i, key := range c.shuffled() {
		if i < c.rng.IntN(5)/2 {
			x.Conditions = append(x.Conditions, c.condition(key))
		}
	}
	for i, key := range c.shuffled() {
		if i == 0 || c.rng.IntN(2) == 0 {
			x.Writes = append(x.Writes, c.write(key, i))
		}
	}
	if c.rng.IntN(3) == 0 {
		x.Once = c.message()
	}
	r.Txn = x
	return r
}

func (c *Client) shuffled() (keys []string) {
	for _, i := range c.rng.Perm(len(c.Chapter.joint)) {
		keys = append(keys, c.Chapter.joint[i])
	}
	return keys
}

func (c *Client) condition(key string) history.Condition {
	check := history.Condition{Key: key, Check: txn.Exists + txn.Check(c.rng.IntN(5))}
	switch check.Check {
	case txn.HasValue:
		check.Value = c.common()
	case txn.AtVersion:
		if check.Version = c.known[key]; check.Version.IsZero() {
			check.Check = txn.Absent
		}
	case txn.MadeBy:
		m := c.message()
		check.Key, check.Message = key, m.ID
		if m.Key != key {
			check.Check = txn.Exists
		}
	}
	return check
}

func (c *Client) write(key string, i int) history.Request {
	w := history.Request{Verb: statestore.Set, Key: key, Value: fmt.Sprintf("%s/%d", c.unique(), i)}
	switch c.rng.IntN(8) {
	case 0:
		w.Verb, w.Value = statestore.Del, ""
	case 1, 2:
		w.Value = c.common()
	case 3:
		w.PX = 1 + c.rng.Int64N(250)
	}
	c.fence(&w)
	return w
}

// fence gives some requests a fencing token, and those the highest whose key has refused one
// without.
func (c *Client) fence(r *history.Request) {
	switch {
	case c.fenced[r.Key]:
		r.Token = c.tokens[len(c.tokens)-1]
		delete(c.fenced, r.Key)
	case c.rng.IntN(40) == 0:
		r.Token = c.tokens[c.rng.IntN(len(c.tokens))]
	}
}

// learn remembers the versions that an answer has shown, and the keys that need a token.
func (c *Client) learn(p *pending) {
	if p.Kind == statestore.Error {
		if p.Txn == nil {
			c.fenced[p.Key] = true
		} else if i := p.Op - 1 - len(p.Txn.Conditions); i >= 0 && i < len(p.Txn.Writes) {
			c.fenced[p.Txn.Writes[i].Key] = true
		}
		return
	}
	if p.Txn == nil {
		if !p.Version.IsZero() && p.Verb != statestore.Load {
			c.known[p.Key] = p.Version
		}
		return
	}
	for i, w := range p.Txn.Writes {
		if !p.Versions[i].IsZero() {
			c.known[w.Key] = p.Versions[i]
		}
	}
	if p.Count == statestore.ConditionFailed && p.Found {
		c.known[p.Txn.Conditions[p.Op-1].Key] = p.Version
	}
}
