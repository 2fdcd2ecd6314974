package clustered_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/holdfast-mqtt/holdfast/internal/httpapi"
)

// ask makes a request to the HTTP API of a node.
func (c *cluster) ask(name, method, path string, body, answer any) (status int) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.nodes[name].AdminAddr().String()+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(got, answer); err != nil {
		c.t.Fatalf("%s %s of %s: %d %s", method, path, name, response.StatusCode, got)
	}
	return response.StatusCode
}

// Each node says through its HTTP API who leads and where the consoles are, and one that follows
// has the leadership given to another node.
func TestAPIOfNodes(t *testing.T) {
	t.Parallel()
	c := start(t, "a", "b", "c")
	leader, others := c.leader()
	for name, n := range c.nodes {
		var got httpapi.Cluster
		if status := c.ask(name, "GET", "/api/v1/cluster", nil, &got); status != 200 || got.Node != name || got.Leader != leader || !got.Quorum || got.Problem != "" || len(got.Nodes) != 3 {
			t.Errorf("%s: status %d, %+v", name, status, got)
		}
		i := slices.IndexFunc(got.Nodes, func(o httpapi.Node) bool { return o.Name == name })
		if i < 0 || got.Nodes[i].Console != n.AdminAddr().String() {
			t.Errorf("%s: the nodes are %+v, want its console at %s", name, got.Nodes, n.AdminAddr())
		}
	}
	var f httpapi.Failure
	for to, status := range map[string]int{"nowhere": http.StatusConflict, leader: http.StatusConflict} {
		if got := c.ask(others[0], "POST", "/api/v1/cluster/transfer", httpapi.Transfer{To: to}, &f); got != status || f.Error == "" {
			t.Errorf("to %s: status %d, %+v", to, got, f)
		}
	}
	if got := c.ask(others[0], "POST", "/api/v1/cluster/transfer", map[string]int{"too": 1}, &f); got != http.StatusBadRequest {
		t.Errorf("an unknown field: status %d, %+v", got, f)
	}
	if got := c.ask(others[0], "GET", "/api/v1/clients", nil, &f); got != http.StatusServiceUnavailable {
		t.Errorf("clients of a node that follows: status %d, %+v", got, f)
	}
	var done httpapi.Transferred
	if got := c.ask(others[0], "POST", "/api/v1/cluster/transfer", httpapi.Transfer{To: others[1]}, &done); got != 200 || !done.Transferred {
		t.Fatalf("status %d, %+v", got, done)
	}
	if now, _ := c.leader(); now != others[1] {
		t.Errorf("%s leads, want %s", now, others[1])
	}
}
