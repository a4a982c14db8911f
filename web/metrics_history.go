package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"

	"o2ibd/app/sample"
)

// mostSeries is how many series one question for history may have.
const mostSeries = 24

func (s *server) apiMetrics(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return &statusError{http.StatusBadRequest, "the address is malformed"}
	}
	q := sample.Query{Series: r.Form["series"]}
	for _, f := range []struct {
		name string
		to   *int64
	}{{"from", &q.From}, {"to", &q.To}, {"step", &q.Step}} {
		n, err := number(r, f.name, 0, 1<<62)
		if err != nil {
			return err
		}
		*f.to = int64(n)
	}
	a, err := s.app.Metrics(r.Context(), q)
	if err != nil {
		return err
	}
	return s.json(w, http.StatusOK, a)
}

// SeriesList is the answer of GET /api/v1/history/series.
type SeriesList struct {
	Series []sample.Series `json:"series"`
}

func (s *server) apiMetricSeries(w http.ResponseWriter, _ *http.Request) error {
	list := s.app.MetricSeries()
	if list == nil {
		list = []sample.Series{}
	}
	return s.json(w, http.StatusOK, SeriesList{Series: list})
}

// pinForm keeps history of a peer, whatever it does, or no longer.
func (s *server) pinForm(w http.ResponseWriter, r *http.Request) error {
	id, err := url.PathUnescape(chi.URLParam(r, "id"))
	if err != nil {
		return &statusError{http.StatusNotFound, "no such peer"}
	}
	who, _ := actor(r)
	pinned := r.PostFormValue("do") == "pin"
	if err := s.app.PinPeer(r.Context(), who, id, pinned); err != nil {
		return err
	}
	said := "History of this peer is kept as long as it is among the worst."
	if pinned {
		said = "History of this peer is kept from now on, whatever it does."
	}
	return s.back(w, r, "/peers/"+url.PathEscape(id), said)
}

// withHistory fills charts with what they show now, for the table that stands behind each, and gives the
// lines of single series. Without history it changes nothing: the page says so.
func (s *server) withHistory(ctx context.Context, r chartRange, charts []chart, lines []string) map[string][]*float64 {
	names := slices.Clone(lines)
	for _, c := range charts {
		names = append(names, c.Series...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	points := make(map[string]sample.Points)
	for part := range slices.Chunk(names, mostSeries) {
		now := time.Now().UnixMilli()
		a, err := s.app.Metrics(ctx, sample.Query{Series: part, From: now - int64(r.seconds)*1000, To: now, Step: int64(r.seconds) * 1000 / 60})
		if err != nil {
			s.log.Debug("history of a page", "err", err)
			return nil
		}
		for _, p := range a.Series {
			points[p.Name] = p
		}
	}
	for i := range charts {
		for _, name := range charts[i].Series {
			if p, ok := points[name]; ok {
				charts[i].Rows = append(charts[i].Rows, tableRow(p))
			}
		}
	}
	values := make(map[string][]*float64)
	for _, name := range lines {
		values[name] = points[name].Avg
	}
	return values
}

// chartRow sums a series up: its last value, the least and the most.
type chartRow struct{ Label, Last, Least, Most string }

func tableRow(p sample.Points) chartRow {
	row := chartRow{Label: p.Label, Last: "–", Least: "–", Most: "–"}
	var least, most *float64
	for i := range p.Avg {
		if p.Avg[i] != nil {
			row.Last = amount(*p.Avg[i], p.Unit)
		}
		if v := p.Min[i]; v != nil && (least == nil || *v < *least) {
			least = v
		}
		if v := p.Max[i]; v != nil && (most == nil || *v > *most) {
			most = v
		}
	}
	if least != nil && most != nil {
		row.Least, row.Most = amount(*least, p.Unit), amount(*most, p.Unit)
	}
	return row
}

// amount is a value with its unit, as the script writes it too.
func amount(v float64, unit string) string {
	if rest, ok := strings.CutPrefix(unit, "bytes"); ok {
		return bytesText(int64(v)) + rest
	}
	if v >= 100 || v <= -100 || v == float64(int64(v)) {
		return count(int64(v)) + " " + unit
	}
	return strconv.FormatFloat(v, 'g', 2, 64) + " " + unit
}

// sparkPoints places values in a drawing of 100 by 20.
func sparkPoints(values []*float64) string {
	top := 1e-9
	for _, v := range values {
		if v != nil {
			top = max(top, *v)
		}
	}
	var b strings.Builder
	for i, v := range values {
		if v == nil {
			continue
		}
		b.WriteString(strconv.FormatFloat(float64(i)/float64(max(1, len(values)-1))*100, 'f', 1, 64))
		b.WriteByte(',')
		b.WriteString(strconv.FormatFloat(19-*v/top*18, 'f', 1, 64))
		b.WriteByte(' ')
	}
	return b.String()
}

// pinPath is where the form goes that keeps a peer's history.
func pinPath(id string) templ.SafeURL { return templ.SafeURL("/peers/" + url.PathEscape(id) + "/pin") }
