// Package verbs is the seam to an HCA: small interfaces and flat structs, modelled on verbs and
// rdma_cm, behind which stand a real HCA (rdmacore), a userspace iWARP RNIC over TCP (iwarp), and an
// in-memory fabric that can be stepped (mem). It imports nothing of ours.
//
// Who calls what. Every object belongs to the goroutine that made it unless said otherwise, with two
// exceptions that the engine relies on: a QP is created by connd and posted to by its scheduler, and
// Waiter.Wake may be called from anywhere. No call blocks on the network: what takes time answers with
// an Event (connection manager), a WC (work requests) or an AsyncEvent (device).
//
// Memory. Addresses in work requests are virtual addresses of memory outside the Go heap that was
// registered with RegMR. The provider reads and writes it until the completion of the request that
// named it, or until the QP is in error and flushed.
package verbs

import (
	"errors"
	"net/netip"
	"time"
)

// Errors that callers decide on. Providers wrap them.
var (
	ErrNoDevice    = errors.New("no RDMA device has this address")
	ErrUnsupported = errors.New("the device cannot do this")
	ErrQueueFull   = errors.New("work queue is full")
	ErrState       = errors.New("not possible in this state")
	ErrClosed      = errors.New("closed")
)

// Provider opens devices and the connection manager. Safe for use by several goroutines.
type Provider interface {
	Name() string                   // "rdmacore", "iwarp", "mem"
	Devices() ([]DeviceInfo, error) // what is there, opened or not
	NewWaiter() (Waiter, error)     // one for each goroutine that waits
	OpenCM(w Waiter) (CM, error)    // an event channel; its events wake w
	Close() error
}

// Waiter is the place where one goroutine sleeps until completions or events come, a deadline passes
// or somebody calls Wake. Wakes are remembered: a Wake before Wait makes the next Wait return at once.
type Waiter interface {
	Wait(deadline time.Time) // the zero time waits without end
	Wake()                   // from any goroutine; never blocks
	Close() error
}

// DeviceInfo describes a device and the port that serves one address of ours.
type DeviceInfo struct {
	Name      string // "mlx5_0", "iwarp0"
	Interface string // network interface: "ib0", "lo"
	LinkLayer string // "InfiniBand", "Ethernet", "iWARP"
	Addr      netip.Addr
	Port      int
	State     PortState
	MTU       int    // path MTU in bytes, 0 where it means nothing
	Firmware  string // "" where there is none
	Bonded    bool   // Interface is a bonding master: the address may move to another device
	Caps      Caps
}

// PortState of a device's port.
type PortState uint8

const (
	PortUnknown PortState = iota
	PortDown
	PortActive
)

// Caps are the limits and abilities of a device. Zero in a limit means without limit.
type Caps struct {
	MaxQPWR      int    // work requests in one QP's send or receive queue
	MaxSGE       int    // scatter/gather elements in one work request
	MaxCQE       int    // entries in one CQ
	MaxMRSize    uint64 // bytes in one region
	MemoryWindow bool   // type 2 windows: OpBindMW, OpLocalInv
	SendInv      bool   // OpSendInv
	Read         bool   // OpRead
	RNRRetry     bool   // a send that finds no receive is retried (else the QP fails or the wire pushes back)
	RemoteAck    bool   // a send completes only when the peer's HCA has it (false for iWARP)
}

// Device is an opened HCA. It is reached through a bound or resolved ID. Poll, Post and PollAsync may
// be called by different goroutines at once; one QP is posted to by one goroutine at a time.
type Device interface {
	Info() DeviceInfo
	AllocPD() (PD, error)
	CreateCQ(entries int, w Waiter) (CQ, error) // completions after Arm wake w
	Post(batch []Posting)                       // posts each share in order: receives, then the send chain
	PollAsync(evs []AsyncEvent) (int, error)
	Close() error // after everything on it is gone
}

// Posting is one QP's share of a batch. The provider fills in what it took and why it stopped; when a
// receive fails, no send of the same share is tried.
type Posting struct {
	QP     QP
	Recvs  []RecvWR
	Sends  []SendWR // one chain, in order
	NRecvs int      // out: receives posted
	NSends int      // out: sends posted
	Err    error    // out: nil when all were
}

