package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"o2ibd/engine/o2iblnd"
	"o2ibd/engine/wire"
)

// ConnMessages are the last messages on one connection with a peer, the oldest first.
type ConnMessages struct {
	Conn     string    `json:"conn"`
	EndedAt  *int64    `json:"ended_at"` // nil: the connection is up
	Error    string    `json:"error"`    // why it ended; empty when nothing was wrong
	Messages []Message `json:"messages"`
}

// Message is what is remembered of one. What its type has not is left out.
type Message struct {
	At        int64   `json:"at"`
	Direction string  `json:"direction"` // sent, received
	Type      string  `json:"type"`      // as decode names it; unreadable
	Credits   uint8   `json:"credits"`
	Nob       uint32  `json:"nob"`
	LNet      string  `json:"lnet,omitempty"`
	Portal    *uint32 `json:"portal,omitempty"`
	MatchBits string  `json:"match_bits,omitempty"`
	Length    *uint32 `json:"length,omitempty"` // bytes that LNet moves, or says that it took
	Cookie    string  `json:"cookie,omitempty"` // of PUT_ACK the one that it answers
	DstCookie string  `json:"dst_cookie,omitempty"`
	Status    *int32  `json:"status,omitempty"`  // a negative Linux errno, or bytes
	Failure   string  `json:"failure,omitempty"` // the errno in words
	NFrags    *int    `json:"nfrags,omitempty"`
	Bytes     *int    `json:"bytes,omitempty"` // that the fragments have
}

// Recent gives the last messages with a peer, on the connections that are up and on those that ended lately,
// the oldest connection first. It waits for the goroutines that own them, or until ctx ends.
func (e *Engine) Recent(ctx context.Context, ni, nid wire.NID) ([]ConnMessages, error) {
	have, err := e.lnd.Recent(ctx, ni, nid)
	if err != nil {
		return nil, err
	}
	list := make([]ConnMessages, len(have))
	for i, h := range have {
		list[i] = ConnMessages{Conn: fmt.Sprint(h.Conn), Error: h.Why, Messages: make([]Message, len(h.Messages))}
		if !h.Ended.IsZero() {
			at := h.Ended.UnixMilli()
			list[i].EndedAt = &at
		}
		for k := range h.Messages {
			list[i].Messages[k] = message(&h.Messages[k])
		}
	}
	return list, nil
}

func message(h *o2iblnd.Head) Message {
	m := Message{At: h.At, Direction: "received", Type: h.Type.String(), Credits: h.Credits, Nob: h.Nob}
	if h.Sent {
		m.Direction = "sent"
	}
	switch h.Type {
	case 0:
		m.Type = "unreadable"
	case wire.MsgImmediate, wire.MsgPutReq, wire.MsgGetReq:
		m.LNet, m.Length = h.LNet.String(), &h.Length
		if h.LNet != wire.LNetREPLY {
			m.MatchBits = opaque(h.MatchBits)
		}
		if h.LNet == wire.LNetPUT || h.LNet == wire.LNetGET {
			m.Portal = &h.Portal
		}
	}
	if h.Cookie != 0 {
		m.Cookie = opaque(h.Cookie)
	}
	if h.DstCookie != 0 {
		m.DstCookie = opaque(h.DstCookie)
	}
	switch h.Type {
	case wire.MsgPutNak, wire.MsgPutDone, wire.MsgGetDone:
		m.Status = &h.Status
		if h.Status < 0 {
			m.Failure = o2iblnd.Errno(h.Status).Error()
		}
	case wire.MsgPutAck, wire.MsgGetReq:
		m.NFrags, m.Bytes = &h.Frags, &h.Bytes
	}
	return m
}

func opaque(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }

// Says tells the body in a line, for people.
func (m *Message) Says() string {
	var b []string
	add := func(format string, args ...any) { b = append(b, fmt.Sprintf(format, args...)) }
	if m.LNet != "" {
		add("LNet %s", m.LNet)
	}
	if m.Length != nil && *m.Length > 0 {
		add("%d bytes of data", *m.Length)
	}
	if m.Portal != nil {
		add("portal %d", *m.Portal)
	}
	if m.MatchBits != "" {
		add("match %s", m.MatchBits)
	}
	switch {
	case m.NFrags == nil:
	case m.Type == wire.MsgPutAck.String():
		add("%d bytes go here, fragments: %d", *m.Bytes, *m.NFrags)
	default:
		add("the answer goes here, fragments: %d", *m.NFrags)
	}
	switch {
	case m.Failure != "":
		add("failed: %s", m.Failure)
	case m.Status != nil:
		add("%d bytes moved", *m.Status)
	}
	if m.Cookie != "" {
		add("cookie %s", m.Cookie)
	}
	if m.Type == wire.MsgNoop.String() {
		add("nothing but credits and a sign of life")
	}
	return strings.Join(b, ", ")
}
