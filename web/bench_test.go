package web

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"o2ibd/app"
	"o2ibd/engine"
	"o2ibd/test/fabric"
	"o2ibd/web/live"
)

// still is an appliance of which the snapshot alone is asked for.
type still struct {
	Appliance
	snap *engine.Snapshot
}

func (s still) Snapshot() *engine.Snapshot { return s.snap }
func (still) Info() app.Info               { return app.Info{Hostname: "bench"} }

// BenchmarkPeersPage is the server's time for the first paint of the peers page: the first one of a
// snapshot sorts and filters, those after it find that done.
func BenchmarkPeersPage(b *testing.B) {
	e := fabric.New(10_000)
	snap := e.Snapshot()
	s := &server{app: still{snap: snap}}
	for _, first := range []bool{true, false} {
		b.Run(map[bool]string{true: "first", false: "next"}[first], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if first {
					s.frames = live.Frames{}
				}
				w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/peers?filter=state%3Dconnected&sort=-tx_queued", nil)
				r.Header.Set("Accept-Encoding", "gzip")
				if err := s.peersPage(w, r); err != nil || w.Code != http.StatusOK {
					b.Fatal(w.Code, err)
				}
				b.ReportMetric(float64(w.Body.Len()), "B/page")
			}
		})
	}
}
