//go:build lockrank

package clustered_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/internal/clustered"
	"github.com/holdfast-mqtt/holdfast/internal/failstop"
	"github.com/holdfast-mqtt/holdfast/internal/fronts"
	"github.com/holdfast-mqtt/holdfast/internal/listen"
	"github.com/holdfast-mqtt/holdfast/internal/listen/proxy"
	"github.com/holdfast-mqtt/holdfast/internal/lockrank"
	"github.com/holdfast-mqtt/holdfast/internal/mux"
	"github.com/holdfast-mqtt/holdfast/internal/replica/clients"
	"github.com/holdfast-mqtt/holdfast/internal/replica/port"
	"github.com/holdfast-mqtt/holdfast/internal/replica/settings"
	"github.com/holdfast-mqtt/holdfast/internal/server"
	"github.com/holdfast-mqtt/holdfast/internal/testserver/process"
)

// What a process of this test binary is told that is to be a node with a defect.
const (
	defectiveDir     = "HOLDFAST_TEST_DEFECTIVE_NODE"
	defectiveLock    = "HOLDFAST_TEST_DEFECTIVE_LOCK"
	defectiveCluster = "HOLDFAST_TEST_DEFECTIVE_CLUSTER"
)

// clusterLock says whether only nodes of a cluster acquire a lock: a test of package server tries
// the others.
func clusterLock(name string) bool {
	return strings.HasPrefix(name, "node.") || strings.HasPrefix(name, "mux.") || slices.Contains([]string{"raftlog.Log.mu", "relay.Relay.mu", "clients.Clients.mu", "fronts.Fronts.mu"}, name)
}

// alone is the configuration of a cluster of one node.
func alone(dir, address string) server.Config {
	cfg := server.Default()
	cfg.Listen, cfg.DataDir = []string{"127.0.0.1:0"}, dir
	cfg.Cluster = settings.Settings{Node: "a", Peers: []string{"a=" + address}}
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	return cfg
}

// TestBeDefective is a node in a process of its own. It leads a cluster of one.
func TestBeDefective(t *testing.T) {
	dir, address := os.Getenv(defectiveDir), os.Getenv(defectiveCluster)
	if dir == "" {
		t.Skip("this is no test by itself: those of planted defects run it as a process of their own")
	}
	n, err := clustered.Start(t.Context(), alone(dir, address))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("listening", n.URLs()[0].Host)
	if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line != "" {
		lockrank.PanicUnder(os.Getenv(defectiveLock))
		// A client that another node passes on, and one of a front, so that their locks are
		// acquired.
		go passOn(address)
		go beAFront(address)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has gone
}

func passOn(address string) {
	conn, err := port.NewDialer(nil, nil).Dial(context.Background(), address, clients.Magic)
	if err != nil {
		return
	}
	at := netip.MustParseAddrPort("127.0.0.1:50000")
	_, _ = conn.Write(proxy.Append(nil, proxy.Header{Client: at}, at))
	_, _ = io.Copy(io.Discard, conn)
}

// beAFront sends what a front does that carries a client.
func beAFront(address string) {
	conn, err := port.NewDialer(nil, nil).Dial(context.Background(), address, fronts.Magic)
	if err != nil || !greeted(conn) {
		return
	}
	about, _ := (&fronts.About{Scheme: listen.MQTT, Client: netip.MustParseAddrPort("127.0.0.1:50000")}).Append(nil)
	_, _ = conn.Write(append([]byte{1, 0, 0, 0, 1, 0, byte(len(about))}, about...)) // OPEN of stream 1
	_, _ = conn.Write([]byte{2, 0, 0, 0, 1, 0, 1, 0x10})                            // its DATA
	_, _ = io.Copy(io.Discard, conn)
}

func greeted(conn net.Conn) bool {
	_, err := mux.Own.Greet(conn)
	return err == nil
}

var listening = regexp.MustCompile(`(?m)^listening (\S+)`)

// Whatever lock of a node is locked when a defect shows, the process ends and loses nothing.
func TestADefectUnderEachLockOfANode(t *testing.T) {
	t.Parallel()
	for _, lock := range lockrank.LockNames() {
		if !clusterLock(lock) {
			continue
		}
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			aDefectUnder(t, lock)
		})
	}
}

func aDefectUnder(t *testing.T, lock string) {
	dir, between := t.TempDir(), address(t)
	p, in, err := process.StartTest("TestBeDefective", listening, defectiveDir+"="+dir, defectiveLock+"="+lock, defectiveCluster+"="+between, "TMPDIR="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	at := listening.FindStringSubmatch(p.Output())[1]

	// Given keys that were acknowledged, while others are written and connections come,
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Dial(ctx, at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keys, writing := 0, sync.WaitGroup{}
	write := func() error {
		_, err := c.Set(ctx, fmt.Sprint("key", keys), []byte("value"))
		if err == nil {
			keys++
		}
		return err
	}
	for keys < 5 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	working, stop := context.WithCancel(ctx)
	defer writing.Wait()
	defer stop()
	writing.Go(func() {
		for working.Err() == nil && write() == nil {
		}
	})
	writing.Go(func() {
		for working.Err() == nil {
			conn, err := net.Dial("tcp", at)
			if err != nil {
				return
			}
			conn.Close()
		}
	})

	// when the defect shows,
	if _, err := io.WriteString(in, "now\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Ended():
	case <-time.After(patience):
		t.Fatalf("the process did not end; it said:\n%s", p.Output())
	}
	stop()
	_ = c.Close()
	writing.Wait()

	// then the process has ended by it, and a start has all that was acknowledged.
	if p.State().ExitCode() != failstop.Status || !strings.Contains(p.Output(), "a defect under "+lock) {
		t.Errorf("it ended with %v, want the status %d; it said:\n%s", p.State(), failstop.Status, p.Output())
	}
	n, err := clustered.Start(ctx, alone(dir, between))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	}()
	again, err := client.Dial(ctx, n.URLs()[0].Host)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for i := range keys {
		if _, found, err := again.Get(ctx, fmt.Sprint("key", i)); err != nil || !found {
			t.Errorf("key %d of %d: found %v, %v", i, keys, found, err)
		}
	}
}
