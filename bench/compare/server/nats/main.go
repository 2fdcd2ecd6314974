// Command nats is a NATS server with JetStream in a process of its own.
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
	flag.Parse()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: *dir, SyncAlways: *sync,
		NoSigs: true, JetStreamMaxMemory: 4 << 30, JetStreamMaxStore: 16 << 30,
	})
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
