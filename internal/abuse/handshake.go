package abuse

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Attacks on what comes before the first byte of MQTT: TLS handshakes and PROXY headers.
// The server has listeners for both; newcomers come over them as well.

var handshakeAttacks = []*Attack{
	{
		Name:       "half-open TLS handshakes",
		What:       "10,000 TLS handshakes that clients begin, with half a ClientHello or a whole one, and never continue",
		Negotiates: true,
		SmallFlags: []string{"--max-handshakes", "100"},
		Ceiling:    [2]int64{300, 512},
		Returns:    [2]int64{64, 64},
		Launch: func(t *Target) error {
			hello, err := clientHello()
			if err != nil {
				return err
			}
			t.each(pick(t, 1_000, 10_000), 50, func(i int) error {
				k, err := t.dial(t.attackedTLS)
				if err != nil {
					return err
				}
				return k.write(hello[:len(hello)/(1+i%2)], attackLimit)
			})
			t.hold(pick(t, 300*time.Millisecond, 2*time.Second))
			return nil
		},
	},
	{
		Name:       "PROXY headers that never come",
		What:       "10,000 connections to a listener behind a balancer that send half a PROXY header, or nothing, and never more",
		Negotiates: true,
		SmallFlags: []string{"--max-handshakes", "100"},
		Ceiling:    [2]int64{300, 512},
		Returns:    [2]int64{64, 64},
		Launch: func(t *Target) error {
			t.each(pick(t, 1_000, 10_000), 50, func(i int) error {
				k, err := t.dial(t.attackedProxy)
				if err != nil {
					return err
				}
				return k.write(proxyHeader[:i%len(proxyHeader)], attackLimit)
			})
			t.hold(pick(t, 300*time.Millisecond, 2*time.Second))
			return nil
		},
	},
}

// proxyHeader is of a client that a balancer has accepted (version 2, TCP over IPv4).
var proxyHeader = func() []byte {
	h := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), 0x21, 0x11, 0, 12)
	h = append(h, 203, 0, 113, 9, 198, 51, 100, 1)
	h = binary.BigEndian.AppendUint16(h, 50_000)
	return binary.BigEndian.AppendUint16(h, 1883)
}()

// clientHello is the first flight of a client's handshake.
func clientHello() ([]byte, error) {
	here, there := net.Pipe()
	defer there.Close()
	go func() {
		defer here.Close()
		_ = tls.Client(here, insecure).Handshake() // it fails when there is closed
	}()
	if err := there.SetReadDeadline(time.Now().Add(attackLimit)); err != nil {
		return nil, err
	}
	hello := make([]byte, 16<<10)
	n, err := there.Read(hello)
	return hello[:n], err
}

// insecure accepts any server: who it is makes no difference to its load.
var insecure = &tls.Config{InsecureSkipVerify: true}

// visitNegotiated is visit over TLS, and through the listener behind a balancer. The visitor
// comes there from the address of the attackers, as both would from that of the balancer.
func (t *Target) visitNegotiated(limit time.Duration) error {
	nc, err := dialFrom(loopback, t.overTLS, limit)
	if err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	_ = nc.SetDeadline(time.Now().Add(limit))
	encrypted := tls.Client(nc, insecure)
	if err := greet(encrypted, limit); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	if nc, err = dialFrom(attacker, t.attackedProxy, limit); err != nil {
		return fmt.Errorf("PROXY: %w", err)
	}
	if _, err := nc.Write(proxyHeader); err != nil {
		_ = nc.Close()
		return fmt.Errorf("PROXY: %w", err)
	}
	if err := greet(nc, limit); err != nil {
		return fmt.Errorf("PROXY: %w", err)
	}
	return nil
}

// greet connects over a connection to the server, and leaves.
func greet(nc net.Conn, limit time.Duration) error {
	k := newLink(nc)
	defer k.close()
	return k.connect("", 0, limit)
}

// negotiating makes certificates below dir and a configuration file of listeners over TLS,
// and behind a balancer, on addresses.
func negotiating(binary, dir string, addresses []string) (file string, err error) {
	site := filepath.Join(dir, "site")
	if out, err := exec.Command(binary, "init", site).CombinedOutput(); err != nil {
		return "", fmt.Errorf("holdfast init: %w: %s", err, out)
	}
	var b strings.Builder
	b.WriteString("listeners:\n")
	for _, a := range addresses {
		fmt.Fprintf(&b, "  - {url: \"mqtts://%s:0\", tls-cert: site/server.crt, tls-key: site/server.key, anonymous: true}\n", a)
	}
	for _, a := range addresses {
		fmt.Fprintf(&b, "  - {url: \"mqtt://%s:0\", proxy-protocol: true, anonymous: true}\n", a)
	}
	file = filepath.Join(dir, "holdfast.yaml")
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}
