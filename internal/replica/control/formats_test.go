package control

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

// Nodes of two releases ask each other, and the commands of one release ask the node of another one through
// its socket, with what the files have.
func TestFormsOfQuestionsAndAnswers(t *testing.T) {
	t.Parallel()
	onTheWire := goldenfile.Exchanged("give the new form another magic, or another path of the socket, and answer the former one as well for a release")
	members := []node.Member{{Name: "a", ID: 0xa1, Address: "192.0.2.1:7001", Active: true}, {Name: "d", ID: 0xd4, Address: "192.0.2.4:7001", Learner: true, Lag: 12}}
	for name, want := range map[string]any{
		"status of a leader": node.Status{
			Name: "a", ID: 0xa1, Cluster: 0xc0ffee, Level: 2, InForce: 1, Role: node.Leader, Term: 7, Leader: 0xa1, Ready: true, Committed: 70_001, Last: 70_002,
			LagKnown: true, Lease: 720 * time.Millisecond, DiskFull: true, WallMs: 1_795_800_000_123, Unfit: true, Members: members, Admin: "192.0.2.1:9090",
		},
		"status of a node that receives": node.Status{
			Name: "d", ID: 0xd4, Cluster: 0xc0ffee, Level: 1, InForce: 1, Role: node.Receiving, Term: 7, Leader: 0xa1, Received: 1 << 20, ReceiveBytes: 1 << 30, Lag: 12, Members: members,
		},
		"report": Report{Node: "a", Leader: "a", Level: 1, Quorum: true, Missing: []string{"b"}, Nodes: []Line{
			{Name: "a", Address: "192.0.2.1:7001", Role: node.Leader, Term: 7, Level: 2, ClockAheadMs: -7_200_000, Unfit: true, Admin: "192.0.2.1:9090"},
			{Name: "b", Address: "192.0.2.2:7001", Role: Unreachable, Lag: 500, Error: "connection refused"},
			{Name: "d", Address: "192.0.2.4:7001", Role: node.Receiving, Term: 7, Lag: 12, Received: 1 << 20, ReceiveBytes: 1 << 30, Learner: true, Level: 1},
		}},
		"report without a quorum": Report{Node: "a", Nodes: []Line{}, Missing: []string{"b", "c"}, ClockBase: "a"},
		"transfer":                transferRequest{To: "b"},
		"transferred":             transferred{},
		"transfer refused":        transferred{Error: "node b leads already"},
		"addition":                change{Add: true, Name: "d", Address: "192.0.2.4:7001"},
		"removal":                 change{Name: "d"},
		"changed":                 changed{},
		"change refused":          changed{Error: "another node leads", Again: true},
		"committed":               committed{Entry: 70_001},
		"committed is not known":  committed{Error: "this node does not lead"},
		"ready":                   health{},
		"not ready":               health{Unready: []string{"this node knows no leader"}},
	} {
		var written bytes.Buffer
		if err := json.NewEncoder(&written).Encode(want); err != nil {
			t.Fatal(err)
		}
		got := reflect.New(reflect.TypeOf(want))
		if err := json.Unmarshal(onTheWire.Text(t, name, written.Bytes()), got.Interface()); err != nil || !reflect.DeepEqual(got.Elem().Interface(), want) {
			onTheWire.Differs(t, name, []any{got.Elem(), err}, want)
		}
	}
	onTheWire.Text(t, "magics and paths", []byte(StatusMagic+"\n"+transferMagic+"\n"+changeMagic+"\n"+committedMagic+"\n"+
		statusPath+"\n"+transferPath+"?to=\n"+healthPath+"\n"+addPath+"?name=&address=\n"+removePath+"?name=\n"))
}
