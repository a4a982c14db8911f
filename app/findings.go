package app

import (
	"errors"
	"fmt"
	"time"

	"o2ibd/app/demo"
	"o2ibd/app/sample"
)

// Ready says whether everything that was configured is up; the error is one line.
func (a *App) Ready() error {
	if a.provider == "" {
		return nil
	}
	e, err := a.host.get()
	switch {
	case err != nil:
		return err
	case e == nil:
		return errors.New("the o2ib engine is starting")
	}
	return nil
}

// Findings are what an operator should know or mend now, the worst first.
func (a *App) Findings() []Finding {
	list := []Finding{}
	if _, err := a.host.get(); err != nil {
		list = append(list, Finding{"engine-down", SeverityError, fmt.Sprintf("The o2ib engine is not up: %v.", err),
			fmt.Sprintf("Mend the cause; it is tried again every %v.", retryEngine)})
	}
	if n := a.events.total.Load(); n > 0 {
		list = append(list, Finding{"events-dropped", SeverityWarning, fmt.Sprintf("%d events could not be stored since the start.", n),
			"Look into the log: a full disk, or more errors at once than can be written."})
	}
	if p := a.tuning.Pending(); p != nil {
		list = append(list, Finding{"change-waits", SeverityWarning, fmt.Sprintf("Change %s by %s is rolled back at %s unless somebody confirms it.", p.ChangeID, p.Who, time.UnixMilli(p.ConfirmBy).UTC().Format("15:04:05 UTC")),
			"Confirm it on the tunables page, or by o2ibd tunables confirm."})
	}
	if n := a.sampler.Dropped(); n > 0 {
		list = append(list, Finding{"metrics-dropped", SeverityInfo, fmt.Sprintf("%d series are not sampled: there are more than %d of NIs, pools and schedulers.", n, sample.MaxSeries), ""})
	}
	switch {
	case a.fabric != nil:
		list = append(list, a.demoFindings()...)
	case a.provider == "" && len(a.cfg.NIs) == 0:
		list = append(list, Finding{"no-device", SeverityWarning, "No network is configured, so this node has no NI and nobody can reach it.",
			"Put the o2ib networks into the configuration's section net, or look at serve --demo."})
	case a.provider == "":
		list = append(list, Finding{"no-device", SeverityWarning, "No HCA is in use, so the configured networks have no NI.",
			"Set provider: iwarp in the configuration to run them over TCP."})
	}
	if a.cfg.InsecureListen && !a.cfg.TLS() {
		list = append(list, Finding{"no-tls", SeverityWarning, "The page may be reached without TLS from other hosts: passwords travel in the clear.",
			"Configure tls with cert and key, or with self_made: true."})
	}
	return list
}

func (a *App) demoFindings() []Finding {
	list := []Finding{{"demo", SeverityInfo, "This is a demo: its nodes are processes on this host, and its traffic is made up.", ""}}
	for _, s := range a.fabric.nodes.Status() {
		if s.State == demo.Running {
			continue
		}
		text := fmt.Sprintf("Demo node %d on %v is %s.", s.Spec.Index, s.Spec.Addr, s.State)
		if s.Error != "" {
			text = fmt.Sprintf("Demo node %d on %v is %s: %s.", s.Spec.Index, s.Spec.Addr, s.State, s.Error)
		}
		list = append(list, Finding{"demo-node", SeverityWarning, text, "Start it again on the overview page."})
	}
	return list
}
