package demo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"o2ibd/app/demo"
)

// The test binary is the node process too, so that pipes, signals and the parent's death are real.
func TestMain(m *testing.M) {
	if how := os.Getenv("O2IBD_TEST_NODE"); how != "" {
		os.Exit(child(how))
	}
	goleak.VerifyTestMain(m)
}

func child(how string) int {
	err := demo.Serve(context.Background(), os.Stdin, os.Stdout, func(ctx context.Context, s demo.Spec) (func(context.Context) error, error) {
		switch how {
		case "refuse":
			return nil, fmt.Errorf("port %d is in use", s.Service)
		case "vanish":
			os.Exit(3)
		}
		fmt.Fprintf(os.Stderr, "node %d on %s\n", s.Index, s.Addr)
		return func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return 1
	}
	return 0
}