// PD is a protection domain.
type PD interface {
	RegMR(mem []byte, access Access) (MR, error)
	AllocMW() (MW, error) // ErrUnsupported without Caps.MemoryWindow
	Close() error
}

// Access rights of a region or window. Local read is always there.
type Access uint8

const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	BindMW // windows may be bound to the region
)

// MR is a registered region. Keys are valid from RegMR's return until Close.
type MR interface {
	LKey() uint32
	RKey() uint32
	Close() error
}

// MW is a type 2 memory window. RKey is the key that the next OpBindMW makes valid: the provider
// changes it with every bind that is posted.
type MW interface {
	RKey() uint32
	Close() error
}

// CQ is a completion queue. Poll and Arm belong to one goroutine.
type CQ interface {
	// Poll takes up to len(wcs) completions and never blocks.
	Poll(wcs []WC) (int, error)
	// Arm asks for one wake-up at the next completion added after it. Poll once more after arming:
	// what came in between is found there.
	Arm() error
	Close() error
}

// QP is a reliable connected queue pair, made on an ID.
type QP interface {
	Num() uint32
	// ToError moves the QP to error: every posted receive and send completes as flushed. Idempotent.
	ToError() error
	Close() error // after it is in error and drained; frees it
}

// QPAttr are what a QP is made with. Work request numbers are limits, not allocations.
type QPAttr struct {
	PD         PD
	CQ         CQ // sends and receives
	MaxSendWR  int
	MaxRecvWR  int
	MaxSendSGE int
	MaxRecvSGE int
}

// Opcode of a send work request or of a completion.
type Opcode uint8

const (
	OpSend Opcode = iota
	OpSendInv
	OpWrite
	OpRead
	OpBindMW
	OpLocalInv
	OpRecv // completions only
)

func (o Opcode) String() string {
	return [...]string{"SEND", "SEND_INV", "RDMA_WRITE", "RDMA_READ", "BIND_MW", "LOCAL_INV", "RECV"}[min(o, OpRecv)]
}

// MaxSGE is how many elements a flat work request carries; a device may allow fewer.
const MaxSGE = 4

// SGE is one piece of local memory.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a send work request. Flat, so that slices of it are posted without allocation.
type SendWR struct {
	ID         uint64
	Op         Opcode
	Signaled   bool // success makes a completion; failure always does
	Fence      bool
	NSGE       uint8
	SGE        [MaxSGE]SGE
	RemoteAddr uint64 // OpWrite, OpRead
	RKey       uint32 // OpWrite, OpRead: the peer's; OpSendInv: key to invalidate there; OpLocalInv: ours
	Bind       BindMWAttr
}

// BindMWAttr is what OpBindMW binds: length bytes at Addr of the region, reachable with Access.
type BindMWAttr struct {
	MW     MW
	MR     MR
	Addr   uint64
	Length uint64
	Access Access
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID   uint64
	NSGE uint8
	SGE  [MaxSGE]SGE
}

// WC is a work completion.
type WC struct {
	ID      uint64
	Op      Opcode
	Status  WCStatus
	ByteLen uint32 // OpRecv: bytes received
	QPNum   uint32
	InvKey  uint32 // OpRecv by a send with invalidate: the key it took away, else 0
}

// WCStatus is how a work request ended.
type WCStatus uint8

const (
	WCSuccess       WCStatus = iota
	WCFlushed                // the QP went to error first
	WCLocalLength            // receive buffer too small, or message over the limit
	WCLocalAccess            // bad local key or bounds
	WCRemoteAccess           // bad remote key, bounds or rights
	WCRemoteInvalid          // the peer refused the request
	WCRetryExceeded          // the peer does not answer
	WCRNRRetry               // the peer posts no receive
	WCBindError              // OpBindMW failed
	WCGeneral                // anything else
)

func (s WCStatus) String() string {
	return [...]string{"success", "flushed", "local length error", "local access error", "remote access error",
		"remote invalid request", "transport retries exceeded", "receiver not ready", "window bind error", "general error"}[min(s, WCGeneral)]
}

