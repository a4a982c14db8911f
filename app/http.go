package app

// The bodies of the HTTP API that both its server (package web) and the command line need. Tunables have
// theirs in package tuning.

// Problem is an RFC 9457 problem document, the body of every error.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"` // one line for people: what is wrong, what is allowed
}

// Rows is the answer of GET /api/v1/peers, /conns, /pools, /nets, /devices, which take filter, sort, offset
// and limit.
type Rows[T any] struct {
	Total int `json:"total"` // rows that the filter lets through
	Rows  []T `json:"rows"`
}

// PingRequest is the body of POST /api/v1/ping; a PingResult answers it.
type PingRequest struct {
	NID      string  `json:"nid"`
	TimeoutS float64 `json:"timeout_s"` // 0: 5 s
}

// BundleRequest is the body of POST /api/v1/bundles; a Bundle answers it. GET /api/v1/bundles answers
// BundleList.
type BundleRequest struct {
	Redact bool `json:"redact"`
}

// BundleList is all bundles, newest first.
type BundleList struct {
	Bundles []Bundle `json:"bundles"`
}

// UserList is the answer of GET /api/v1/users.
type UserList struct {
	Users []Account `json:"users"`
}

// NewUser is the body of POST /api/v1/users.
type NewUser struct {
	Name     string `json:"name"`
	Password string `json:"password"` // "": only a link signs in
	Role     Role   `json:"role"`
}

// UserChange is the body of PATCH /api/v1/users/{name}; what is nil stays. DELETE on the same path
// removes the account.
type UserChange struct {
	Password *string `json:"password,omitempty"`
	Role     *Role   `json:"role,omitempty"`
}

// Link is the answer of POST /api/v1/users/{name}/links.
type Link struct {
	URL string `json:"url"`
}

// TokenRequest is the body of POST /api/v1/users/{name}/tokens; TokenSecret answers it.
type TokenRequest struct {
	Label string `json:"label"`
	TTLS  int64  `json:"ttl_s"`          // 0: no end
	Role  Role   `json:"role,omitempty"` // "": the account's; never more
}

// TokenSecret shows a token's secret, this once.
type TokenSecret struct {
	Secret string `json:"secret"`
	Token  Token  `json:"token"`
}
