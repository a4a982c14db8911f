package tuning_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"o2ibd/app/tuning"
	"o2ibd/engine/tunables"
	"o2ibd/store"
)

// killed is the environment variable that makes the test binary a process to kill: the state folder.
const killed = "O2IBD_TEST_KILLED"

// changeUntilKilled makes one change after another, each of three settings with its number in them, and says
// of each before and after. Every third must be confirmed; it confirms the one half of these and takes the
// other half back.
func changeUntilKilled(dir string, out io.Writer) error {
	ctx := context.Background()
	st, err := store.Open(ctx, dir, store.Options{})
	if err != nil {
		return err
	}
	apply := tuning.ApplierFunc(func(context.Context, tunables.Values, tunables.Values) error { return nil })
	s, err := tuning.New(ctx, tuning.Options{Store: st, Applier: apply, Now: time.Now, IDs: rand.Reader})
	if err != nil {
		return err
	}
	go s.Run(ctx)
	say := func(what string, args ...any) { fmt.Fprintf(out, what+"\n", args...) }
	first, _ := strconv.Atoi(s.Values()[scoped("timeout")])
	say("start %d", first)
	for i := first + 1; ; i++ {
		n := strconv.Itoa(1000 + i)
		say("try %d", i)
		r := tuning.Request{Changes: changes("ntx", n, "fmr_pool_size", n, "timeout", strconv.Itoa(i)), Who: "ada", How: "page"}
		if i%3 == 0 {
			r.ConfirmWithin = time.Hour
		}
		res, err := s.Change(ctx, r)
		if err != nil {
			return err
		}
		say("done %d", i)
		switch i % 6 {
		case 3: // waits: confirm it
			if _, err := s.Confirm(ctx, res.ChangeID, "ada", "page", ""); err != nil {
				return err
			}
			say("confirmed %d", i)
		case 0: // waits: take it back
			say("taking back %d", i)
			if _, err := s.Revert(ctx, tuning.RevertRequest{ChangeID: res.ChangeID, Who: "ada", How: "page"}); err != nil {
				return err
			}
			say("back %d", i)
		}
	}
}

// A process that changes tunables is killed 200 times, anywhere. Whatever it said was done is in force, no
// change is half in force, and the history is whole.
func TestKilled(t *testing.T) {
	const kills = 200
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("O2IBD_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d", seed)
	rnd := mrand.New(mrand.NewPCG(seed, 0))
	dir := t.TempDir()
	inMiddle, acknowledged := 0, 0
	for k := range kills {
		acked, tried, back := killOnce(t, dir, rnd)
		st, err := store.Open(t.Context(), dir, store.Options{})
		if err != nil {
			t.Fatalf("kill %d: %v", k, err)
		}
		s, err := tuning.New(t.Context(), tuning.Options{Store: st, Applier: &engine{}, Now: time.Now, IDs: rand.Reader})
		if err != nil {
			t.Fatalf("kill %d: %v", k, err)
		}
		inMiddle += len(s.Interrupted())
		v := s.Values()
		now, _ := strconv.Atoi(v[scoped("timeout")])
		if want := strconv.Itoa(1000 + now); now != 0 && (v[scoped("ntx")] != want || v[scoped("fmr_pool_size")] != want) || now == 0 && len(v) != 0 {
			t.Fatalf("kill %d: half in force: %v", k, v)
		}
		if now != acked && now != tried && now != back {
			t.Fatalf("kill %d: %d is in force; %d was acknowledged last, %d was tried, %d would be back (-1: none)", k, now, acked, tried, back)
		}
		acknowledged += acked
		if p := s.Pending(); p != nil { // the next process goes on from it
			if _, err := s.Confirm(t.Context(), p.ChangeID, "ada", "page", ""); err != nil {
				t.Fatalf("kill %d: %v", k, err)
			}
		}
		if verdict, err := s.Verify(t.Context()); err != nil || !verdict.Whole {
			t.Fatalf("kill %d: %+v, %v", k, verdict, err)
		}
		st.Close()
	}
	t.Logf("%d kills, %d in the middle of a change, last acknowledged changes add up to %d", kills, inMiddle, acknowledged)
	if inMiddle == 0 || acknowledged == 0 {
		t.Errorf("%d kills met a change in the middle, and %d changes were acknowledged: the test proves nothing", inMiddle, acknowledged)
	}
}

// killOnce starts a process and kills it. acked is the value that it said was in force last; tried the one
// that it was about to make, back the one that a change was being taken back to, or -1.
func killOnce(t *testing.T, dir string, rnd *mrand.Rand) (acked, tried, back int) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), killed+"="+dir)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	after, delay := rnd.IntN(12), time.Duration(rnd.IntN(3000))*time.Microsecond
	before := 0 // in force before the last change
	acked, tried, back = 0, -1, -1
	lines := 0
	for scan := bufio.NewScanner(out); scan.Scan(); lines++ {
		if lines == after {
			time.AfterFunc(delay, func() { c.Process.Kill() })
		}
		f := strings.Fields(scan.Text())
		n, err := strconv.Atoi(f[len(f)-1])
		if err != nil {
			t.Fatalf("it said %q", scan.Text())
		}
		switch f[0] {
		case "start":
			acked = n
		case "try":
			tried = n
		case "done":
			before, acked, tried = acked, n, -1
		case "taking":
			back = before
		case "back":
			acked, back = before, -1
		}
	}
	if err := c.Wait(); err == nil || c.ProcessState.ExitCode() != -1 {
		t.Fatalf("it ended by itself: %v", err)
	}
	return acked, tried, back
}
