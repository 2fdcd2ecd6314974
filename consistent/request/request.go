// Package request sends requests to processors and awaits their answers, from programs that
// are no processor themselves.
//
//	r, err := request.New(ctx, session, "answers/shop-1")
//	if err != nil { … }
//	defer r.Close()
//	m, err := consistent.Event("shop-1", order.ID, "com.example.quote", order)
//	if err != nil { … }
//	m.Topic = "quotes"
//	answer, err := r.Do(ctx, m)
//
// A handler answers with consistent.Reply. It processes a request once, and its answer leaves
// once it is committed; so a request that is repeated after its answer has come, by a program that was
// started again for example, is not answered again. Have the handler keep in its state what
// such a program needs.
package request

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/holdfast-mqtt/holdfast/client"
	"github.com/holdfast-mqtt/holdfast/consistent/internal/event"
	"github.com/holdfast-mqtt/holdfast/consistent/publisher"
	"github.com/holdfast-mqtt/holdfast/internal/topic"
)

// Session is what a [Requester] stands on: a [client.Session] of its own, or a connection of
// package consistenttest. The Requester takes all messages of the session; it does not close it.
type Session interface {
	publisher.Conn
	Subscribe(ctx context.Context, filters ...string) error
	Messages(ctx context.Context) iter.Seq2[client.Delivery, error]
}

// Bound is how many requests may wait for their answers at once.
const Bound = 1024

// Requester sends requests. It is safe for concurrent use.
type Requester struct {
	publisher *publisher.Publisher
	topic     string // of the answers
	stop      context.CancelFunc
	ended     chan struct{} // closed when no more answers come

	mu      sync.Mutex
	waiting map[string]*pending // under mu: by Correlation Data
	err     error               // under mu: why no more answers come
}

// pending is a request that waits for its answer.
type pending struct {
	request client.Message
	callers int           // under Requester.mu
	done    chan struct{} // closed when answer is set
	answer  client.Message
}

// New makes a requester that gets its answers on a topic. Each requester has a topic of its own,
// to which no other program subscribes; with a session that outlives its connection it gets
// answers that came while the connection was lost. Options are those of the publisher that
// sends the requests.
func New(ctx context.Context, s Session, answers string, opts ...publisher.Option) (*Requester, error) {
	if !topic.ValidName([]byte(answers)) {
		return nil, fmt.Errorf("requester: %w: %q is not the name of a topic: answers need one, without wildcards", client.ErrInvalidOption, answers)
	}
	p, err := publisher.New(s, opts...)
	if err != nil {
		return nil, fmt.Errorf("requester: %w", err)
	}
	if err := s.Subscribe(ctx, answers); err != nil {
		return nil, fmt.Errorf("requester: %w", err)
	}
	receiving, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &Requester{publisher: p, topic: answers, stop: stop, ended: make(chan struct{}), waiting: make(map[string]*pending)}
	go r.receive(receiving, s)
	return r, nil
}

// Close ends the requester: calls of [Requester.Do] that wait fail with [client.ErrClosed].
func (r *Requester) Close() {
	r.stop()
	<-r.ended
}

func (r *Requester) receive(ctx context.Context, s Session) {
	defer close(r.ended)
	for d, err := range s.Messages(ctx) {
		if err != nil {
			if ctx.Err() != nil {
				err = client.ErrClosed
			}
			r.mu.Lock()
			r.err = err
			r.mu.Unlock()
			return
		}
		r.mu.Lock()
		if p := r.waiting[string(d.CorrelationData)]; p != nil && d.Topic == r.topic {
			p.answer = d.Message
			delete(r.waiting, string(d.CorrelationData))
			close(p.done)
		}
		r.mu.Unlock()
		d.Ack()
	}
}

// ErrTooMany: [Bound] requests wait for their answers.
var ErrTooMany = errors.New("too many requests wait for their answers: have fewer at once, or another requester")

// ErrOtherRequest: a request with the same Correlation Data and something else in it waits for
// its answer.
var ErrOtherRequest = errors.New("another request with the same Correlation Data waits for its answer: give each request an ID of its own")

// Do publishes a request, again until the server has it ([publisher.Publisher.Publish]), and
// waits for its answer until ctx ends. The request needs an identity (consistent.Event); it gets
// the requester's Response Topic, and unless it has Correlation Data its identity as that.
// Calls with the same request share one answer.
func (r *Requester) Do(ctx context.Context, m client.Message) (answer client.Message, err error) {
	m.ResponseTopic = r.topic
	if len(m.CorrelationData) == 0 {
		m.CorrelationData = []byte(event.ID(&m, nil))
	}
	p, err := r.expect(&m)
	if err != nil {
		return answer, fmt.Errorf("request to %q: %w", m.Topic, err)
	}
	defer r.forget(p)
	if err := r.publisher.Publish(ctx, m); err != nil {
		return answer, fmt.Errorf("request: %w", err)
	}
	select {
	case <-p.done:
		return p.answer, nil
	case <-ctx.Done():
		return answer, fmt.Errorf("request to %q: no answer: %w", m.Topic, context.Cause(ctx))
	case <-r.ended:
	}
	select {
	case <-p.done: // the last one
		return p.answer, nil
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return answer, fmt.Errorf("request to %q: no answer: %w", m.Topic, r.err)
}

// expect registers a request, before its answer can come.
func (r *Requester) expect(m *client.Message) (*pending, error) {
	if len(m.CorrelationData) == 0 {
		return nil, publisher.ErrNoIdentity
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.waiting[string(m.CorrelationData)]
	switch {
	case r.err != nil:
		return nil, r.err
	case p != nil && (p.request.Topic != m.Topic || !bytes.Equal(p.request.Payload, m.Payload)):
		return nil, ErrOtherRequest
	case p == nil && len(r.waiting) >= Bound:
		return nil, ErrTooMany
	case p == nil:
		p = &pending{request: *m, done: make(chan struct{})}
		r.waiting[string(m.CorrelationData)] = p
	}
	p.callers++
	return p, nil
}

// forget ends a call's wait.
func (r *Requester) forget(p *pending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.callers--
	key := string(p.request.CorrelationData)
	if p.callers == 0 && r.waiting[key] == p {
		delete(r.waiting, key)
	}
}
