// Command proxy passes TCP connections on to one address with as little work as Go can do it in:
// what the way through a follower costs is measured against it.
//
// It lacks what a relay must have: it holds no client until a leader is there, bounds nothing, and knows
// no change of the leader. Each direction of a connection is a goroutine that reads and writes
// without a word to the scheduler, unless there is nothing to read.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"syscall"
	"unsafe"
)

func main() {
	to := flag.String("to", "", "`HOST:PORT` to pass connections on to")
	flag.Parse()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", l.Addr())
	for {
		near, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go pass(near, *to)
	}
}

func pass(near net.Conn, to string) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		log.Print(err)
		return
	}
	defer far.Close()
	up := make(chan struct{})
	go func() {
		defer close(up)
		carry(far, near)
		far.(*net.TCPConn).CloseWrite()
	}()
	carry(near, far)
	near.Close()
	<-up
}

// carry copies until from ends or one of them fails.
func carry(to, from net.Conn) {
	in, err1 := from.(syscall.Conn).SyscallConn()
	out, err2 := to.(syscall.Conn).SyscallConn()
	if errors.Join(err1, err2) != nil {
		return
	}
	p := make([]byte, 32<<10)
	var n, written int
	var failed error
	read := func(fd uintptr) bool {
		n, failed = call(syscall.SYS_READ, fd, p)
		return failed != syscall.EAGAIN
	}
	write := func(fd uintptr) { written, failed = call(syscall.SYS_WRITE, fd, p[:n]) }
	for {
		if in.Read(read) != nil || failed != nil || n == 0 {
			return
		}
		if out.Control(write) != nil || failed != nil && failed != syscall.EAGAIN {
			return
		}
		if written < n { // nothing here measures this
			if _, err := to.Write(p[written:n]); err != nil {
				return
			}
		}
	}
}

// call is a system call that does not wait.
func call(number, fd uintptr, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
