package demo_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"o2ibd/app/demo"
)

// fakeProcess ends when it is told to, unless it is deaf: then only Kill helps.
type fakeProcess struct {
	pid   int
	ready error
	hang  bool
	deaf  bool
	done  chan struct{}
	err   error
	log   *[]string
}

func (p *fakeProcess) PID() int { return p.pid }
func (p *fakeProcess) Ready(ctx context.Context) error {
	if p.hang {
		<-ctx.Done()
		return errors.New("it was not ready in time")
	}
	return p.ready
}
func (p *fakeProcess) Stop() {
	*p.log = append(*p.log, "stop")
	if !p.deaf {
		p.end(nil)
	}
}
func (p *fakeProcess) Kill()                 { *p.log = append(*p.log, "kill"); p.end(errors.New("signal: killed")) }
func (p *fakeProcess) Done() <-chan struct{} { return p.done }
func (p *fakeProcess) Err() error            { return p.err }
func (p *fakeProcess) end(err error) {
	select {
	case <-p.done:
	default:
		p.err = err
		close(p.done)
	}
}

func TestSupervisor(t *testing.T) {
	tests := []struct {
		name    string
		process fakeProcess
		spawn   error
		do      func(t *testing.T, s *demo.Supervisor, p *fakeProcess)
		want    []string // states in order
		log     []string
	}{
		{
			name: "start and stop",
			do: func(t *testing.T, s *demo.Supervisor, p *fakeProcess) {
				if st := s.Status()[0]; st.PID != 7 {
					t.Errorf("pid of the running node is %d, want 7", st.PID)
				}
				if err := s.Start(t.Context(), 1); err != nil {
					t.Errorf("start of a running node: %v", err)
				}
				if err := s.Stop(t.Context(), 1); err != nil {
					t.Error(err)
				}
				if err := s.Stop(t.Context(), 1); err != nil {
					t.Errorf("stop of a stopped node: %v", err)
				}
			},
			want: []string{"running", "stopped"},
			log:  []string{"stop"},
		},
		{
			name: "killed from outside",
			do: func(t *testing.T, s *demo.Supervisor, p *fakeProcess) {
				time.Sleep(time.Minute)
				p.end(errors.New("signal: killed"))
				synctest.Wait()
				st := s.Status()[0]
				if st.PID != 0 || !st.Since.Equal(time.Now()) {
					t.Errorf("after the kill: pid %d since %v, want 0 since now", st.PID, st.Since)
				}
			},
			want: []string{"running", "stopped its process ended: signal: killed"},
		},
		{
			name:    "deaf to stop",
			process: fakeProcess{deaf: true},
			do: func(t *testing.T, s *demo.Supervisor, p *fakeProcess) {
				if err := s.Stop(t.Context(), 1); err != nil {
					t.Error(err)
				}
			},
			want: []string{"running", "stopped"},
			log:  []string{"stop", "kill"},
		},
		{
			name:    "says an error",
			process: fakeProcess{ready: errors.New("port 9870 is in use")},
			want:    []string{"failed port 9870 is in use"},
			log:     []string{"kill"},
		},
		{
			name:    "never ready",
			process: fakeProcess{hang: true},
			want:    []string{"failed it was not ready in time"},
			log:     []string{"kill"},
		},
		{
			name:  "cannot be spawned",
			spawn: errors.New("no such file"),
			want:  []string{"failed no such file"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log, states []string
				p := tt.process
				p.pid, p.done, p.log = 7, make(chan struct{}), &log
				s := demo.NewSupervisor([]demo.Spec{{Index: 1}}, func(demo.Spec) (demo.Process, error) {
					return &p, tt.spawn
				}, func(st demo.Status) {
					states = append(states, strings.TrimSpace(string(st.State)+" "+st.Error))
				})
				err := s.Start(t.Context(), 1)
				if failed := strings.HasPrefix(tt.want[0], "failed"); failed != (err != nil) {
					t.Fatalf("start: error %v", err)
				}
				if tt.do != nil {
					tt.do(t, s, &p)
				}
				synctest.Wait()
				if diff := cmp.Diff(tt.want, states); diff != "" {
					t.Errorf("states (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.log, log); diff != "" {
					t.Errorf("orders to the process (-want +got):\n%s", diff)
				}
				s.Close(t.Context())
			})
		})
	}
}

func TestSupervisorNumbers(t *testing.T) {
	s := demo.NewSupervisor(make([]demo.Spec, 2), nil, nil)
	for _, i := range []int{-1, 0, 3} {
		if err := s.Start(t.Context(), i); !errors.Is(err, demo.ErrNoNode) {
			t.Errorf("start of node %d: %v, want ErrNoNode", i, err)
		}
		if err := s.Stop(t.Context(), i); !errors.Is(err, demo.ErrNoNode) {
			t.Errorf("stop of node %d: %v, want ErrNoNode", i, err)
		}
	}
}
