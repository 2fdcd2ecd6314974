package transport

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// A peer that asks for new keys again and again, and takes none of the answers, loses its
// connection before the answers fill the memory; data between the requests do not change that.
func TestKeyUpdatesAreBounded(t *testing.T) {
	t.Parallel()
	server, client := tcpPair(t)
	server.(*net.TCPConn).SetWriteBuffer(4 << 10) // or the system takes megabytes of answers
	client.(*net.TCPConn).SetReadBuffer(4 << 10)
	ours := NewTLSConn(server, testTLS(t))
	shaken := make(chan error, 1)
	go func() { shaken <- ours.Handshake() }()
	peer := shake(t, client)
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	c := newConn(t, ours, nil, Options{})
	go func() {
		for {
			var flood []byte
			for range 100 {
				flood = peer.seal(peer.update(flood), 23, 'x')
			}
			if _, err := client.Write(flood); err != nil {
				return
			}
		}
	}()
	for began := time.Now(); ; c.Discard(len(c.Buffered())) {
		if err := c.Fill(0); errors.Is(err, ErrKeyUpdates) {
			break
		} else if err != nil || time.Since(began) > patience {
			t.Fatalf("Fill = %v", err)
		}
	}
	if n := len(ours.wire.sealed); n > 2*maxAnswers*answerSize {
		t.Errorf("%d bytes of answers wait", n)
	}
}

// A peer that asks for new keys and takes the answers is served.
func TestKeyUpdatesAreAnswered(t *testing.T) {
	t.Parallel()
	server, client := tcpPair(t)
	ours := NewTLSConn(server, testTLS(t))
	shaken := make(chan error, 1)
	go func() { shaken <- ours.Handshake() }()
	peer := shake(t, client)
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	c := newConn(t, ours, nil, Options{})
	answered := make(chan int)
	go func() {
		n := 0
		for b := make([]byte, 1<<10); n < 4*maxAnswers*answerSize; {
			some, err := client.Read(b)
			if n += some; err != nil {
				break
			}
		}
		answered <- n
	}()
	for i := range 4 * maxAnswers {
		if _, err := client.Write(peer.seal(peer.update(nil), 23, byte(i))); err != nil {
			t.Fatal(err)
		}
		if err := c.Fill(0); err != nil || len(c.Buffered()) != 1 || c.Buffered()[0] != byte(i) {
			t.Fatalf("Fill %d = %v", i, err)
		}
		c.Discard(1)
	}
	if n := <-answered; n != 4*maxAnswers*answerSize {
		t.Errorf("%d bytes of answers came", n)
	}
}

// sealer makes records of TLS 1.3 as a client does, which package tls has no way to ask for.
type sealer struct {
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	count  uint64
}

// shake does the client's handshake.
func shake(t *testing.T, nc net.Conn) *sealer {
	t.Helper()
	var log bytes.Buffer
	c := tls.Client(nc, &tls.Config{InsecureSkipVerify: true, KeyLogWriter: &log, MinVersion: tls.VersionTLS13})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if suite := c.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Skipf("the handshake chose %s", tls.CipherSuiteName(suite))
	}
	for line := range strings.Lines(log.String()) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "CLIENT_TRAFFIC_SECRET_0" {
			secret, err := hex.DecodeString(words[2])
			if err != nil {
				t.Fatal(err)
			}
			return new(sealer).use(secret)
		}
	}
	t.Fatal("the handshake gives no secret")
	return nil
}

// use begins with a new traffic secret (RFC 8446, section 7.3).
func (s *sealer) use(secret []byte) *sealer {
	block, err := aes.NewCipher(expand(secret, "key", 16))
	if err != nil {
		panic(err)
	}
	if s.aead, err = cipher.NewGCM(block); err != nil {
		panic(err)
	}
	s.secret, s.iv, s.count = secret, expand(secret, "iv", 12), 0
	return s
}

// expand is HKDF-Expand-Label, with an empty context.
func expand(secret []byte, label string, length int) []byte {
	info := append(binary.BigEndian.AppendUint16(nil, uint16(length)), byte(len("tls13 ")+len(label)))
	out, err := hkdf.Expand(sha256.New, secret, string(info)+"tls13 "+label+"\x00", length)
	if err != nil {
		panic(err)
	}
	return out
}

// seal appends a record with a type and content.
func (s *sealer) seal(dst []byte, kind byte, content ...byte) []byte {
	header := binary.BigEndian.AppendUint16([]byte{23, 3, 3}, uint16(len(content)+1+s.aead.Overhead()))
	nonce := bytes.Clone(s.iv)
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^s.count)
	s.count++
	return s.aead.Seal(append(dst, header...), nonce, append(content[:len(content):len(content)], kind), header)
}

// update appends a KeyUpdate that asks for another one (RFC 8446, section 4.6.3).
func (s *sealer) update(dst []byte) []byte {
	dst = s.seal(dst, 22, 24, 0, 0, 1, 1)
	s.use(expand(s.secret, "traffic upd", sha256.Size))
	return dst
}
