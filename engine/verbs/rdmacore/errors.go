//go:build !nordma

package rdmacore

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"o2ibd/engine/verbs"
)

// callError is a call of rdma-core that failed: which, on what, why, and what an operator can do.
type callError struct {
	call  string // with what it was called on: "ibv_reg_mr of 4096 bytes on mlx5_0"
	errno syscall.Errno
	also  error  // an error of package verbs, or nil
	hint  string // "" where there is nothing to say
}

func (e *callError) Error() string {
	s := fmt.Sprintf("%s: %v", e.call, e.errno)
	if e.also != nil {
		s += " (" + e.also.Error() + ")"
	}
	if e.hint != "" {
		s += ": " + e.hint
	}
	return s
}

func (e *callError) Unwrap() []error {
	if e.also != nil {
		return []error{e.errno, e.also}
	}
	return []error{e.errno}
}

func failed(errno syscall.Errno, hint, call string, args ...any) *callError {
	return &callError{call: fmt.Sprintf(call, args...), errno: errno, hint: hint}
}

// errnoOf is what cgo found in errno; a call may fail without setting it.
func errnoOf(err error) syscall.Errno {
	if e, ok := err.(syscall.Errno); ok && e != 0 {
		return e
	}
	return unix.EIO
}

// accessHint says what is missing when the device files cannot be used.
func accessHint(errno syscall.Errno, file, module string) string {
	switch errno {
	case unix.ENOENT, unix.ENODEV, unix.ENXIO:
		return fmt.Sprintf("is the module loaded? try: modprobe %s", module)
	case unix.EACCES, unix.EPERM:
		return fmt.Sprintf("this user (uid %d) may not open %s: give it access by a udev rule or a group, or run with the device passed in", os.Getuid(), file)
	case unix.EMFILE, unix.ENFILE:
		return "no file descriptors are left: raise nofile (LimitNOFILE= in the unit, ulimit -n)"
	}
	return ""
}

// bindHint is for addresses and ports that cannot be had.
func bindHint(errno syscall.Errno, port uint16) string {
	switch errno {
	case unix.EACCES, unix.EPERM:
		return fmt.Sprintf("port %d is privileged: give the binary CAP_NET_BIND_SERVICE", port)
	case unix.EADDRINUSE:
		return fmt.Sprintf("port %d is taken; if it is the o2ib port, the kernel's own ko2iblnd may be loaded (lsmod) and must not be", port)
	case unix.ENODEV:
		return "no RDMA device stands on that interface: see rdma link"
	case unix.EADDRNOTAVAIL:
		return "no interface of this host has that address: see ip address"
	}
	return ""
}

// memlock tells how much memory may be pinned, how much is, and how much is needed for n bytes more.
func memlock(n uint64) string {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) != nil {
		return ""
	}
	pinned := statusKiB("VmPin:") << 10
	if lim.Cur == unix.RLIM_INFINITY {
		return fmt.Sprintf("memlock is unlimited and %d bytes are pinned: the device or the host is out of memory for this", pinned)
	}
	return fmt.Sprintf("memlock allows %d bytes, %d are pinned and %d more were asked for: set it to at least %d (LimitMEMLOCK= in the unit, ulimit -l, docker --ulimit memlock=-1)",
		lim.Cur, pinned, n, pinned+n)
}

// statusKiB is a figure of /proc/self/status, 0 where it is not there.
func statusKiB(name string) uint64 {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// postError turns a result of hca_post into an error.
func postError(code int, sends bool, dev string) error {
	what := "receive"
	if sends {
		what = "send"
	}
	switch code {
	case 0:
		return nil
	case resultFull:
		return fmt.Errorf("posting a %s on %s: %w", what, dev, verbs.ErrQueueFull)
	case resultState:
		return fmt.Errorf("posting a %s on %s before the connection is established: %w", what, dev, verbs.ErrState)
	}
	errno := syscall.Errno(code)
	e := failed(errno, "", "ibv_post_%s on %s", map[bool]string{false: "recv", true: "send"}[sends], dev)
	if errno == unix.ENOMEM {
		e.also = verbs.ErrQueueFull
	}
	return e
}
