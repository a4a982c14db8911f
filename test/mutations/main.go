// Command mutations breaks the engine on purpose, one line at a time, and runs the tests that have to
// notice. A mutant that no test notices is a hole in the tests: its name is printed and the run fails.
// The tree is never touched: `go test -overlay` reads each mutated file from a folder of its own.
//
//	go run ./test/mutations [-run regexp] [-v]
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
)

// mutation is one fault: in file, old becomes new, and a test of pkg that matches run has to fail.
type mutation struct {
	name string
	file string // from the root of the module
	old  string // must be there exactly once
	new  string
	pkg  string // whose tests must notice; "": the package of file
	run  string // which of them; "": all
}

// limit bounds the tests of one mutant: one that hangs is noticed too.
const limit = "60s"

func main() {
	log.SetFlags(0)
	only := flag.String("run", "", "regular expression of the mutations to try")
	verbose := flag.Bool("v", false, "print what the tests said")
	workers := flag.Int("workers", runtime.NumCPU(), "mutants at once")
	flag.Parse()
	re, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		log.Fatalf("find the root of the module: %v", err)
	}
	root := strings.TrimSpace(string(out))
	var chosen []mutation
	for _, m := range list {
		if m.pkg == "" {
			m.pkg = "./" + filepath.Dir(m.file)
		}
		if re.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if err := sound(root, chosen); err != nil {
		log.Fatal(err)
	}
	start := time.Now()
	failed := try(root, chosen, *workers, *verbose)
	fmt.Printf("%d mutants, %d noticed, %.0f s\n", len(chosen), len(chosen)-len(failed), time.Since(start).Seconds())
	if len(failed) > 0 {
		log.Fatalf("not noticed, or not sound:\n  %s", strings.Join(failed, "\n  "))
	}
}

// sound fails where a mutation is not what it says, or where its tests fail without it.
func sound(root string, chosen []mutation) error {
	var errs []error
	pkgs := make(map[string]bool)
	for _, m := range chosen {
		if _, err := m.apply(root); err != nil {
			errs = append(errs, err)
		}
		pkgs[m.pkg] = true
	}
	args := []string{"test"}
	for p := range pkgs {
		args = append(args, p)
	}
	if len(errs) == 0 && len(pkgs) > 0 {
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("the tests fail without a mutation: %w\n%s", err, out))
		}
	}
	return errors.Join(errs...)
}

// apply gives the mutated text of m's file.
func (m *mutation) apply(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	if n := bytes.Count(text, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("%s: %s has %q %d times, it must be there once", m.name, m.file, m.old, n)
	}
	return bytes.Replace(text, []byte(m.old), []byte(m.new), 1), nil
}

// try runs the mutants and gives the names of those that got by.
func try(root string, chosen []mutation, workers int, verbose bool) (failed []string) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	queue := make(chan mutation)
	for range max(workers, 1) {
		wg.Go(func() {
			for m := range queue {
				start := time.Now()
				said, err := m.test(root)
				mu.Lock()
				result := "noticed"
				if err != nil {
					result = err.Error()
					failed = append(failed, m.name+": "+result)
				}
				fmt.Printf("%4.1f s  %-55s %s\n", time.Since(start).Seconds(), m.name, result)
				if verbose {
					fmt.Printf("%s\n", said)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range chosen {
		queue <- m
	}
	close(queue)
	wg.Wait()
	return failed
}

// test runs the tests against m. No error means that one of them failed.
func (m *mutation) test(root string) (said []byte, err error) {
	dir, err := os.MkdirTemp("", "mutation")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	text, err := m.apply(root)
	if err != nil {
		return nil, err
	}
	copied := filepath.Join(dir, filepath.Base(m.file))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.file): copied}})
	if err != nil {
		return nil, err
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := errors.Join(os.WriteFile(copied, text, 0o600), os.WriteFile(overlayFile, overlay, 0o600)); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "test", "-overlay", overlayFile, "-vet=off", "-failfast", "-timeout", limit, "-run", m.run, m.pkg)
	cmd.Dir = root
	said, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return said, errors.New("NOT NOTICED")
	case !errors.As(err, &exit):
		return said, err
	case bytes.Contains(said, []byte("[build failed]")) || bytes.Contains(said, []byte("[setup failed]")):
		return said, fmt.Errorf("does not compile: %s", said)
	}
	return said, nil
}
