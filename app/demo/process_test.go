package demo_test

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"o2ibd/app/demo"
)

func spawner(t *testing.T, how string, lines func(int, string)) *demo.Spawner {
	t.Helper()
	t.Setenv("O2IBD_TEST_NODE", how)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if lines == nil {
		lines = func(int, string) {}
	}
	s := demo.NewSpawner(exe, nil, lines)
	t.Cleanup(s.Close)
	return s
}

var spec = demo.Spec{Index: 2, NID: 0x000500007f000003, Addr: netip.MustParseAddr("127.0.0.3"), Service: 9870}

func TestProcessLife(t *testing.T) {
	lines := make(chan string, 10)
	p, err := spawner(t, "run", func(i int, line string) { lines <- line }).Spawn(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if line := <-lines; line != "node 2 on 127.0.0.3" {
		t.Errorf("the child wrote %q", line)
	}
	p.Stop()
	<-p.Done()
	if p.Err() != nil {
		t.Errorf("after its stdin closed the child ended with %v", p.Err())
	}
}

func TestProcessKilled(t *testing.T) {
	p, err := spawner(t, "run", nil).Spawn(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Err() == nil || !strings.Contains(p.Err().Error(), "killed") {
		t.Errorf("error of a killed child is %v", p.Err())
	}
}

func TestProcessNotReady(t *testing.T) {
	for how, want := range map[string]string{
		"refuse": "port 9870 is in use",
		"vanish": "its process ended before it was ready",
		"misled": "read the order: it names no NID",
	} {
		t.Run(how, func(t *testing.T) {
			spec := spec
			if how == "misled" {
				spec.NID = 0
			}
			p, err := spawner(t, how, nil).Spawn(spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Ready(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("ready: %v, want %q", err, want)
			}
			p.Kill()
			<-p.Done()
		})
	}
}

// The thread that started the children is their parent for the kernel: its end is what they see when the
// appliance is killed.
func TestProcessDiesWithParent(t *testing.T) {
	s := spawner(t, "run", nil)
	p, err := s.Spawn(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Close()
	<-p.Done()
	if p.Err() == nil || !strings.Contains(p.Err().Error(), "killed") {
		t.Errorf("error of an orphan is %v", p.Err())
	}
}

func TestSpawnNothing(t *testing.T) {
	s := demo.NewSpawner("/nowhere/o2ibd", nil, nil)
	defer s.Close()
	if _, err := s.Spawn(spec); err == nil || !strings.Contains(err.Error(), "/nowhere/o2ibd") {
		t.Errorf("error is %v", err)
	}
}
