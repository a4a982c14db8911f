package lnet

import (
	"fmt"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// EventType says what happened to an MD (spec lnet 3.6).
type EventType uint8

const (
	EventGet    EventType = 1 // target: the data of a GET was handed off
	EventPut    EventType = 2 // target: the data of a PUT is in the buffer
	EventReply  EventType = 3 // initiator: the data of a GET is in the buffer
	EventAck    EventType = 4 // initiator: the target accepted the PUT
	EventSend   EventType = 5 // initiator: the local send ended; nothing is said about delivery
	EventUnlink EventType = 6 // the MD was idle when it was unlinked
)

// String gives the event's name as LNet's documents write it.
func (t EventType) String() string {
	switch t {
	case EventGet:
		return "GET"
	case EventPut:
		return "PUT"
	case EventReply:
		return "REPLY"
	case EventAck:
		return "ACK"
	case EventSend:
		return "SEND"
	case EventUnlink:
		return "UNLINK"
	}
	return fmt.Sprintf("event %d", uint8(t))
}

// ProcessID names an endpoint: a NID and a pid on it.
type ProcessID struct {
	NID wire.NID
	PID uint32
}

// Event is one thing that happened to an MD. SEND may come after REPLY or ACK.
type Event struct {
	Type     EventType
	Status   o2iblnd.Errno
	Unlinked bool // the MD is gone: no further event, the memory is the user's again

	MD        Handle
	User      any           // of the MD
	MsgType   wire.LNetType // type of the message behind the event
	Target    ProcessID
	Initiator ProcessID
	Source    ProcessID // as the header says
	Sender    wire.NID  // the immediate hop that a received message came from
	Portal    uint32
	MatchBits uint64
	RLength   int // bytes that the message announced or asked for
	MLength   int // bytes that were moved
	Offset    int // where in the MD
	HdrData   uint64

	// Via sends without a detour while the handler runs: give it to Put or Get there. It must not be
	// kept, and is nil where there is no such way.
	Via o2iblnd.Sender
}

// Handler is told the events of an MD, one at a time. It runs on a scheduler, or inside the call that
// caused the event, and must not block. It may call every method of the Node but Ping.
type Handler func(Event)

// Severity of a Notice.
type Severity string

const (
	Info    Severity = "info"
	Warning Severity = "warning"
)

// Notice is something worth a line in the operator's list of events.
type Notice struct {
	Kind     string // drop, response_timeout, push
	Severity Severity
	NI, Peer wire.NID
	Text     string
}
