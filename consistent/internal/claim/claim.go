// Package claim sees to it that a connection is used by one processor at a time: messages of two on
// one connection would come to either of them, and subscriptions of one would be those of both.
package claim

import (
	"errors"
	"reflect"
	"sync"
)

// ErrTaken means that another processor runs on the connection.
var ErrTaken = errors.New("another processor runs on this connection, and would get messages of this one: make a connection for each, with a client ID of its own, or register all handlers with one processor")

var errNil = errors.New("the connection is nil: see Dial")

var taken sync.Map // by connection

// Of claims a connection until release is called.
func Of(conn any) (release func(), err error) {
	switch {
	case conn == nil:
		return nil, errNil
	case !reflect.ValueOf(conn).Comparable(): // a type of the application's own
		return func() {}, nil
	}
	if _, is := taken.LoadOrStore(conn, true); is {
		return nil, ErrTaken
	}
	return func() { taken.Delete(conn) }, nil
}
