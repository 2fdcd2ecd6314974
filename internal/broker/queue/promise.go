package queue

// Promised is the room of a queue that is promised to messages on their way to it: they have
// been checked against its bound and are being routed. Only what decides whether another
// message is refused counts it. It is taken back when the message comes, or does not: by the
// goroutine that routes it. The lock of the queue's owner guards it. The zero value is none,
// and so is nil to Messages and DiskBytes.
type Promised struct {
	messages int32
	bytes    int64
}

// Return takes one promise back.
func (p *Promised) Return(size int) { p.messages, p.bytes = p.messages-1, p.bytes-int64(size) }

// Messages is for how many messages room is promised.
func (p *Promised) Messages() int {
	if p == nil {
		return 0
	}
	return int(p.messages)
}

// DiskBytes is what they will take on disk.
func (p *Promised) DiskBytes() int64 {
	if p == nil {
		return 0
	}
	return Footprint(int(p.messages), p.bytes, RowOverhead)
}

// Promises are those to one message that is being routed, in the order in which it goes to
// the queues. The zero value is none.
type Promises struct {
	list []promise
	kept int // those before it are kept, or passed over
}

type promise struct {
	by   Promiser // nil: the promise is kept
	size int
}

// Promiser is the owner of a queue that has promised room.
type Promiser interface {
	// ReturnRoom takes back what was promised to a message of so many bytes. It acquires
	// the lock of the queue's owner.
	ReturnRoom(size int)
}

// Add promises room of a queue for a message of so many bytes. The lock of its owner is held.
func (p *Promises) Add(by Promiser, room *Promised, size int) {
	room.messages, room.bytes = room.messages+1, room.bytes+int64(size)
	p.list = append(p.list, promise{by, size})
}

// Any says whether there are promises.
func (p *Promises) Any() bool { return len(p.list) > 0 }

// Keep takes back what an owner has promised, if it has, as the message has come to its
// queue. The lock of the owner is held.
func (p *Promises) Keep(by Promiser, room *Promised) {
	for i := p.kept; i < len(p.list); i++ {
		if p.list[i].by == by {
			room.Return(p.list[i].size)
			p.list[i].by, p.kept = nil, i+1
			return
		}
	}
}

// Return has those promises taken back that are left: the message has been routed, or
// refused.
func (p *Promises) Return() {
	if !p.Any() {
		return
	}
	for _, one := range p.list {
		if one.by != nil {
			one.by.ReturnRoom(one.size)
		}
	}
	clear(p.list)
	p.list, p.kept = p.list[:0], 0
}
