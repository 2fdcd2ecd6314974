//go:build !unix

package relay

import "net"

func (s *supply) readSome(src net.Conn, more bool) (*buffer, error) { return s.readPlainly(src, more) }

// peek sees nothing on this system.
func peek(net.Conn) []byte { return nil }

// awaitBytes sees nothing on this system.
func awaitBytes(net.Conn) {}
