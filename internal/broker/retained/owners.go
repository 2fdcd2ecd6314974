package retained

import (
	"github.com/holdfast-mqtt/holdfast/internal/access"
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// A retained message belongs to the principal whose client published it, also after a
// restart; of a client that has not proven who it is, to its client ID. What one principal
// holds may be bounded (its quota, Bounds). Where no such bound is set, the bounds of the store
// count. A principal that holds less than a lightShare of these may go as much beyond them,
// so that it is not locked out by another one that has filled the store.
const lightShare = 16

// owners counts what each principal holds.
type owners struct {
	mu     lockrank.Mutex[lockrank.Retainers]
	byName map[string]holding // guarded by mu; none that holds nothing
	most   string             // guarded by mu: of those that have stored last, the one with most messages; may have none by now
}

type holding struct{ messages, bytes int64 }

// add adds to what a principal holds, or with negative numbers takes away.
func (o *owners) add(name string, messages, bytes int64) {
	if name == "" { // the server's own
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.byName[name]
	h.messages += messages
	h.bytes += bytes
	if h.messages > o.byName[o.most].messages {
		o.most = name
	}
	if h.messages > 0 {
		o.byName[name] = h
	} else {
		delete(o.byName, name)
	}
}

func (o *owners) of(name string) holding {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byName[name]
}

// Most gives the principal that holds most messages, and how many it holds. After another
// one has deleted messages it may name that one until a third, which holds more, stores one.
func (r *Store) Most() (name string, messages int64) {
	o := &r.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most, o.byName[o.most].messages
}

// mayRetain says whether there is room for one more message of the publisher's principal,
// or, if old is not nil, in its place, that counts size bytes.
func (r *Store) mayRetain(o *message.Outgoing, old *message.Message, size int64) bool {
	l, q, name := r.bounds.Load(), o.Quota, o.Principal()
	if q == nil {
		q = &access.NoQuota
	}
	held := r.owners.of(name)
	total := holding{r.count.Load(), r.bytesStored.Load()}
	most := holding{int64(l.Messages), l.Bytes}
	if name != "" && held.messages < most.messages/lightShare {
		most.messages += most.messages / lightShare
	}
	if name != "" && held.bytes < most.bytes/lightShare {
		most.bytes += most.bytes / lightShare
	}
	grown, own := holding{1, size}, holding{1, size}
	if old != nil {
		grown = holding{0, size - sizeOf(old)}
		if old.Principal() == name {
			own = grown
		}
	}
	bound := holding{access.AtMost(q.Retained, int64(l.ClientMessages)), access.AtMost(q.RetainedBytes, l.ClientBytes)}
	return fits(total, grown, most) && fits(held, own, bound)
}

// fits says whether what is held may grow so much; a bound of 0 is none. What
// doesn't grow always may.
func fits(held, by, most holding) bool {
	return (by.messages <= 0 || most.messages <= 0 || held.messages+by.messages <= most.messages) &&
		(by.bytes <= 0 || most.bytes <= 0 || held.bytes+by.bytes <= most.bytes)
}