// CM is the connection manager's event channel. It belongs to one goroutine (connd).
type CM interface {
	// NewID makes an unbound id. User is given back in its events.
	NewID(user any) (ID, error)
	// Poll takes up to len(evs) events and never blocks. An event's slices stay valid until the next Poll.
	Poll(evs []Event) (int, error)
	Close() error // after every ID is closed
}

// ID is a connection or a listener. It belongs to the goroutine of its CM, but for the reads.
type ID interface {
	SetUser(user any)
	User() any

	// Bind takes a local address. A device appears if one serves it, else ErrNoDevice. Port 0 means any.
	// A port that is taken gives EADDRINUSE, one that needs a privilege EACCES.
	Bind(local netip.AddrPort, reuse bool) error
	Listen(backlog int) error

	// ResolveAddr binds to local (as Bind) and finds the way to remote; answers EventAddrResolved or EventAddrError.
	ResolveAddr(local, remote netip.AddrPort, reuse bool, timeout time.Duration) error
	// ResolveRoute answers EventRouteResolved or EventRouteError.
	ResolveRoute(timeout time.Duration) error
	SetTOS(tos uint8) error

	// Device is nil until the id is bound, resolved or came with a connection request. Ids on one device give
	// the same value.
	Device() Device
	CreateQP(attr QPAttr) (QP, error)
	QP() QP

	Connect(p ConnParam) error   // answers EventEstablished, EventRejected, EventUnreachable or EventConnectError
	Accept(p ConnParam) error    // answers EventEstablished
	Reject(private []byte) error // consumer defined
	Disconnect() error           // both sides get one EventDisconnected each
	Local() netip.AddrPort
	Remote() netip.AddrPort
	// Close destroys the id. A QP on it must have been closed. No event of it is delivered afterwards.
	Close() error
}

// ConnParam goes with Connect and Accept (spec o2iblnd 2.7).
type ConnParam struct {
	Private            []byte // copied
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8 // 0..7
	RNRRetryCount      uint8 // 0..7, 7 without end
}

// EventType of a connection manager event.
type EventType uint8

const (
	EventAddrResolved EventType = iota
	EventAddrError
	EventRouteResolved
	EventRouteError
	EventConnectRequest
	EventConnectResponse
	EventConnectError
	EventUnreachable
	EventRejected
	EventEstablished
	EventDisconnected
	EventDeviceRemoval
	EventAddrChange
	EventTimewaitExit
	EventCommEst // data came on a QP whose passive side is not established yet
)

func (e EventType) String() string {
	return [...]string{"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
		"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "ADDR_CHANGE",
		"TIMEWAIT_EXIT", "COMM_EST"}[min(e, EventCommEst)]
}

// Event of an id. Private may be longer than what the peer gave where the carrier pads it.
type Event struct {
	Type     EventType
	ID       ID    // for EventConnectRequest the new child, whose user is its listener's
	Listener ID    // EventConnectRequest
	Err      error // why, for the error events; may be nil
	Reject   RejectKind
	Status   int // raw reject status of the provider
	Private  []byte
	Param    ConnParam // EventConnectRequest, EventEstablished: what the peer asked for
}

// RejectKind says who refused a connection (decision: the engine needs no provider's numbers).
type RejectKind uint8

const (
	RejectOther      RejectKind = iota
	RejectConsumer              // the peer's consumer, with its private data
	RejectNoListener            // nobody listens there
	RejectStaleConn             // the connection manager still knows an older connection
)

// AsyncEvent of a device.
type AsyncEvent struct {
	Type AsyncType
	Port int
	QP   uint32
}

// AsyncType of an AsyncEvent.
type AsyncType uint8

const (
	AsyncPortActive AsyncType = iota
	AsyncPortError
	AsyncDeviceFatal
	AsyncQPError
	AsyncCQError
	AsyncGIDChange
	AsyncLIDChange
)

func (a AsyncType) String() string {
	return [...]string{"PORT_ACTIVE", "PORT_ERR", "DEVICE_FATAL", "QP_ERR", "CQ_ERR", "GID_CHANGE", "LID_CHANGE"}[min(a, AsyncLIDChange)]
}
