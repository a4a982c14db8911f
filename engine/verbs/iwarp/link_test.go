package iwarp

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"o2ibd/engine/verbs"
)

func TestLink(t *testing.T) {
	if !interfaceUp("lo") {
		t.Error("lo is not up: these tests need it")
	}
	if interfaceUp("nosuchif") {
		t.Error("an interface that does not exist is up")
	}
	if verbs.IsBond("lo") || verbs.IsBond("") {
		t.Error("lo is a bond")
	}
	if _, err := os.Stat("/sys/class/net/lo"); err != nil {
		t.Error("no /sys/class/net: bonds cannot be told")
	}
	synctest.Test(t, func(t *testing.T) {
		up, asked := true, 0
		d := &device{link: link{name: "x", state: verbs.PortActive, up: func(string) bool { asked++; return up }}}
		var evs [4]verbs.AsyncEvent
		poll := func() []verbs.AsyncEvent {
			n, err := d.PollAsync(evs[:])
			if err != nil {
				t.Fatal(err)
			}
			return evs[:n]
		}
		for range 10 {
			if got := poll(); len(got) != 0 || asked != 1 {
				t.Fatalf("nothing changed: %v, looked %d times", got, asked)
			}
		}
		up = false
		time.Sleep(time.Second)
		if got := poll(); len(got) != 1 || got[0].Type != verbs.AsyncPortError || d.Info().State != verbs.PortDown {
			t.Fatalf("down: %v, %v", got, d.Info().State)
		}
		up = true
		time.Sleep(time.Second)
		if d.Info().State != verbs.PortActive {
			t.Fatal("still down")
		}
		if got := poll(); len(got) != 1 || got[0].Type != verbs.AsyncPortActive {
			t.Fatalf("up: %v", got)
		}
		if got := poll(); len(got) != 0 {
			t.Fatalf("told twice: %v", got)
		}
	})
}
