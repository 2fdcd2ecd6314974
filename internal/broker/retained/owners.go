package retained

import (
	"github.com/holdfast-mqtt/holdfast/internal/broker/message"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
)

// A retained message belongs to the client that published it, also after a restart.
// What one client holds may be bounded (Bounds). Without that, the bounds of the store still bear on the
// client that fills it: one that holds less than a lightShare of them may go as much
// beyond them, and so is not locked out by another that has come first.
const lightShare = 16

// owners counts what each client holds.
type owners struct {
	mu       lockrank.Mutex[lockrank.Retainers]
	byClient map[string]holding // guarded by mu; none that holds nothing
}

type holding struct{ messages, bytes int64 }

// add adds to what a client holds, or with negative numbers takes away.
func (o *owners) add(client string, messages, bytes int64) {
	if client == "" { // the server's own
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.byClient[client]
	h.messages += messages
	h.bytes += bytes
	if h.messages > 0 {
		o.byClient[client] = h
	} else {
		delete(o.byClient, client)
	}
}

func (o *owners) of(client string) holding {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byClient[client]
}

// mayRetain says whether there is room for one more message of the client, or, if
// old is not nil, in its place, that counts size bytes.
func (r *Store) mayRetain(client string, old *message.Message, size int64) bool {
	l := &r.o.Bounds
	held := r.owners.of(client)
	total := holding{r.count.Load(), r.bytesStored.Load()}
	most := holding{int64(l.Messages), l.Bytes}
	if client != "" && held.messages < most.messages/lightShare {
		most.messages += most.messages / lightShare
	}
	if client != "" && held.bytes < most.bytes/lightShare {
		most.bytes += most.bytes / lightShare
	}
	grown, own := holding{1, size}, holding{1, size}
	if old != nil {
		grown = holding{0, size - sizeOf(old)}
		if old.Publisher == client {
			own = grown
		}
	}
	return fits(total, grown, most) && fits(held, own, holding{int64(l.ClientMessages), l.ClientBytes})
}

// fits says whether what is held may grow so much; a bound of 0 is none. What
// doesn't grow always may.
func fits(held, by, most holding) bool {
	return (by.messages <= 0 || most.messages <= 0 || held.messages+by.messages <= most.messages) &&
		(by.bytes <= 0 || most.bytes <= 0 || held.bytes+by.bytes <= most.bytes)
}
