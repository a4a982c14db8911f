package web

import (
	"fmt"
	"net/http"

	"github.com/VictoriaMetrics/metrics"
)

// meter writes the engine's state in Prometheus' text format.
type meter struct {
	app Appliance
}

func newMeter(a Appliance) *meter { return &meter{a} }

func (s *server) metricsText(w http.ResponseWriter, r *http.Request) error {
	if _, ok := actor(r); !ok && !s.opt.MetricsPublic {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return &statusError{http.StatusUnauthorized, "metrics want a bearer token, or metrics_public: true in the configuration"}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.metrics.set().WritePrometheus(w)
	metrics.WriteProcessMetrics(w)
	return nil
}

// set makes the samples of the latest snapshot.
func (m *meter) set() *metrics.Set {
	set := metrics.NewSet()
	counter := func(name string, v uint64) { set.GetOrCreateCounter(name).Set(v) }
	gauge := func(name string, v float64) { set.GetOrCreateGauge(name, nil).Set(v) }
	snap := m.app.Snapshot()
	for i := range snap.Nets {
		n := &snap.Nets[i]
		l := fmt.Sprintf(`{net=%q,ni=%q}`, n.Net, n.NID.String())
		up := 0.0
		if n.Status == "up" {
			up = 1
		}
		gauge("o2ibd_ni_up"+l, up)
		gauge("o2ibd_ni_peers"+l, float64(n.Peers))
		gauge("o2ibd_ni_conns"+l, float64(n.Conns))
		gauge("o2ibd_ni_tx_credits_available"+l, float64(n.AvailableCredits))
		for _, c := range []struct {
			name string
			v    uint64
		}{
			{"connects_active", n.ConnectsActive}, {"connects_passive", n.ConnectsPassive}, {"connects_failed", n.ConnectsFailed},
			{"established", n.Established}, {"rejects_sent", n.RejectsSent}, {"rejects_received", n.RejectsReceived},
			{"races", n.Races}, {"stale", n.Stale}, {"reconnects", n.Reconnects}, {"cksum_errors", n.CksumErrors}, {"unpack_errors", n.UnpackErrors},
			{"messages_sent", n.SendCount}, {"messages_received", n.RecvCount}, {"messages_dropped", n.DropCount},
		} {
			counter("o2ibd_ni_"+c.name+"_total"+l, c.v)
		}
	}
	for i := range snap.Peers {
		p := &snap.Peers[i]
		l := fmt.Sprintf(`{net=%q,peer=%q}`, p.Net, p.NID.String())
		up := 0.0
		if p.State == "connected" {
			up = 1
		}
		gauge("o2ibd_peer_connected"+l, up)
		gauge("o2ibd_peer_tx_queued"+l, float64(p.TxQueued))
		gauge("o2ibd_peer_tx_credits_available"+l, float64(p.AvailableCredits))
		counter("o2ibd_peer_reconnects_total"+l, p.Reconnects)
		counter("o2ibd_peer_sent_bytes_total"+l, p.SendBytes)
		counter("o2ibd_peer_received_bytes_total"+l, p.RecvBytes)
	}
	for i := range snap.Pools {
		p := &snap.Pools[i]
		l := fmt.Sprintf(`{kind=%q,net=%q,cpt="%d"}`, p.Kind, p.Net, p.CPT)
		gauge("o2ibd_pool_size"+l, float64(p.Size))
		gauge("o2ibd_pool_used"+l, float64(p.Used))
		counter("o2ibd_pool_grows_total"+l, p.Grows)
		counter("o2ibd_pool_grow_failures_total"+l, p.GrowFailed)
	}
	for i := range snap.Schedulers {
		x := &snap.Schedulers[i]
		counter(fmt.Sprintf(`o2ibd_scheduler_completions_total{cpt="%d",scheduler="%d"}`, x.CPT, x.ID), x.Completions)
	}
	st := &snap.Stats
	counter("o2ibd_lnet_sent_total", st.SendCount)
	counter("o2ibd_lnet_received_total", st.RecvCount)
	counter("o2ibd_lnet_dropped_total", st.DropCount)
	counter("o2ibd_lnet_sent_bytes_total", st.SendLength)
	counter("o2ibd_lnet_received_bytes_total", st.RecvLength)
	counter("o2ibd_lnet_response_timeouts_total", st.ResponseTimeoutCount)
	return set
}
