package bundle

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Versions is versions.json.
type Versions struct {
	O2ibd   string            `json:"o2ibd"`
	Go      string            `json:"go"`
	Kernel  string            `json:"kernel"`
	OS      string            `json:"os"`
	Arch    string            `json:"arch"`
	Modules map[string]string `json:"modules"` // the Go modules in the binary
	Build   map[string]string `json:"build"`   // how the binary was built
}

// ReadVersions asks the binary and the kernel.
func ReadVersions(o2ibd string) Versions {
	v := Versions{
		O2ibd: o2ibd, Go: runtime.Version(), Arch: runtime.GOARCH, OS: osName("/etc/os-release"),
		Modules: map[string]string{}, Build: map[string]string{},
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		v.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			v.Modules[m.Path] = m.Version
		}
		for _, s := range info.Settings {
			v.Build[s.Key] = s.Value
		}
	}
	return v
}

func osName(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return ""
}

// Host is host.json: what of the machine matters to us.
type Host struct {
	Name       string      `json:"name"`
	CPUs       int         `json:"cpus"`
	CPUModel   string      `json:"cpu_model"`
	MemTotalKB string      `json:"mem_total_kb"`
	Memlock    Limit       `json:"memlock"` // of this process, in bytes
	OpenFiles  Limit       `json:"open_files"`
	Interfaces []Interface `json:"interfaces"`
}

// Limit is a resource limit; -1 is no limit.
type Limit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// Interface is a network interface of the host.
type Interface struct {
	Name  string   `json:"name"`
	MTU   int      `json:"mtu"`
	Flags string   `json:"flags"`
	Addrs []string `json:"addrs"`
}

// ReadHost looks at the host.
func ReadHost() (Host, error) {
	h := Host{CPUs: runtime.NumCPU(), Memlock: limit(unix.RLIMIT_MEMLOCK), OpenFiles: limit(unix.RLIMIT_NOFILE)}
	h.Name, _ = os.Hostname()
	h.CPUModel = field("/proc/cpuinfo", "model name")
	h.MemTotalKB = strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB")
	interfaces, err := net.Interfaces()
	if err != nil {
		return h, fmt.Errorf("list the network interfaces: %w", err)
	}
	for _, i := range interfaces {
		one := Interface{Name: i.Name, MTU: i.MTU, Flags: i.Flags.String(), Addrs: []string{}}
		addrs, err := i.Addrs()
		if err != nil {
			return h, fmt.Errorf("addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			one.Addrs = append(one.Addrs, a.String())
		}
		h.Interfaces = append(h.Interfaces, one)
	}
	return h, nil
}

func limit(which int) Limit {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil {
		return Limit{}
	}
	one := func(v uint64) int64 {
		if v > 1<<63-1 {
			return -1
		}
		return int64(v)
	}
	return Limit{one(l.Cur), one(l.Max)}
}

// field is the value of the first line "name : value" of a file of /proc.
func field(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if key, value, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Kernel is kernel.json: the LNet modules of the kernel, if they are loaded.
type Kernel struct {
	Modules []Module `json:"modules"`
}

// Module is a kernel module as /sys/module shows it.
type Module struct {
	Name       string            `json:"name"`
	Version    string            `json:"version"`
	State      string            `json:"state"`
	Parameters map[string]string `json:"parameters"`
}

// kernelModules are LNet and the drivers below it.
var kernelModules = []string{"lnet", "ko2iblnd", "ksocklnd", "libcfs", "rdma_cm", "ib_core", "siw", "rdma_rxe", "mlx5_ib", "hfi1"}

// ReadKernel reads the modules below root, /sys/module. It only reads.
func ReadKernel(root string) Kernel {
	k := Kernel{Modules: []Module{}}
	for _, name := range kernelModules {
		dir := filepath.Join(root, name)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		m := Module{Name: name, Version: small(filepath.Join(dir, "version")), State: small(filepath.Join(dir, "initstate")), Parameters: map[string]string{}}
		files, _ := filepath.Glob(filepath.Join(dir, "parameters", "*"))
		for _, f := range files {
			m.Parameters[filepath.Base(f)] = small(f)
		}
		k.Modules = append(k.Modules, m)
	}
	return k
}

// small reads a file of one short value; "" where it cannot be read, as with parameters that only root may see.
func small(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// HostParts are the parts that need no appliance: versions, host, kernel.
func HostParts(version string) []Part {
	return []Part{
		Value("versions.json", ReadVersions(version)),
		{"host.json", func(_ context.Context, w io.Writer) error {
			h, err := ReadHost()
			if werr := JSON(w, h); werr != nil {
				return werr
			}
			return err
		}},
		Value("kernel.json", ReadKernel("/sys/module")),
	}
}

// ProfileParts are what the goroutines of this process do and where its memory is.
func ProfileParts() []Part {
	profile := func(name string, debug int) Part {
		return Part{"profiles/" + name + ".txt", func(_ context.Context, w io.Writer) error {
			return pprof.Lookup(name).WriteTo(w, debug)
		}}
	}
	return []Part{profile("goroutine", 1), profile("heap", 1)}
}

// LocalNames are the names of this host and of the person who runs this process, for NewRedactor.
func LocalNames() (hosts, users []string) {
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	for _, key := range []string{"USER", "LOGNAME", "SUDO_USER"} {
		if name := os.Getenv(key); name != "" && !slices.Contains(users, name) {
			users = append(users, name)
		}
	}
	return hosts, users
}
