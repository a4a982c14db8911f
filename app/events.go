package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"o2ibd/engine"
	"o2ibd/store"
)

// Bounds of the event log. Events beyond the queue, and protests beyond their share of a window, are
// counted and the count is an event.
const (
	eventQueue     = 4096
	eventBatch     = 256
	protestWindow  = 10 * time.Second
	protestsWindow = 50
)

// eventLog takes events from any goroutine without blocking it, and stores them from its own, run's.
type eventLog struct {
	db      *store.Store
	log     *slog.Logger
	queue   chan engine.Event
	dropped atomic.Uint64 // since the last that was said
	total   atomic.Uint64 // dropped since the start
	protest limiter

	mu       sync.Mutex
	watchers map[chan struct{}]struct{}
}

func newEventLog(db *store.Store, log *slog.Logger) *eventLog {
	return &eventLog{db: db, log: log, queue: make(chan engine.Event, eventQueue), watchers: make(map[chan struct{}]struct{})}
}

// add queues an event; it never blocks.
func (l *eventLog) add(e engine.Event) {
	select {
	case l.queue <- e:
	default:
		l.dropped.Add(1)
		l.total.Add(1)
	}
}

// say adds an event of the appliance itself.
func (l *eventLog) say(kind, severity, format string, args ...any) {
	l.tell(engine.Event{At: time.Now().UnixMilli(), Kind: kind, Severity: severity, Text: fmt.Sprintf(format, args...)})
}

// tell adds an event and logs it; the engine logs its own.
func (l *eventLog) tell(e engine.Event) {
	level := slog.LevelInfo
	switch e.Severity {
	case SeverityWarning:
		level = slog.LevelWarn
	case SeverityError:
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, e.Text, "kind", e.Kind)
	l.add(e)
}

// run stores what comes until ctx ends and then what is queued still.
func (l *eventLog) run(ctx context.Context) {
	for {
		select {
		case e := <-l.queue:
			l.store(l.batch(e))
		case <-ctx.Done():
			for {
				select {
				case e := <-l.queue:
					l.store(l.batch(e))
				default:
					return
				}
			}
		}
	}
}

// batch is e and what else is queued.
func (l *eventLog) batch(e engine.Event) []store.Event {
	events := []store.Event{stored(e)}
	for len(events) < eventBatch {
		select {
		case e := <-l.queue:
			events = append(events, stored(e))
			continue
		default:
		}
		break
	}
	if n := l.dropped.Swap(0); n > 0 {
		events = append(events, store.Event{
			At: time.Now().UnixMilli(), Kind: "events_dropped", Severity: SeverityWarning,
			Text: fmt.Sprintf("%d events were lost: more happened at once than can be stored", n),
		})
	}
	return events
}

// store outlives the run's context: what was queued before the end is kept.
func (l *eventLog) store(events []store.Event) {
	if err := l.db.AddEvents(context.Background(), events); err != nil {
		l.dropped.Add(uint64(len(events)))
		l.total.Add(uint64(len(events)))
		l.log.Error("events are not stored", "events", len(events), "error", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

func (l *eventLog) watch() (<-chan struct{}, func()) {
	w := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[w] = struct{}{}
	return w, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, w)
	}
}

func stored(e engine.Event) store.Event {
	return store.Event{At: e.At, Kind: e.Kind, Severity: e.Severity, NI: e.NI, Peer: e.Peer, Conn: e.Conn, Text: e.Text, Data: e.Data}
}

// limiter lets so many through in a window and counts the rest.
type limiter struct {
	mu     sync.Mutex
	start  time.Time
	passed int
	held   int
}

// pass says whether one more may pass, and how many the window before held back.
func (l *limiter) pass(now time.Time) (ok bool, heldBefore int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.start) >= protestWindow {
		heldBefore, l.start, l.passed, l.held = l.held, now, 0, 0
	}
	if l.passed >= protestsWindow {
		l.held++
		return false, heldBefore
	}
	l.passed++
	return true, heldBefore
}

// Protest records garbage from outside as an event. kind is "http" or "socket", from the address, text
// what was wrong and what was done. It never blocks; of a storm only the first ones are kept, and how
// many followed.
func (a *App) Protest(kind, from, text string) {
	ok, held := a.events.protest.pass(time.Now())
	if held > 0 {
		a.events.say("protocol", SeverityWarning, "%d more connections or frames were refused in %v", held, protestWindow)
	}
	if !ok {
		return
	}
	a.events.tell(engine.Event{
		At: time.Now().UnixMilli(), Kind: "protocol", Severity: SeverityWarning,
		Text: fmt.Sprintf("%s: %s: %s", kind, from, text), Data: map[string]string{"door": kind, "from": from},
	})
}

// WatchEvents puts a value into the channel after new events are stored; read them with
// Events(ctx, EventFilter{SinceID: last}).
func (a *App) WatchEvents() (news <-chan struct{}, cancel func()) { return a.events.watch() }

// Events reads what happened.
func (a *App) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	rows, err := a.db.Events(ctx, store.EventFilter(f))
	if err != nil {
		return nil, err
	}
	list := make([]Event, len(rows))
	for i, r := range rows {
		list[i] = Event(r)
	}
	return list, nil
}

// Audit reads who did what.
func (a *App) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	rows, err := a.db.Audit(ctx, store.AuditFilter{Who: f.Name, Action: f.Action, BeforeID: f.BeforeID, Limit: f.Limit})
	if err != nil {
		return nil, err
	}
	list := make([]AuditEntry, len(rows))
	for i, r := range rows {
		list[i] = AuditEntry{
			ID: r.ID, At: r.At, Actor: Actor{Name: r.Who, Role: Role(r.Role), How: r.How, From: r.From},
			Action: r.Action, Target: r.Target, Outcome: r.Outcome, Text: r.Text, Before: r.Before, After: r.After,
		}
	}
	return list, nil
}

// Record adds an audit entry; ID and At are filled in. It must be called for writes that do not go
// through a method of App.
func (a *App) Record(ctx context.Context, e AuditEntry) error {
	_, err := a.db.AddAudit(context.WithoutCancel(ctx), store.AuditEntry{
		At: time.Now().UnixMilli(), Who: e.Actor.Name, Role: string(e.Actor.Role), How: e.Actor.How, From: e.Actor.From,
		Action: e.Action, Target: e.Target, Outcome: e.Outcome, Text: e.Text, Before: e.Before, After: e.After,
	})
	return err
}

// Outcomes of an audit entry.
const (
	OutcomeDone    = "done"
	OutcomeRefused = "refused" // not allowed or not possible; nothing was changed
	OutcomeFailed  = "failed"
)

// audited records what came of an action. Its error, or else that of the recording, is returned: nothing
// is done that is not recorded.
func (a *App) audited(ctx context.Context, who Actor, action, target string, err error) error {
	return a.auditedAs(ctx, AuditEntry{Actor: who, Action: action, Target: target}, err)
}

// auditedAs is audited with what was before and after, which counts where it was done.
func (a *App) auditedAs(ctx context.Context, e AuditEntry, err error) error {
	e.Outcome = OutcomeDone
	if err != nil {
		e.Outcome, e.Text, e.Before, e.After = outcome(err), err.Error(), "", ""
	}
	if rerr := a.Record(ctx, e); rerr != nil && err == nil {
		return fmt.Errorf("%s %s was done, but not recorded: %w", e.Action, e.Target, rerr)
	}
	return err
}
