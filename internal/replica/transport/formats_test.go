package transport

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-mqtt/holdfast/internal/goldenfile"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
)

var onTheWire = goldenfile.Exchanged("give the new form another magic (conn.go), take connections that begin with either, and begin them with the former one until the cluster has a format level, which you raise (internal/replica/members/level.go), that says that all nodes know the other")

// everyKind has a message of each kind that a node sends to another one, from node 0xa1 to node 0xb2.
// Each field that such a message can have is in one of them.
func everyKind() (all []*raftpb.Message) {
	number := func(n uint64) *uint64 { return &n }
	entry := func(index uint64, kind raftpb.EntryType, data string) *raftpb.Entry {
		return &raftpb.Entry{Term: number(6), Index: &index, Type: kind.Enum(), Data: []byte(data)}
	}
	for _, m := range []*raftpb.Message{
		{Type: raftpb.MsgApp.Enum(), LogTerm: number(5), Index: number(70_000), Commit: number(69_999), Entries: []*raftpb.Entry{
			entry(70_001, raftpb.EntryNormal, ""), entry(70_002, raftpb.EntryNormal, "rows"), entry(70_003, raftpb.EntryConfChange, "change"),
		}},
		{Type: raftpb.MsgAppResp.Enum(), LogTerm: number(5), Index: number(70_003), Commit: number(70_001), Reject: proto.Bool(true), RejectHint: number(69_000)},
		{Type: raftpb.MsgVote.Enum(), LogTerm: number(6), Index: number(70_003), Context: []byte("CampaignTransfer")},
		{Type: raftpb.MsgVoteResp.Enum(), Reject: proto.Bool(true)},
		{Type: raftpb.MsgSnap.Enum(), Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
			ConfState: &raftpb.ConfState{Voters: []uint64{0xa1, 0xb2, 0xc3}, Learners: []uint64{0xd4}}, Index: number(70_003), Term: number(6),
		}}},
		{Type: raftpb.MsgHeartbeat.Enum(), Commit: number(70_002), Context: []byte("round 9")},
		{Type: raftpb.MsgHeartbeatResp.Enum(), Context: []byte("round 9")},
		{Type: raftpb.MsgTimeoutNow.Enum()},
		{Type: raftpb.MsgPreVote.Enum(), LogTerm: number(6), Index: number(70_003)},
		{Type: raftpb.MsgPreVoteResp.Enum(), Reject: proto.Bool(true)},
	} {
		m.From, m.To, m.Term = number(0xa1), number(0xb2), number(7)
		all = append(all, m)
	}
	return all
}

// The bytes with which a node begins a connection to another one, and of the messages that follow, are
// those of the file; what a node of another release sends so is received.
func TestFormsOnTheWire(t *testing.T) {
	t.Parallel()
	const cluster, from, to = 0xc0ffee, 0xa1, 0xb2
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := address(t)
	sender := start(t, at, nil, Options{Cluster: cluster, ID: from, Address: "192.0.2.1:7001", Level: 1<<16 | 2, Peers: map[uint64]string{to: l.Addr().String()}})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begins := make([]byte, port.MagicSize+helloSize+len("192.0.2.1:7001"))
	if _, err := io.ReadFull(conn, begins); err != nil {
		t.Fatal(err)
	}
	sender.Send(everyKind())
	var want []byte
	for _, m := range everyKind() {
		if want, err = appendMessage(want, m); err != nil {
			t.Fatal(err)
		}
	}
	written := make([]byte, len(want))
	if _, err := io.ReadFull(conn, written); err != nil {
		t.Fatal(err)
	}
	begins = onTheWire.Check(t, "begin of a connection", begins)
	messages := onTheWire.Check(t, "messages", written)
	sender.end()

	admitted := make(chan hello, 1)
	receiver := start(t, address(t), nil, Options{Cluster: cluster, ID: to, Admit: func(id uint64, address string, level uint32) (func(), error) {
		admitted <- hello{from: id, address: address, level: level}
		return func() {}, nil
	}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	far, err := (&net.Dialer{}).DialContext(ctx, "tcp", receiver.port.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if _, err := far.Write(bytes.Join([][]byte{begins, messages}, nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-admitted:
		if want := (hello{from: from, address: "192.0.2.1:7001", level: 1<<16 | 2}); got != want {
			onTheWire.Differs(t, "begin of a connection", got, want)
		}
	case <-ctx.Done():
		t.Fatalf("the connection is not taken: %v", receiver.log)
	}
	for _, want := range everyKind() {
		select {
		case got := <-receiver.received:
			if !proto.Equal(got, want) {
				onTheWire.Differs(t, "messages", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("not received: %v; the node logs %v", want, receiver.log)
		}
	}
}
