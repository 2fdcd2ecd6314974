package statestore_test

import (
	"bytes"
	"testing"

	"github.com/holdfast-mqtt/holdfast/hlc"
	"github.com/holdfast-mqtt/holdfast/internal/statestore"
)

// hot is one key with a token, and the commands that the hot path sees.
func hot() (entry *statestore.Entry, env *statestore.Env, commands map[string]*statestore.Command) {
	s := newStore(&testing.T{})
	s.do(set("value", token(at(0, 5))))
	packet := []byte("1696374425000:5:client")
	view, err := hlc.ParseBytes(packet)
	if err != nil {
		panic(err)
	}
	given := statestore.Stamp{State: statestore.Given, At: view}
	fenced := set("other", token(given), time(given))
	fenced.Value = bytes.Repeat([]byte("v"), 64)
	return s.cells["k"], &s.env, map[string]*statestore.Command{
		"GET hit":         get(),
		"SET":             fenced,
		"SET not applied": set("a", nx, token(given)),
		"SET refused":     set("a"),
		"VDEL":            vdel("value", token(given)),
		"VDEL other":      vdel("other", token(given)),
		"DEL":             del(token(given)),
	}
}

// Nothing allocates: a caller that keeps something copies it.
func TestApplyAllocations(t *testing.T) {
	entry, env, commands := hot()
	var res statestore.Result
	for name, cmd := range commands {
		for _, cell := range []statestore.Cell{{Entry: entry}, {}} {
			if n := testing.AllocsPerRun(100, func() { statestore.Apply(cmd, cell, env, &res) }); n != 0 {
				t.Errorf("%s allocates %v times", name, n)
			}
		}
	}
}

func TestExpireDoesNotAllocate(t *testing.T) {
	entry, env, _ := hot()
	expiring := *entry
	expiring.DeadlineMs = env.NowMs
	key := []byte("k")
	var res statestore.Result
	got := testing.AllocsPerRun(100, func() {
		if !statestore.Expire(key, &expiring, env, &res) {
			t.Fatal("not due")
		}
	})
	if got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkApply(b *testing.B) {
	entry, env, commands := hot()
	for _, name := range []string{"GET hit", "SET", "SET not applied", "VDEL", "DEL"} {
		b.Run(name, func(b *testing.B) {
			var res statestore.Result
			cmd := commands[name]
			b.ReportAllocs()
			for b.Loop() {
				statestore.Apply(cmd, statestore.Cell{Entry: entry}, env, &res)
			}
		})
	}
}

func BenchmarkToken(b *testing.B) {
	pattern, after := []byte("site/*/setPoint"), []byte("site/thermostat-17/setPoint")
	token := statestore.EncodeToken(nil, pattern, after)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := statestore.DecodeToken(pattern, token); !ok {
			b.Fatal("malformed")
		}
	}
}
