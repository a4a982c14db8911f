package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"o2ibd/engine/tunables"
	"o2ibd/engine/wire"
)

// Spec is what a node process is told.
type Spec struct {
	Index    int             `json:"index"` // from 1
	Net      string          `json:"net"`
	NID      wire.NID        `json:"nid"`
	Addr     netip.Addr      `json:"addr"`
	Service  int             `json:"service"` // port of every node
	Peers    []wire.NID      `json:"peers"`
	Tunables tunables.Values `json:"tunables"`
}

// The one line of a node process: this, or an error.
const readyLine = "ready"

// maxLine bounds a line of a child's output.
const maxLine = 64 << 10

// Spawner starts node processes. The kernel kills a child whose parent thread ends, so one thread, which
// the Spawner keeps, starts them all.
type Spawner struct {
	path  string
	args  []string
	lines func(index int, line string)
	jobs  chan func()
	once  sync.Once
}

// NewSpawner makes a spawner that runs path with args; lines, called from several goroutines, takes what
// the children write on stderr.
func NewSpawner(path string, args []string, lines func(index int, line string)) *Spawner {
	s := &Spawner{path: path, args: args, lines: lines, jobs: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// Close ends the thread, and with it every child that still runs.
func (s *Spawner) Close() { s.once.Do(func() { close(s.jobs) }) }

// Spawn starts a node process. It must not be called after Close.
func (s *Spawner) Spawn(spec Spec) (Process, error) {
	order, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("write the order: %w", err)
	}
	cmd := exec.Command(s.path, s.args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // a Ctrl-C at the terminal is for the appliance, which stops its nodes itself
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	s.jobs <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.path, err)
	}
	p := &process{cmd: cmd, stdin: stdin, ready: make(chan error, 1), done: make(chan struct{})}
	var readers sync.WaitGroup
	readers.Go(func() {
		p.ready <- readReady(stdout)
		io.Copy(io.Discard, stdout) // a child never blocks on us
	})
	readers.Go(func() {
		eachLine(stderr, func(line string) { s.lines(spec.Index, line) })
	})
	go func() {
		// The order fits the pipe's buffer unless the child never reads; then Stop closes the pipe.
		if _, err := stdin.Write(order); err != nil {
			p.Stop()
		}
	}()
	go func() {
		readers.Wait()
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan error
	done  chan struct{}
	err   error // after done
}

func (p *process) PID() int              { return p.cmd.Process.Pid }
func (p *process) Done() <-chan struct{} { return p.done }
func (p *process) Err() error            { return p.err }
func (p *process) Stop()                 { p.stdin.Close() }
func (p *process) Kill()                 { p.cmd.Process.Kill() }

func (p *process) Ready(ctx context.Context) error {
	select {
	case err := <-p.ready:
		return err
	case <-ctx.Done():
		return errors.New("it was not ready in time")
	}
}

// readReady reads the child's one line.
func readReady(r io.Reader) error {
	line, err := bufio.NewReader(io.LimitReader(r, maxLine)).ReadString('\n')
	line = strings.TrimSpace(line)
	switch {
	case line == readyLine:
		return nil
	case line != "":
		return errors.New(line)
	case err != nil:
		return errors.New("its process ended before it was ready")
	}
	return errors.New("it wrote an empty line")
}

func eachLine(r io.Reader, do func(string)) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		do(sc.Text())
	}
	io.Copy(io.Discard, r)
}

// Serve is the child's side: it reads the Spec from in, runs up to bring the node up, says so on out, and
// runs the node until ctx or in ends. The error was said on out too when the node did not come up.
func Serve(ctx context.Context, in io.Reader, out io.Writer, up func(context.Context, Spec) (run func(context.Context) error, err error)) error {
	var spec Spec
	br := bufio.NewReader(in)
	if err := json.NewDecoder(br).Decode(&spec); err != nil {
		return refuse(out, fmt.Errorf("read the order: %w", err))
	}
	if spec.NID == 0 {
		return refuse(out, errors.New("read the order: it names no NID"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process: a read of stdin cannot be taken back
		io.Copy(io.Discard, br)
		cancel()
	}()
	run, err := up(ctx, spec)
	if err != nil {
		return refuse(out, err)
	}
	if _, err := fmt.Fprintln(out, readyLine); err != nil {
		return fmt.Errorf("demo node %d: tell the appliance: %w", spec.Index, err)
	}
	return run(ctx)
}

// refuse says on the one line why the node does not come up.
func refuse(out io.Writer, err error) error {
	_, werr := fmt.Fprintln(out, strings.ReplaceAll(err.Error(), "\n", " "))
	return errors.Join(err, werr)
}
