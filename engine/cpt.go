package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nodes is where Linux lists NUMA nodes.
const nodes = "/sys/devices/system/node"

// hostCPTs are the CPUs of each NUMA node that this process may use, one CPT a node (spec o2iblnd 8.2); one
// CPT of all CPUs where nothing is known.
func hostCPTs(dir string) [][]int {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return oneCPT()
	}
	files, err := filepath.Glob(filepath.Join(dir, "node[0-9]*", "cpulist"))
	if err != nil {
		return oneCPT()
	}
	var all [][]int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		cpus, err := ParseCPUs(strings.TrimSpace(string(text)))
		if err != nil {
			continue
		}
		cpus = slices.DeleteFunc(cpus, func(c int) bool { return !may.IsSet(c) })
		if len(cpus) > 0 {
			all = append(all, cpus)
		}
	}
	if len(all) == 0 {
		return oneCPT()
	}
	slices.SortFunc(all, func(a, b []int) int { return a[0] - b[0] })
	return all
}

func oneCPT() [][]int {
	all := make([]int, runtime.NumCPU())
	for i := range all {
		all[i] = i
	}
	return [][]int{all}
}

// maxCPU bounds the CPU numbers that are understood.
const maxCPU = 1024

// ParseCPUs reads a list of CPUs as Linux writes it, "0-3,8".
func ParseCPUs(text string) ([]int, error) {
	var cpus []int
	for _, part := range strings.Split(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || a < 0 || b < a || b >= maxCPU {
			return nil, fmt.Errorf("CPUs %q: a list such as 0-3,8 with numbers below %d", text, maxCPU)
		}
		for ; a <= b; a++ {
			cpus = append(cpus, a)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// CheckCPTs says what is wrong with groups of CPUs: each needs one, and none may be in two.
func CheckCPTs(cpts [][]int) error {
	seen := make(map[int]int)
	for i, cpus := range cpts {
		if len(cpus) == 0 {
			return fmt.Errorf("CPT %d has no CPU", i)
		}
		for _, c := range cpus {
			if j, ok := seen[c]; ok {
				return fmt.Errorf("CPU %d is in the CPTs %d and %d: it can be in one only", c, j, i)
			}
			seen[c] = i
		}
	}
	return nil
}
