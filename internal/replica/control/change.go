package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/holdfast-mqtt/holdfast/internal/replica/consensus"
	"github.com/holdfast-mqtt/holdfast/internal/replica/node"
)

const (
	changeMagic = "holdfast change1"
	// changeTimeout is for a change of the nodes to be committed, once a leader has it.
	changeTimeout = 15 * time.Second
	// changePause is how long a node waits for a leader that has just given the leadership away.
	changePause = 100 * time.Millisecond
)

// change asks a leader to add a node or to remove one.
type change struct {
	Add     bool   `json:"add"`
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
}

// changed answers it.
type changed struct {
	Error string `json:"error,omitempty"`
	Again bool   `json:"again,omitempty"` // another node leads now: it is to be asked
}

func answerChange(c net.Conn, n *node.Node) {
	defer c.Close()
	if n == nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(leaderPatience))
	var q change
	if json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&q) != nil {
		return
	}
	_ = json.NewEncoder(c).Encode(carryOut(context.Background(), n, q))
}

// carryOut makes a change on the leader.
func carryOut(ctx context.Context, n *node.Node, q change) (a changed) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var err error
	if q.Add {
		err = n.Add(ctx, q.Name, q.Address)
	} else {
		err = n.Remove(ctx, q.Name)
	}
	if err != nil {
		a.Error = err.Error()
		a.Again = errors.Is(err, node.ErrGaveAway) || errors.Is(err, consensus.ErrNotLeader)
	}
	return a
}

// Change adds a node, or removes one, whichever node leads. It returns when the change is made; a
// node that was added is a learner then.
func (r *Reporter) Change(ctx context.Context, add bool, name, address string) error {
	ctx, cancel := context.WithTimeout(ctx, leaderPatience)
	defer cancel()
	for {
		a, err := r.change(ctx, change{add, name, address})
		if err != nil && !errors.Is(err, ErrNoLeader) {
			return err
		}
		switch {
		case err == nil && a.Error == "":
			return nil
		case err == nil && !a.Again:
			return errors.New(a.Error)
		}
		select {
		case <-time.After(changePause):
		case <-ctx.Done():
			if err == nil {
				err = errors.New(a.Error)
			}
			return fmt.Errorf("%w: look at the status of the cluster", err)
		}
	}
}

func (r *Reporter) change(ctx context.Context, q change) (a changed, err error) {
	s := r.node.Status()
	switch {
	case s.Role == node.Leader:
		return carryOut(ctx, r.node, q), nil
	case s.Leader == 0:
		return a, ErrNoLeader
	}
	c, err := r.node.Dial(ctx, s.Leader, changeMagic)
	if err != nil {
		return changed{Error: fmt.Sprintf("the leader: %v", err), Again: true}, nil
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(leaderPatience))
	if err = json.NewEncoder(c).Encode(q); err == nil {
		err = json.NewDecoder(io.LimitReader(c, maxAnswer)).Decode(&a)
	}
	if err != nil {
		err = fmt.Errorf("the leader has not said whether the change is made; look at the status: %w", err)
	}
	return a, err
}
