package tuning_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killed); dir != "" {
		fmt.Fprintln(os.Stderr, changeUntilKilled(dir, os.Stdout))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
