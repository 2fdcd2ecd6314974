// Package events tells subscribers of $SYS/brokers/holdfast/clients/ID/… which clients connect,
// are refused, are taken over and leave, with topics and fields as EMQX names them.
//
// The broker calls it from readers, with no lock held. An event to whose topic no client has
// subscribed costs a look at the index of filters and allocates nothing; the others are
// published by one goroutine, at most so many a second, so that clients which come and go
// neither wait for subscribers nor flood them.
package events
