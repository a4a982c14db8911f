package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"o2ibd/app"
	"o2ibd/test/fabric"
	"o2ibd/web"
	"o2ibd/web/live"
)

const (
	viewerPeers = 10_000
	viewerCount = 100
	viewerRows  = 100
	servesPage  = "O2IBD_BENCH_PAGE" // set in the process that serves the page: a state folder
)

// viewers measures what people who look cost: the page of an appliance with 10,000 peers, in a process of
// its own, first with nobody and then with 100 viewers of 100 rows at 2 Hz, a tenth of which change.
func viewers(d time.Duration) {
	dir, err := os.MkdirTemp("", "o2ibd-bench-")
	orStop(err)
	defer os.RemoveAll(dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), servesPage+"="+dir), os.Stderr
	in, err := cmd.StdinPipe()
	orStop(err)
	out, err := cmd.StdoutPipe()
	orStop(err)
	orStop(cmd.Start())
	defer cmd.Wait()
	defer in.Close() // it ends when nobody holds the other end
	var at struct{ URL, Key string }
	orStop(json.NewDecoder(out).Decode(&at))

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var bytes, frames atomic.Int64
	onWire := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return countedConn{c, &bytes}, err
	}}}
	open := func() *websocket.Conn {
		c, _, err := websocket.Dial(ctx, strings.Replace(at.URL, "http", "ws", 1)+"/api/v1/live", &websocket.DialOptions{
			Subprotocols: []string{live.Subprotocol}, HTTPHeader: http.Header{"Authorization": {"Bearer " + at.Key}},
			HTTPClient: onWire, CompressionMode: websocket.CompressionNoContextTakeover, // as browsers ask for
		})
		orStop(err)
		c.SetReadLimit(1 << 20)
		return c
	}
	idle := open() // somebody who looks at nothing keeps the snapshots at the same pace
	defer idle.CloseNow()
	idle.CloseRead(ctx)
	time.Sleep(time.Second)
	alone := cpu(cmd.Process.Pid, d)

	var wg sync.WaitGroup
	sorts, filters := []string{"", "nid", "-tx_queued", "-send_count", "last_alive_at"}, []string{"", "state=connected", "10.0.1", "tx_queued<3", "recv_count>0"}
	for i := range viewerCount {
		c := open()
		defer c.CloseNow()
		orStop(c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"op":"subscribe","view":"peers","id":"p","filter":%q,"sort":%q,"offset":%d,"limit":%d,"rate_hz":2}`,
			filters[i%len(filters)], sorts[i/len(filters)%len(sorts)], 20*i, viewerRows)))
		wg.Go(func() {
			for {
				if _, _, err := c.Read(ctx); err != nil {
					return
				}
				frames.Add(1)
			}
		})
	}
	time.Sleep(2 * time.Second)
	bytes.Store(0)
	frames.Store(0)
	watched := cpu(cmd.Process.Pid, d)
	perViewer := float64(bytes.Load()) / d.Seconds() / viewerCount / 1000
	rate := float64(frames.Load()) / d.Seconds() / viewerCount
	paint, page := fetch(at.URL+"/peers", at.Key)
	weight := page
	for _, name := range []string{"app.js", "app.css", "icon.svg"} {
		_, n := fetch(at.URL+"/assets/"+name, at.Key)
		weight += n
	}
	cancel()
	wg.Wait()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%d peers, %d viewers of %d rows, for %v\twithout\twith\tof them\tto reach\n", viewerPeers, viewerCount, viewerRows, d)
	fmt.Fprintf(w, "CPU of the appliance, %% of one core\t%.1f\t%.1f\t%.1f\t≤ 25\n", alone, watched, watched-alone)
	fmt.Fprintf(w, "traffic to a viewer, kB/s (%.1f frames/s)\t\t%.1f\t\t≤ 20\n", rate, perViewer)
	fmt.Fprintf(w, "peers page, median to its last byte, ms\t\t%.1f\t\t≤ 50\n", float64(paint.Microseconds())/1000)
	fmt.Fprintf(w, "its weight with script and style, compressed, kB\t\t%.1f\t\t≤ 200\n", float64(weight)/1000)
	w.Flush()
}

// countedConn counts what is read from it.
type countedConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// servePage is the appliance that is looked at; it ends when its standard input does.
func servePage(dir string) {
	cfg := filepath.Join(dir, "o2ibd.yaml")
	orStop(os.WriteFile(cfg, []byte(fabric.Config), 0o600))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	a, err := app.Open(ctx, app.Options{
		ConfigFile: cfg, StateDir: filepath.Join(dir, "state"), Listen: "127.0.0.1:0", Out: io.Discard, Version: "bench",
		NewEngine: func(app.EngineConfig) (app.Engine, error) { return fabric.New(viewerPeers), nil },
	})
	orStop(err)
	boss := app.Actor{Name: "bench", Role: app.RoleAdmin, How: app.HowSystem}
	orStop(a.CreateAccount(ctx, boss, "bench", "", app.RoleViewer))
	key, _, err := a.NewToken(ctx, boss, "bench", "bench", 0)
	orStop(err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, web.New(web.Options{App: a})) }()
	for len(a.Snapshot().Peers) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	orStop(json.NewEncoder(os.Stdout).Encode(map[string]string{"URL": strings.TrimSuffix(a.Info().URL, "/"), "Key": key}))
	io.Copy(io.Discard, os.Stdin)
	stop()
	orStop(<-ended)
	orStop(a.Close())
}

// cpu is what a process used within d, in per cent of one core.
func cpu(pid int, d time.Duration) float64 {
	used := func() float64 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		orStop(err)
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
		user, err := strconv.ParseFloat(f[11], 64)
		orStop(err)
		system, err := strconv.ParseFloat(f[12], 64)
		orStop(err)
		return (user + system) / 100 // ticks of the kernel's interface, always 100 a second
	}
	before := used()
	time.Sleep(d)
	return (used() - before) / d.Seconds() * 100
}

// fetch gives the median time of a page over 21 requests, and its compressed size in bytes.
func fetch(url, key string) (time.Duration, int) {
	var times []time.Duration
	size := 0
	for range 21 {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		orStop(err)
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Accept-Encoding", "gzip")
		start := time.Now()
		res, err := http.DefaultClient.Do(req)
		orStop(err)
		n, err := io.Copy(io.Discard, res.Body)
		orStop(err)
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			log.Fatalf("%s: %s", url, res.Status)
		}
		times, size = append(times, time.Since(start)), int(n)
	}
	slices.Sort(times)
	return times[len(times)/2], size
}

func orStop(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
