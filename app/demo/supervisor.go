package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// State of a node.
type State string

const (
	Running State = "running"
	Stopped State = "stopped" // by an operator, or its process ended
	Failed  State = "failed"  // its process did not come up
)

// Status is a node as the page shows it.
type Status struct {
	Spec  Spec
	State State
	Since time.Time
	PID   int    // 0 unless running
	Error string // why it is stopped or failed; "" after an operator's stop
}

// Process is a node's process as the supervisor sees it.
type Process interface {
	PID() int
	// Ready waits until the node is up; its error is the node's own word.
	Ready(ctx context.Context) error
	// Stop asks the process to end; it may be called more than once. Kill does not ask.
	Stop()
	Kill()
	// Done is closed once the process has ended and was waited for; Err then says how.
	Done() <-chan struct{}
	Err() error
}

// Bounds of a node's start and stop.
const (
	readyWithin = 15 * time.Second
	stopWithin  = 5 * time.Second
)

// ErrNoNode says that there is no node of that number.
var ErrNoNode = errors.New("no such demo node")

// Supervisor starts and stops the nodes' processes and knows how each one is. It may be used by any
// goroutine.
type Supervisor struct {
	spawn   func(Spec) (Process, error)
	changed func(Status)

	mu     sync.Mutex
	closed bool
	nodes  []*node
	watch  sync.WaitGroup
}

type node struct {
	turn sync.Mutex // held while the node starts or stops, before Supervisor.mu

	// Under Supervisor.mu.
	status   Status
	process  Process
	stopping bool // the end that comes was asked for
}

// NewSupervisor makes a supervisor of nodes that are all stopped. changed, which may be nil, is called
// after each change of a state and must not call the supervisor.
func NewSupervisor(specs []Spec, spawn func(Spec) (Process, error), changed func(Status)) *Supervisor {
	s := &Supervisor{spawn: spawn, changed: changed}
	for _, spec := range specs {
		s.nodes = append(s.nodes, &node{status: Status{Spec: spec, State: Stopped, Since: time.Now()}})
	}
	return s
}

// Status lists all nodes.
func (s *Supervisor) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Status, len(s.nodes))
	for i, n := range s.nodes {
		list[i] = n.status
	}
	return list
}

// StartAll starts every node, all at once. The errors of those that fail are joined; the others run.
func (s *Supervisor) StartAll(ctx context.Context) error {
	errs := make([]error, len(s.nodes))
	var wg sync.WaitGroup
	for i := range s.nodes {
		wg.Go(func() { errs[i] = s.Start(ctx, i+1) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Start starts node i, from 1, and returns when it is up. A running node is left as it is.
func (s *Supervisor) Start(ctx context.Context, i int) error {
	n, err := s.node(i)
	if err != nil {
		return err
	}
	n.turn.Lock()
	defer n.turn.Unlock()
	s.mu.Lock()
	running, closed := n.status.State == Running, s.closed
	s.mu.Unlock()
	if running {
		return nil
	}
	if closed {
		return fmt.Errorf("demo node %d: the demo has ended", i)
	}
	p, err := s.spawn(n.status.Spec)
	if err != nil {
		s.set(n, Failed, 0, err.Error())
		return fmt.Errorf("start demo node %d: %w", i, err)
	}
	s.mu.Lock()
	n.process, n.stopping = p, false
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		p.Kill()
		<-p.Done()
		s.set(n, Failed, 0, err.Error())
		return fmt.Errorf("start demo node %d: %w", i, err)
	}
	s.set(n, Running, p.PID(), "")
	s.watch.Go(func() { s.await(n, p) })
	return nil
}

// await sees a running node's process end.
func (s *Supervisor) await(n *node, p Process) {
	<-p.Done()
	s.mu.Lock()
	asked := n.stopping
	s.mu.Unlock()
	text := ""
	if !asked {
		text = "its process ended"
		if err := p.Err(); err != nil {
			text += ": " + err.Error()
		}
	}
	s.set(n, Stopped, 0, text)
}

// Stop ends node i, from 1, and returns when its process is gone. A stopped node is left as it is.
func (s *Supervisor) Stop(ctx context.Context, i int) error {
	n, err := s.node(i)
	if err != nil {
		return err
	}
	n.turn.Lock()
	defer n.turn.Unlock()
	s.mu.Lock()
	p, running := n.process, n.status.State == Running
	n.stopping = true
	s.mu.Unlock()
	if !running {
		return nil
	}
	p.Stop()
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
	case <-time.After(stopWithin):
		p.Kill()
	}
	<-p.Done()
	s.set(n, Stopped, 0, "")
	return nil
}

// Close ends all nodes and returns when every process is gone.
func (s *Supervisor) Close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var wg sync.WaitGroup
	for i := range s.nodes {
		wg.Go(func() { s.Stop(ctx, i+1) })
	}
	wg.Wait()
	s.watch.Wait()
}

func (s *Supervisor) node(i int) (*node, error) {
	if i < 1 || i > len(s.nodes) {
		return nil, fmt.Errorf("demo node %d: 1 to %d are there: %w", i, len(s.nodes), ErrNoNode)
	}
	return s.nodes[i-1], nil
}

// set changes a node's state; the same state again changes nothing, so that Stop and await tell once.
func (s *Supervisor) set(n *node, state State, pid int, text string) {
	s.mu.Lock()
	if n.status.State == state && state == Stopped {
		s.mu.Unlock()
		return
	}
	n.status.State, n.status.PID, n.status.Error, n.status.Since = state, pid, text, time.Now()
	status := n.status
	s.mu.Unlock()
	if s.changed != nil {
		s.changed(status)
	}
}
