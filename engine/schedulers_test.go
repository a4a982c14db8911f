package engine

import "testing"

// TestSchedulers: how many schedulers a CPT gets by its CPUs and by nscheds (spec o2iblnd 8.2).
func TestSchedulers(t *testing.T) {
	for _, row := range []struct{ nscheds, cpus, want int }{
		{0, 0, 1}, {0, 1, 1}, {0, 2, 2}, {0, 4, 2}, {0, 6, 3}, {0, 8, 4}, {0, 64, 4},
		{1, 8, 1}, {8, 4, 4}, {6, 8, 6},
	} {
		if got := schedulers(row.nscheds, row.cpus); got != row.want {
			t.Errorf("nscheds %d with %d CPUs: %d schedulers, wanted %d", row.nscheds, row.cpus, got, row.want)
		}
	}
}
