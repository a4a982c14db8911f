package web

import (
	"net/http"
	"net/url"
	"strings"

	"o2ibd/app"
)

// route is one thing that can be asked for, and the least role that may.
type route struct {
	method, pattern string
	role            app.Role // "": everybody
	handle          func(http.ResponseWriter, *http.Request) error
	summary         string // of API routes, for the OpenAPI document
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
		{get, "/healthz", anyone, s.healthz, "alive"},
		{get, "/readyz", anyone, s.readyz, "ready to serve"},
		{get, "/metrics", anyone, s.metricsText, "Prometheus metrics"},
		{get, "/assets/{file}", anyone, s.asset, ""},

		{get, "/sign-in", anyone, s.signInPage, ""},
		{post, "/sign-in", anyone, s.signIn, ""},
		{get, "/sign-in/link", anyone, s.linkPage, ""},
		{post, "/sign-in/link", anyone, s.useLink, ""},
		{post, "/sign-out", viewer, s.signOut, ""},
		{get, "/account", viewer, s.accountPage, ""},
		{post, "/account", viewer, s.changeOwnPassword, ""},

		{get, "/", viewer, s.overviewPage, ""},
		{get, "/peers", viewer, s.peersPage, ""},
		{get, "/peers/{id}", viewer, s.peerPage, ""},
		{post, "/peers/{id}/delete", operator, s.deletePeerForm, ""},
		{post, "/peers/{id}/close", operator, s.closeConnsForm, ""},
		{get, "/conns", viewer, s.connsPage, ""},
		{get, "/pools", viewer, s.poolsPage, ""},
		{get, "/devices", viewer, s.devicesPage, ""},
		{get, "/events", viewer, s.eventsPage, ""},
		{get, "/tunables", viewer, s.tunablesPage, ""},
		{post, "/tunables", operator, s.changeTunables, ""},
		{get, "/tunables/history", viewer, s.historyPage, ""},
		{get, "/ping", operator, s.pingPage, ""},
		{post, "/ping", operator, s.pingForm, ""},
		{get, "/bundles", operator, s.bundlesPage, ""},
		{post, "/bundles", operator, s.createBundleForm, ""},
		{post, "/bundles/{id}/delete", operator, s.deleteBundleForm, ""},
		{post, "/demo/{index}/{action}", operator, s.demoForm, ""},
		{get, "/accounts", admin, s.accountsPage, ""},
		{post, "/accounts", admin, s.accountsForm, ""},
		{get, "/audit", admin, s.auditPage, ""},
		{get, "/about", viewer, s.aboutPage, ""},

		{get, "/api/v1/openapi.json", anyone, s.openapi, "this document"},
		{get, "/api/v1/snapshot", viewer, s.apiSnapshot, "everything once"},
		{get, "/api/v1/nets", viewer, s.apiRows("nets"), "NIs; filter, sort, offset, limit"},
		{get, "/api/v1/devices", viewer, s.apiRows("devices"), "HCAs; filter, sort, offset, limit"},
		{get, "/api/v1/peers", viewer, s.apiRows("peers"), "peers; filter, sort, offset, limit"},
		{get, "/api/v1/conns", viewer, s.apiRows("conns"), "connections; filter, sort, offset, limit"},
		{get, "/api/v1/pools", viewer, s.apiRows("pools"), "pools; filter, sort, offset, limit"},
		{get, "/api/v1/tunables", viewer, s.apiTunables, "tunables, with an entity tag"},
		{patch, "/api/v1/tunables", operator, s.apiPatchTunables, "change tunables, all or nothing"},
		{get, "/api/v1/tunables/history", viewer, s.apiHistory, "changes of tunables"},
		{post, "/api/v1/tunables/changes/{id}/confirm", operator, s.apiConfirm, "make a change stay that would be rolled back"},
		{post, "/api/v1/tunables/changes/{id}/revert", operator, s.apiRevert, "undo a change, or all since it"},
		{get, "/api/v1/tunables/diff", viewer, s.apiDiff, "what differs between two points in time; from, to"},
		{get, "/api/v1/tunables/verify", viewer, s.apiVerify, "check the chain of the history"},
		{get, "/api/v1/tunables/progress", viewer, s.apiProgress, "the change that is being made, null if none is"},
		{get, "/api/v1/tunables/export", viewer, s.apiExport, "the values that are set, for a kernel node; format"},
		{post, "/api/v1/tunables/import", operator, s.apiImport, "take over the tunables of a file"},
		{post, "/api/v1/ping", operator, s.apiPing, "LNet ping"},
		{post, "/api/v1/peers/query", operator, s.apiQueryPeer, "when a peer was last alive; connects to one that is not known"},
		{post, "/api/v1/peers/delete", operator, s.apiDeletePeer, "forget a peer, or all with *"},
		{post, "/api/v1/conns/close", operator, s.apiCloseConns, "close a peer's connections, or all with *"},
		{get, "/api/v1/bundles", operator, s.apiBundles, "diagnostic bundles"},
		{post, "/api/v1/bundles", operator, s.apiCreateBundle, "make a diagnostic bundle"},
		{get, "/api/v1/bundles/{id}", operator, s.apiBundle, "state of a bundle"},
		{get, "/api/v1/bundles/{id}/download", operator, s.downloadBundle, "the bundle's zip"},
		{del, "/api/v1/bundles/{id}", operator, s.apiDeleteBundle, "delete a bundle"},
		{get, "/api/v1/events", viewer, s.apiEvents, "what happened"},
		{get, "/api/v1/audit", admin, s.apiAudit, "who did what"},
		{get, "/api/v1/live", viewer, s.live, "the live WebSocket, subprotocol o2ibd.live.v1"},
		{get, "/api/v1/users", admin, s.apiUsers, "accounts"},
		{post, "/api/v1/users", admin, s.apiAddUser, "add an account"},
		{patch, "/api/v1/users/{name}", admin, s.apiChangeUser, "change an account's password or role"},
		{del, "/api/v1/users/{name}", admin, s.apiRemoveUser, "remove an account"},
		{post, "/api/v1/users/{name}/links", admin, s.apiLink, "a one-time sign-in link"},
		{post, "/api/v1/users/{name}/tokens", admin, s.apiToken, "a bearer token"},
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
