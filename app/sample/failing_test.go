package sample_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"o2ibd/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failing is a store whose disk may be full.
type failing struct {
	*store.Store
	full bool
}

func (f *failing) AddMetricTail(ctx context.Context, rows ...store.MetricTail) error {
	if f.full {
		return store.ErrDiskFull
	}
	return f.Store.AddMetricTail(ctx, rows...)
}

func (f *failing) FoldMetrics(ctx context.Context, chunks []store.MetricChunk, tail []store.MetricTail, keep []store.MetricKeep, most int64) error {
	if f.full {
		return store.ErrDiskFull
	}
	return f.Store.FoldMetrics(ctx, chunks, tail, keep, most)
}
