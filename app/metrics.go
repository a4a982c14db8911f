package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"o2ibd/app/bundle"
	"o2ibd/app/sample"
	"o2ibd/engine"
	"o2ibd/store"
)

// pinnedSetting holds the IDs of the peers that are always sampled, as a JSON list.
const pinnedSetting = "pinned_peers"

func (a *App) openSampler(ctx context.Context) error {
	s, err := sample.New(ctx, a.db, time.Now())
	if err != nil {
		return err
	}
	a.sampler = s
	s.Pin(a.readPinned(ctx))
	a.log.Info("metric history: " + sample.Bound())
	return nil
}

// sampleMetrics samples what the ticker takes until ctx ends; the sampler takes one a second. Only the change
// of what goes wrong is told.
func (a *App) sampleMetrics(ctx context.Context) {
	said := ""
	for {
		var snap *engine.Snapshot
		select {
		case <-ctx.Done():
			return
		case snap = <-a.ticker.each:
		}
		if e, _ := a.host.get(); e == nil {
			snap = nil
		}
		text := ""
		if err := a.sampler.Add(ctx, time.Now(), snap); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && said == "" {
			a.events.say("metrics", SeverityError, "metric samples are not stored: %s", text)
		}
		said = text
	}
}

// MetricSeries lists the series that there is history of.
func (a *App) MetricSeries() []sample.Series { return a.sampler.Series() }

// maxMarkers is how many tunable changes and events an answer marks, the newest of each.
const maxMarkers = 100

// peerEvents are the kinds of events that stand on a time axis as a peer's.
var peerEvents = []string{"conn_established", "conn_closed", "connect_failed", "reject_sent", "reject_received"}

// Metrics answers a query with samples and what happened meanwhile. A *sample.QueryError says what is wrong
// with the query.
func (a *App) Metrics(ctx context.Context, q sample.Query) (sample.Answer, error) {
	ans, err := a.sampler.Query(ctx, q, time.Now())
	if err != nil {
		return ans, err
	}
	changes, err := a.db.History(ctx, store.HistoryFilter{From: ans.From, To: ans.To, Limit: maxMarkers})
	if err != nil {
		return ans, err
	}
	for _, c := range changes {
		if k := c.Last.Kind; k == store.Failed || k == store.Interrupted || k == store.Proposed {
			continue
		}
		ans.Markers = append(ans.Markers, tunableMarker(c))
		if c.Last.Kind == store.RolledBack {
			ans.Markers = append(ans.Markers, sample.Marker{
				At: c.Last.At, Kind: sample.MarkTunables, Severity: SeverityWarning, ChangeID: c.Last.ChangeID,
				Text: fmt.Sprintf("change %s was rolled back", c.Last.ChangeID),
			})
		}
	}
	for _, kind := range append([]string{"ni_restarted"}, peerEvents...) {
		list, err := a.Events(ctx, EventFilter{Kind: kind, From: ans.From, To: ans.To, Limit: maxMarkers})
		if err != nil {
			return ans, err
		}
		for _, e := range list {
			m := sample.Marker{At: e.At, Kind: sample.MarkPeer, Severity: e.Severity, Text: e.Text, Peer: e.Peer}
			if kind == "ni_restarted" {
				m.Kind = sample.MarkNI
			}
			ans.Markers = append(ans.Markers, m)
		}
	}
	slices.SortStableFunc(ans.Markers, func(a, b sample.Marker) int { return int(min(max(a.At-b.At, -1), 1)) })
	if n := len(ans.Markers) - 2*maxMarkers; n > 0 {
		ans.Markers = ans.Markers[n:]
	}
	return ans, nil
}

func tunableMarker(c store.HistoryEntry) sample.Marker {
	var parts []string
	for _, x := range c.Proposal.Changes {
		parts = append(parts, x.Name)
	}
	text := fmt.Sprintf("%s changed %s", c.Proposal.Who, strings.Join(parts, ", "))
	return sample.Marker{At: c.Proposal.At, Kind: sample.MarkTunables, Severity: SeverityInfo, Text: text, ChangeID: c.Proposal.ChangeID}
}

