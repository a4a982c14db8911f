package main

import (
	"log/slog"

	"o2ibd/app"
	"o2ibd/web"
)

// handlers are the page and what answers on the unix socket.
func handlers(a *app.App, log *slog.Logger) (app.Handlers, error) {
	c := a.Config()
	return web.New(web.Options{App: a, AllowedHosts: c.AllowedHosts, TLS: c.TLS(), MetricsPublic: c.MetricsPublic, Log: log}), nil
}
