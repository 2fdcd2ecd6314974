package client

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/holdfast-mqtt/holdfast/bench/compare/internal/latency"
)

// etcdClient asks etcd through its own client. A window's requests travel on one
// connection at once, each in a goroutine, as the client's users do it.
type etcdClient struct {
	client *clientv3.Client
	script *Script
	keys   [][]string
	at     int
}

// DialEtcd connects to etcd.
func DialEtcd(addr string, s *Script) (*etcdClient, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, DialTimeout: Patience, DialOptions: []grpc.DialOption{grpc.WithBlock()}, //nolint:staticcheck // connected when it returns
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	return &etcdClient{client: c, script: s, keys: s.windows()}, nil
}

func (c *etcdClient) Exchange(h *latency.Histogram) error {
	keys := c.keys[c.at]
	c.at = (c.at + 1) % len(c.keys)
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	type answer struct {
		took time.Duration
		err  error
	}
	answers := make(chan answer, len(keys))
	for _, key := range keys {
		ask := func() {
			start := time.Now()
			err := c.ask(ctx, key)
			answers <- answer{time.Since(start), err}
		}
		if len(keys) == 1 {
			ask()
		} else {
			go ask()
		}
	}
	for range keys {
		a := <-answers
		if a.err != nil {
			return a.err
		}
		h.Add(a.took, 1)
	}
	return nil
}

func (c *etcdClient) ask(ctx context.Context, key string) error {
	if c.script.Verb == "SET" {
		_, err := c.client.Put(ctx, key, c.script.Value)
		return err
	}
	r, err := c.client.Get(ctx, key)
	if err == nil && (len(r.Kvs) != 1 || len(r.Kvs[0].Value) != len(c.script.Value)) {
		err = fmt.Errorf("answer %v", r.Kvs)
	}
	return err
}

func (c *etcdClient) Close() error { return c.client.Close() }
