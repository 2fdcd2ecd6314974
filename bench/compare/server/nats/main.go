// Command nats is a NATS server with JetStream in a process of its own, by itself or as one of a
// cluster.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	dir := flag.String("data", "", "`DIR` for the data")
	sync := flag.Bool("sync-always", false, "fsync before each acknowledgement, as sync_interval: always does")
	name := flag.String("name", "", "name of the server in a cluster; empty: it is by itself")
	port := flag.Int("route-port", 0, "where it listens for the others of the cluster")
	routes := flag.String("routes", "", "comma-separated nats://HOST:PORT of all servers of the cluster")
	flag.Parse()
	o := &server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: *dir, SyncAlways: *sync,
		NoSigs: true, JetStreamMaxMemory: 4 << 30, JetStreamMaxStore: 16 << 30,
	}
	if *name != "" {
		o.ServerName = *name
		o.Cluster = server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: *port}
		o.Routes = server.RoutesFromStr(*routes)
	}
	s, err := server.NewServer(o)
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		log.Fatal("nats: not ready after 10 s")
	}
	fmt.Println("version", server.VERSION)
	fmt.Println("listening on", s.Addr())
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	<-end
	s.Shutdown()
	s.WaitForShutdown()
}
