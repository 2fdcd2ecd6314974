package founding

import (
	"encoding/json"
	"io"
	"net"
	"reflect"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/identity"
	"github.com/holdfast-mqtt/holdfast/internal/replica/members"
)

// A node of another release says who it is as the files have it, before it has a cluster and after.
// The identity's own level is not sent: Answer.Level has its name.
func TestFormsOfAnswers(t *testing.T) {
	t.Parallel()
	onTheWire := goldenfile.Exchanged("give the new form another magic (const Magic), answer both, and ask with the former one until a release later: a node that founds or joins a cluster does not know yet which release the others are of")
	onTheWire.Check(t, "magic", []byte(Magic))
	founders := []members.Member{{Name: "a", ID: 0xa1, Address: "192.0.2.1:7001"}, {Name: "b", ID: 0xb2, Address: "192.0.2.2:7001"}}
	for name, want := range map[string]Answer{
		"answer of a node without a cluster": {
			Identity: identity.Identity{Format: 2, Name: "a", ID: 0xa1}, Peers: []string{"a", "b"}, Level: 1, Lowest: 1, Instance: 0x1122334455667788,
		},
		"answer of a node of a cluster": {
			Identity: identity.Identity{
				Format: 2, Name: "a", ID: 0xa1, Cluster: 0xc0ffee, Members: founders, Base: &identity.Base{Index: 70_000, Term: 6}, Log: "raft-2", Former: []members.ID{0xf0},
			},
			Peers: []string{"a", "b"}, Level: 2, Lowest: 1, InForce: 1, Instance: 0x1122334455667788,
			Now: append(founders[:1:1], members.Member{Name: "d", ID: 0xd4, Address: "192.0.2.4:7001", Learner: true}), Removed: []members.ID{0xb2},
		},
	} {
		near, far := net.Pipe()
		go want.Send(far)
		written, err := io.ReadAll(near)
		if err != nil {
			t.Fatal(err)
		}
		var got Answer
		if err := json.Unmarshal(onTheWire.Text(t, name, written), &got); err != nil || !reflect.DeepEqual(got, want) {
			onTheWire.Differs(t, name, []any{got, err}, want)
		}
	}
}
