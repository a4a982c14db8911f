package tuning

// What a change is at.
const (
	PhaseRecording = "recording"
	PhaseApplying  = "applying"
)

// Running is the change that is being made; it is immutable.
type Running struct {
	ChangeID  string
	Who       string
	StartedAt int64     // milliseconds since the epoch
	Phase     string    // recording, applying
	Restarts  []Restart // NIs that it takes down and up again, as they were before
}

// Running is the change that is being made now, nil if none is.
func (s *Service) Running() *Running {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.running
}

func (s *Service) tell(r *Running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = r
}

func (s *Service) phase(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := *s.running
	r.Phase = phase
	s.running = &r
}
