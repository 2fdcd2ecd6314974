//go:build !unix

package sockets

import (
	"net"
	"syscall"
)

// DescriptorLimit is not known here: Windows has no such limit for sockets.
func DescriptorLimit() (limit int, known bool) { return 0, false }

func descriptorOf(net.Conn) int { return -1 }

// Raw says that there is no way to file descriptors here.
func Raw(net.Conn) syscall.RawConn { return nil }
