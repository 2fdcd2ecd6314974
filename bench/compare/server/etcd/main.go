// Command etcd is an etcd member in a process of its own, alone or one of several, with its
// defaults: each write is in the log on disk, fsynced, before it is answered.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	dir := flag.String("data", "", "`DIR` for the data")
	name := flag.String("name", "default", "`NAME` of the member")
	peer := flag.String("peer", "", "`URL` for the other members; empty: it is alone")
	cluster := flag.String("cluster", "", "`NAME=URL,...` of all members")
	flag.Parse()
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = *dir, "error"
	cfg.ListenPeerUrls, cfg.ListenClientUrls = free, free
	if *peer != "" {
		u, err := url.Parse(*peer)
		if err != nil {
			log.Fatal(err)
		}
		cfg.Name, cfg.InitialCluster = *name, *cluster
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*u}, []url.URL{*u}
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		log.Fatal(err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		log.Fatal(err)
	case <-time.After(20 * time.Second):
		log.Fatal("etcd: not ready after 20 s")
	}
	fmt.Println("version", version.Version)
	fmt.Println("listening on", e.Clients[0].Addr())
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	<-end
	e.Close()
}
