//go:build !unix

package transport

import "net"

// DescriptorLimit is not known here: Windows has no such limit for sockets.
func DescriptorLimit() (limit int, known bool) { return 0, false }

func descriptorOf(net.Conn) int { return -1 }