// PinnedPeers are the IDs of the peers that are sampled whatever they do.
func (a *App) PinnedPeers() []string { return a.readPinned(context.Background()) }

func (a *App) readPinned(ctx context.Context) []string {
	ids := []string{}
	text, _, err := a.db.Setting(ctx, pinnedSetting)
	if err == nil && text != "" {
		err = json.Unmarshal([]byte(text), &ids)
	}
	if err != nil {
		a.log.Error("the list of pinned peers cannot be read", "error", err)
	}
	return ids
}

// PinPeer says whether a peer, such as "10.0.0.1@o2ib>10.0.0.2@o2ib", is sampled whatever it does.
func (a *App) PinPeer(ctx context.Context, who Actor, id string, pinned bool) error {
	a.pinning.Lock()
	defer a.pinning.Unlock()
	before := a.readPinned(ctx)
	after := slices.DeleteFunc(slices.Clone(before), func(p string) bool { return p == id })
	if pinned {
		after = append(after, id)
	}
	err := allowed(who, RoleOperator)
	ours, theirs, ok := strings.Cut(id, ">")
	switch {
	case err != nil:
	case !ok || ours == "" || theirs == "" || len(id) > 100:
		err = fmt.Errorf("%w: peer %q: an ID such as 10.0.0.1@o2ib>10.0.0.2@o2ib is wanted", ErrInvalid, id[:min(len(id), 100)])
	case len(after) > sample.MaxPinned:
		err = fmt.Errorf("%w: %d peers are pinned already; unpin one first", ErrConflict, sample.MaxPinned)
	case slices.Equal(before, after):
		return nil
	default:
		var text []byte
		if text, err = json.Marshal(after); err == nil {
			err = a.db.SetSetting(ctx, pinnedSetting, string(text))
		}
		if err == nil {
			a.sampler.Pin(after)
		}
	}
	say := func(on bool) string {
		if on {
			return "pinned"
		}
		return "not pinned"
	}
	return a.auditedAs(ctx, AuditEntry{Actor: who, Action: "peer.pin", Target: id, Before: say(slices.Contains(before, id)), After: say(pinned)}, err)
}

// metricParts are the metric history in a bundle: one CSV a kind and resolution, newest first for each
// source, so that what does not fit is the oldest.
func (a *App) metricParts() []bundle.Part {
	const hour, day = 3600 * 1000, 24 * 3600 * 1000
	var parts []bundle.Part
	for _, kind := range []string{sample.KindTotal, sample.KindNI, sample.KindPool, sample.KindScheduler, sample.KindPeer} {
		for _, r := range []struct {
			name      string
			res, back int64
		}{{"1s", 1000, hour}, {"10s", 10_000, day}, {"5min", 300_000, 90 * day}} {
			if kind == sample.KindPeer {
				if r.res == 1000 {
					continue // peers are sampled each 10 s
				}
				r.back = min(r.back/24, 7*day) // there may be many
			}
			parts = append(parts, bundle.Part{Name: "metrics/" + kind + "-" + r.name + ".csv", Write: func(ctx context.Context, w io.Writer) error {
				return a.writeMetrics(ctx, w, kind, r.res, time.Now().UnixMilli()-r.back)
			}})
		}
	}
	return parts
}

func (a *App) writeMetrics(ctx context.Context, w io.Writer, kind string, res, from int64) error {
	head := "at_ms,time,source"
	for _, m := range sample.MetricNames(kind) {
		head += "," + m + "," + m + "_min," + m + "_max"
	}
	if _, err := io.WriteString(w, head+"\n"); err != nil {
		return err
	}
	var line []byte
	return a.sampler.Export(ctx, kind, res, from, func(source string, at int64, values [][3]float64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		line = strconv.AppendInt(line[:0], at, 10)
		line = time.UnixMilli(at).UTC().AppendFormat(append(line, ','), time.RFC3339)
		line = append(append(line, ','), strings.TrimPrefix(source, kind+"/")...)
		for _, v := range values {
			for _, x := range v {
				if line = append(line, ','); !math.IsNaN(x) {
					line = strconv.AppendFloat(line, x, 'g', 7, 64)
				}
			}
		}
		_, err := w.Write(append(line, '\n'))
		return err
	})
}
