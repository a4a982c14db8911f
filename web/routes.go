package web

import (
	"net/http"
	"net/url"
	"strings"

	"o2ibd/app"
	"o2ibd/app/sample"
	"o2ibd/app/tuning"
	"o2ibd/engine"
)

// route is one thing that can be asked for, and the least role that may.
type route struct {
	method, pattern string
	role            app.Role // "": everybody
	handle          func(http.ResponseWriter, *http.Request) error
	summary         string // of API routes, for the OpenAPI document
	doc             doc    // what such a route takes and answers
}

const (
	anyone   app.Role = ""
	viewer            = app.RoleViewer
	operator          = app.RoleOperator
	admin             = app.RoleAdmin
)

// routes is every route there is.
func (s *server) routes() []route {
	get, post, patch, del := http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete
	return []route{
		{get, "/healthz", anyone, s.healthz, "alive", doc{media: "text/plain"}},
		{get, "/readyz", anyone, s.readyz, "ready to serve", doc{media: "text/plain"}},
		{get, "/metrics", anyone, s.metricsText, "Prometheus metrics", doc{media: "text/plain"}},
		{get, "/assets/{file}", anyone, s.asset, "", doc{}},

		{get, "/sign-in", anyone, s.signInPage, "", doc{}},
		{post, "/sign-in", anyone, s.signIn, "", doc{}},
		{get, "/sign-in/link", anyone, s.linkPage, "", doc{}},
		{post, "/sign-in/link", anyone, s.useLink, "", doc{}},
		{post, "/sign-out", viewer, s.signOut, "", doc{}},
		{get, "/account", viewer, s.accountPage, "", doc{}},
		{post, "/account", viewer, s.changeOwnPassword, "", doc{}},

		{get, "/", viewer, s.overviewPage, "", doc{}},
		{get, "/peers", viewer, s.peersPage, "", doc{}},
		{get, "/peers/{id}", viewer, s.peerPage, "", doc{}},
		{post, "/peers/{id}/delete", operator, s.deletePeerForm, "", doc{}},
		{post, "/peers/{id}/close", operator, s.closeConnsForm, "", doc{}},
		{post, "/peers/{id}/pin", operator, s.pinForm, "", doc{}},
		{get, "/conns", viewer, s.connsPage, "", doc{}},
		{get, "/pools", viewer, s.poolsPage, "", doc{}},
		{get, "/devices", viewer, s.devicesPage, "", doc{}},
		{get, "/events", viewer, s.eventsPage, "", doc{}},
		{get, "/tunables", viewer, s.tunablesPage, "", doc{}},
		{post, "/tunables", operator, s.changeTunables, "", doc{}},
		{get, "/tunables/history", viewer, s.historyPage, "", doc{}},
		{get, "/tunables/diff", viewer, s.diffPage, "", doc{}},
		{get, "/tunables/import", operator, s.importPage, "", doc{}},
		{post, "/tunables/import", operator, s.importForm, "", doc{}},
		{get, "/tunables/changes/{id}", viewer, s.changePage, "", doc{}},
		{post, "/tunables/changes/{id}/confirm", operator, s.confirmForm, "", doc{}},
		{post, "/tunables/changes/{id}/revert", operator, s.revertForm, "", doc{}},
		{get, "/ping", operator, s.pingPage, "", doc{}},
		{post, "/ping", operator, s.pingForm, "", doc{}},
		{get, "/bundles", operator, s.bundlesPage, "", doc{}},
		{post, "/bundles", operator, s.createBundleForm, "", doc{}},
		{post, "/bundles/{id}/delete", operator, s.deleteBundleForm, "", doc{}},
		{post, "/demo/{index}/{action}", operator, s.demoForm, "", doc{}},
		{get, "/accounts", admin, s.accountsPage, "", doc{}},
		{post, "/accounts", admin, s.accountsForm, "", doc{}},
		{get, "/audit", admin, s.auditPage, "", doc{}},
		{get, "/about", viewer, s.aboutPage, "", doc{}},

		{get, "/api/v1/openapi.json", anyone, s.openapi, "this document", doc{answer: map[string]any(nil)}},
		{get, "/api/v1/snapshot", viewer, s.apiSnapshot, "everything once", doc{answer: engine.Snapshot{}}},
		{get, "/api/v1/nets", viewer, s.apiRows("nets"), "NIs; filter, sort, offset, limit", doc{query: rowsQuery, answer: app.Rows[engine.Net]{}}},
		{get, "/api/v1/devices", viewer, s.apiRows("devices"), "HCAs; filter, sort, offset, limit", doc{query: rowsQuery, answer: app.Rows[engine.Device]{}}},
		{get, "/api/v1/peers", viewer, s.apiRows("peers"), "peers; filter, sort, offset, limit", doc{query: rowsQuery, answer: app.Rows[engine.Peer]{}}},
		{get, "/api/v1/peers/{id}/messages", viewer, s.apiMessages, "the last messages with a peer, by connection", doc{answer: app.Messages{}}},
		{get, "/api/v1/conns", viewer, s.apiRows("conns"), "connections; filter, sort, offset, limit", doc{query: rowsQuery, answer: app.Rows[engine.Conn]{}}},
		{get, "/api/v1/pools", viewer, s.apiRows("pools"), "pools; filter, sort, offset, limit", doc{query: rowsQuery, answer: app.Rows[engine.Pool]{}}},
		{get, "/api/v1/tunables", viewer, s.apiTunables, "tunables, with an entity tag", doc{query: []string{"scope"}, answer: tuning.Table{}}},
		{patch, "/api/v1/tunables", operator, s.apiPatchTunables, "change tunables, all or nothing; If-Match is honoured", doc{body: tuning.Patch{}, answer: tuning.Result{}}},
		{get, "/api/v1/tunables/history", viewer, s.apiHistory, "changes of tunables, newest first", doc{query: []string{"name", "scope", "who", "how", "outcome", "text", "change", "from", "to", "before", "limit"}, answer: tuning.History{}}},
		{get, "/api/v1/tunables/diff", viewer, s.apiDiff, "tunables at two points in time: now, defaults, file, a change, before:CHANGE, a time", doc{query: []string{"from", "to"}, answer: tuning.Diff{}}},
		{get, "/api/v1/tunables/export", viewer, s.apiExport, "tunables as modprobe or lnetctl write them", doc{query: []string{"format"}, media: "text/plain"}},
		{get, "/api/v1/tunables/verify", viewer, s.apiVerify, "is the chain of the history whole", doc{answer: tuning.Verdict{}}},
		{get, "/api/v1/tunables/progress", viewer, s.apiProgress, "the change that is being made; null: none", doc{answer: (*app.TuningProgress)(nil)}},
		{post, "/api/v1/tunables/import", operator, s.apiImport, "change tunables to what a modprobe or lnetctl text says", doc{body: tuning.ImportBody{}, answer: tuning.Result{}}},
		{post, "/api/v1/tunables/changes/{id}/confirm", operator, s.apiConfirm, "keep a change that waits to be confirmed", doc{answer: tuning.Settled{}}},
		{post, "/api/v1/tunables/changes/{id}/revert", operator, s.apiRevert, "undo a change, or all since it", doc{body: tuning.RevertBody{}, answer: tuning.Result{}}},
		{post, "/api/v1/ping", operator, s.apiPing, "LNet ping", doc{body: app.PingRequest{}, answer: app.PingResult{}}},
		{post, "/api/v1/peers/query", operator, s.apiQueryPeer, "when a peer was last alive; connects to one that is not known", doc{body: app.PeerRequest{}, answer: app.PeerAnswer{}}},
		{post, "/api/v1/peers/delete", operator, s.apiDeletePeer, "forget a peer, or all with *", doc{body: app.PeerRequest{}, status: http.StatusNoContent}},
		{post, "/api/v1/conns/close", operator, s.apiCloseConns, "close a peer's connections, or all with *", doc{body: app.PeerRequest{}, answer: app.PeerAnswer{}}},
		{get, "/api/v1/bundles", operator, s.apiBundles, "diagnostic bundles", doc{answer: app.BundleList{}}},
		{post, "/api/v1/bundles", operator, s.apiCreateBundle, "make a diagnostic bundle", doc{body: app.BundleRequest{}, status: http.StatusAccepted, answer: app.Bundle{}}},
		{get, "/api/v1/bundles/{id}", operator, s.apiBundle, "state of a bundle", doc{answer: app.Bundle{}}},
		{get, "/api/v1/bundles/{id}/download", operator, s.downloadBundle, "the bundle's zip", doc{media: "application/zip"}},
		{del, "/api/v1/bundles/{id}", operator, s.apiDeleteBundle, "delete a bundle", doc{status: http.StatusNoContent}},
		{get, "/api/v1/events", viewer, s.apiEvents, "what happened", doc{query: []string{"kind", "severity", "peer", "text", "since", "before", "limit"}, answer: EventList{}}},
		{get, "/api/v1/history", viewer, s.apiMetrics, "sampled history of series, with what happened meanwhile", doc{query: []string{"series", "from", "to", "step"}, answer: sample.Answer{}}},
		{get, "/api/v1/history/series", viewer, s.apiMetricSeries, "the series that there is history of", doc{answer: SeriesList{}}},
		{get, "/api/v1/audit", admin, s.apiAudit, "who did what", doc{query: []string{"name", "action", "limit"}, answer: AuditList{}}},
		{get, "/api/v1/live", viewer, s.live, "the live WebSocket, subprotocol o2ibd.live.v1", doc{status: http.StatusSwitchingProtocols}},
		{get, "/api/v1/users", admin, s.apiUsers, "accounts", doc{answer: app.UserList{}}},
		{post, "/api/v1/users", admin, s.apiAddUser, "add an account", doc{body: app.NewUser{}, status: http.StatusCreated, answer: UserName{}}},
		{patch, "/api/v1/users/{name}", admin, s.apiChangeUser, "change an account's password or role", doc{body: app.UserChange{}, status: http.StatusNoContent}},
		{del, "/api/v1/users/{name}", admin, s.apiRemoveUser, "remove an account", doc{status: http.StatusNoContent}},
		{post, "/api/v1/users/{name}/links", admin, s.apiLink, "a one-time sign-in link", doc{status: http.StatusCreated, answer: app.Link{}}},
		{post, "/api/v1/users/{name}/tokens", admin, s.apiToken, "a bearer token", doc{body: app.TokenRequest{}, status: http.StatusCreated, answer: app.TokenSecret{}}},
	}
}

// need lets in who has the role; others are told, or sent to sign in.
func (s *server) need(e route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, signedIn := actor(r)
		switch {
		case e.role == anyone:
		case !signedIn && wantsPage(r):
			http.Redirect(w, r, "/sign-in?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return
		case !signedIn:
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(w, r, &statusError{http.StatusUnauthorized, "sign in, or send a bearer token"})
			return
		case !who.Role.Allows(e.role):
			s.fail(w, r, &statusError{http.StatusForbidden, "this needs the role " + string(e.role) + ", yours is " + string(who.Role)})
			return
		}
		if err := e.handle(w, r); err != nil {
			s.fail(w, r, err)
		}
	})
}

// wantsPage tells a browser's request for a page from a program's.
func wantsPage(r *http.Request) bool {
	return !strings.HasPrefix(r.URL.Path, "/api/") && r.URL.Path != "/metrics"
}
