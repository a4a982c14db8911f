package web

import (
	"fmt"
	"strconv"
	"time"
)

// One table of formats for the server; the script has the same under the same names (data-f).

// count groups digits: 12 345.
func count[T int | int64 | uint64](v T) string {
	s := strconv.FormatInt(int64(v), 10)
	neg := ""
	if s[0] == '-' {
		neg, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return neg + s
}

// bytesText is a size: 1.5 MiB.
func bytesText[T int | int64 | uint64](v T) string {
	f := float64(v)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if f < 1024 || unit == "TiB" {
			if unit == "B" {
				return fmt.Sprintf("%.0f B", f)
			}
			return fmt.Sprintf("%.1f %s", f, unit)
		}
		f /= 1024
	}
	return ""
}

// age is how long ago ms was: 12 s, 3 min.
func age(ms *int64) string {
	if ms == nil {
		return "never"
	}
	return span(time.Since(time.UnixMilli(*ms)))
}

func span(d time.Duration) string {
	switch {
	case d < 0:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

// utc is a moment for people's machines: the script shows it in local time, with this as its title.
func utc(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05 UTC") }

func iso(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func hexVersion(v int) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("%#x", v)
}

func str(v any) string { return fmt.Sprint(v) }

// states in words, with a mark that does not need colour.
func stateMark(state string) string {
	switch state {
	case "connected", "established", "up", "active", "running", "done", "applied", "confirmed":
		return "●"
	case "connecting", "reconnecting", "active_connect", "passive_wait", "init", "closing", "proposed", "rolled back":
		return "◐"
	}
	return "○"
}

func stateClass(state string) string {
	switch stateMark(state) {
	case "●":
		return "state good"
	case "◐":
		return "state wait"
	}
	return "state bad"
}

func severityMark(s string) string {
	switch s {
	case "error":
		return "✕ error"
	case "warning":
		return "▲ warning"
	}
	return "· info"
}

// verdictMark is the answer to "is the fabric well?" in one word.
func verdictMark(v string) string {
	switch v {
	case "well":
		return "● well"
	case "warning":
		return "▲ look"
	}
	return "✕ not well"
}
