package transfers

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/crashtest/lives"
)

// A reply to a GET that waited in the session since an earlier connection is not one to this connection's,
// and not a wrong reply to a TXN either.
func TestReplyToAnEarlierConnection(t *testing.T) {
	t.Parallel()
	d := &desk{Link: &lives.Link{}, Clerk: NewClerk(nil, rand.New(rand.NewPCG(1, 1))), life: &lives.Life{}}
	get := func() string {
		correlation := d.ask(command([]string{"GET", account(0)}))
		d.gets[correlation] = 0
		return correlation
	}
	d.sat++
	old := get()
	d.sat++
	now, txn := get(), d.ask(command([]string{"TXN"}))
	reply := []byte("$4\r\n1000\r\n")
	if err := d.reply(old, reply); err != nil || d.read != 0 {
		t.Errorf("of an earlier connection: %v, %d accounts are read", err, d.read)
	}
	if err := d.reply(now, reply); err != nil || d.read != 1 || d.values[0] != "1000" {
		t.Errorf("of this connection: %v, %d accounts are read", err, d.read)
	}
	if err := d.reply(txn, reply); !errors.Is(err, lives.ErrBroken) {
		t.Errorf("to a TXN: %v", err)
	}
}
