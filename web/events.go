package web

import (
	"context"
	"slices"
	"sync"

	"o2ibd/app"
	"o2ibd/web/live"
)

// recentEvents are the latest events, newest first, for all viewers of the live socket: each asks the
// store only for what came since.
type recentEvents struct {
	mu   sync.Mutex
	list []app.Event // never written to once it is here
}

// get reads on.
func (c *recentEvents) get(ctx context.Context, read func(context.Context, app.EventFilter) ([]app.Event, error)) ([]app.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == 0 {
		list, err := read(ctx, app.EventFilter{Limit: live.MaxRows})
		c.list = list
		return list, err
	}
	for {
		news, err := read(ctx, app.EventFilter{SinceID: c.list[0].ID, Limit: live.MaxRows})
		if err != nil || len(news) == 0 {
			return c.list, err
		}
		slices.Reverse(news)
		c.list = slices.Concat(news, c.list)
		c.list = c.list[:min(len(c.list), live.MaxRows)]
	}
}

// eventRows is the view events of the live socket.
func (s *server) eventRows(ctx context.Context, q live.Query) (live.Page, error) {
	list, err := s.recent.get(ctx, s.app.Events)
	if err != nil {
		return live.Page{}, err
	}
	return live.SelectRows(list, q)
}
