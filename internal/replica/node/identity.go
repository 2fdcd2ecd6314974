package node

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/holdfast-mqtt/holdfast/internal/datadir"
)

// ID identifies a node, or a cluster: a random number that is never 0, and for a node never
// used again. In text it is 16 hexadecimal digits.
type ID uint64

func (id ID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// MarshalText is String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (id *ID) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 16, 64)
	*id = ID(n)
	return err
}

// newID makes a random ID.
func newID() ID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // does not fail
		if id := ID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id
		}
	}
}

// Peer is a node as the configuration names it.
type Peer struct {
	Name    string `json:"name"`
	Address string `json:"address"` // of its port, HOST:PORT
}

// member is a node of a cluster that was founded.
type member struct {
	Name string `json:"name"`
	ID   ID     `json:"id"`
}

// identity is who a node is, as it stands in its directory.
type identity struct {
	Format  int      `json:"format"`
	Name    string   `json:"name"`
	ID      ID       `json:"id"`
	Cluster ID       `json:"cluster"` // 0: the node has not yet learned who the others are
	Members []member `json:"members"` // who founded the cluster, by name
}

const (
	identityFile   = "node"
	identityFormat = 1
	maxIdentity    = 64 << 10
)

// readIdentity reads it; a nil one: there is none.
func readIdentity(fsys vfs.FS, dir string) (*identity, error) {
	path := fsys.PathJoin(dir, identityFile)
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxIdentity))
	i := &identity{}
	if err = errors.Join(err, f.Close()); err == nil {
		err = json.Unmarshal(b, i)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	case i.Format != identityFormat:
		return nil, fmt.Errorf("%s has format %d, and this program knows format %d: use a newer version", path, i.Format, identityFormat)
	case i.ID == 0:
		return nil, fmt.Errorf("%s does not say which node this is", path)
	}
	return i, nil
}

// write durably writes the identity, in place of the one that is there.
func (i *identity) write(fsys vfs.FS, dir string) error {
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	path := fsys.PathJoin(dir, identityFile)
	f, err := fsys.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(fsys.Rename(path+".new", path), datadir.SyncDir(fsys, dir))
}

// name is the name of a member; its ID if the node does not know it.
func (i *identity) name(id uint64) string {
	for _, m := range i.Members {
		if m.ID == ID(id) {
			return m.Name
		}
	}
	return ID(id).String()
}

// clusterOf derives the cluster's ID from its founders, so that all of them give it the same.
func clusterOf(members []member) ID {
	h := sha256.New()
	for _, m := range members {
		_, _ = fmt.Fprintf(h, "%s=%v\n", m.Name, m.ID)
	}
	return ID(binary.LittleEndian.Uint64(h.Sum(nil))) | 1
}

// checkPeers says what is wrong with the peers of a configuration.
func checkPeers(name string, peers []Peer) error {
	seen := map[string]string{}
	for _, p := range peers {
		if p.Name == "" || p.Address == "" {
			return errors.New("a peer needs a name and an address: NAME=HOST:PORT")
		}
		for _, of := range []string{"name " + p.Name, "address " + p.Address} {
			if other, again := seen[of]; again {
				return fmt.Errorf("the peers %s and %s have the same %s", other, p.Name, strings.Fields(of)[0])
			}
			seen[of] = p.Name
		}
	}
	if !slices.ContainsFunc(peers, func(p Peer) bool { return p.Name == name }) {
		return fmt.Errorf("node %q is not among the peers: they must include it", name)
	}
	return nil
}
