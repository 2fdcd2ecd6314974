package statestore_test

import (
	"bytes"
	"runtime"
	"testing"

	"holdfast/hlc"
	"holdfast/internal/statestore"
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

// Nothing allocates but a SET that is applied: its entry and its value.
func TestApplyAllocations(t *testing.T) {
	entry, env, commands := hot()
	var res statestore.Result
	for name, cmd := range commands {
		want := 0.0
		if name == "SET" {
			want = 2
		}
		for _, cell := range []statestore.Cell{{Entry: entry}, {}} {
			if cell.Entry == nil && cmd.Verb == statestore.Set {
				continue // it has no token to share the node ID of
			}
			got := testing.AllocsPerRun(100, func() { statestore.Apply(cmd, cell, env, &res) })
			if got != want {
				t.Errorf("%s allocates %v times, want %v", name, got, want)
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

// A huge value is copied once.
func TestSetCopiesAHugeValueOnce(t *testing.T) {
	const size = 16 << 20
	cmd := set("")
	cmd.Value = make([]byte, size)
	env := newStore(t).env
	env.Room.Bytes = 2 * size
	var res statestore.Result
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	statestore.Apply(cmd, statestore.Cell{}, &env, &res)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got < size || got > size+size/4 {
		t.Errorf("a SET of %d bytes allocates %d", size, got)
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
