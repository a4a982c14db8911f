package main

const (
	creditsGo = "engine/o2iblnd/credits/credits.go"
	activeGo  = "engine/o2iblnd/negotiate/active.go"
	passiveGo = "engine/o2iblnd/negotiate/passive.go"
	poolGo    = "engine/o2iblnd/pool/pool.go"
	lnd       = "engine/o2iblnd/"
	data      = "Test(T12_[345]|Violations|Held|Frag|AnswerOf|OlderLives|AnswerAnnounces|DeadlineOf)"
	devices   = "Test(T12_76|Failover|NoFailover|Lost|PortDown|PoolsThat|Early|Exposure|Sink|Gaps|Without|Cache|WindowOf)"
	setup     = "Test(T12_[0127]|Reject|Connect|Nobody|DeadlinesOf|EarlyMessage|PeerRestarts|MessagesTakeTurns)"
)

// list is the faults that tests must notice, by what they break.
var list = []mutation{
	// Credits (spec o2iblnd section 3).
	{name: "high-water off by one", file: creditsGo, old: "if c.Outstanding < c.HighWater &&", new: "if c.Outstanding <= c.HighWater &&"},
	{name: "high-water not in proportion to the depth", file: creditsGo, old: "max(1, depth*hiw/max(peerCredits, 1))", new: "max(1, hiw)"},
	{name: "reserved credit not returned", file: creditsGo, old: "c.Reserved++", new: "c.Reserved += 0"},
	{name: "request without a reserved credit", file: creditsGo, old: "if c.Reserved == 0 {", new: "if c.Reserved == -1 {"},
	{name: "version 1 spends its last credit", file: creditsGo, old: "c.Credits == 1 && !noop && c.Version", new: "c.Credits == 0 && !noop && c.Version"},
	{name: "version 1 owes nothing for a NOOP", file: creditsGo, old: "if noop && c.Version == wire.Version1 {", new: "if noop && c.Version == wire.Version2 {"},
	{name: "three NOOPs posted", file: creditsGo, old: "c.NoopsPosted >= oobMsgs", new: "c.NoopsPosted > oobMsgs"},
	{name: "no receives for NOOPs", file: creditsGo, old: "return 2*depth + oobMsgs", new: "return 2 * depth"},
	{name: "a credit announced twice", file: creditsGo, old: "\tc.Outstanding = 0\n", new: "\tc.Outstanding = min(c.Outstanding, 1)\n"},
	{name: "one credit too many taken in", file: creditsGo, old: "if c.Credits+int(credits) > c.Depth {", new: "if c.Credits+int(credits) > c.Depth+1 {"},
	{name: "one send too many posted", file: creditsGo, old: "c.SendsPosted >= c.ConcurrentSends", new: "c.SendsPosted > c.ConcurrentSends"},
	{name: "an answer costs a credit of version 1", file: creditsGo, old: "case credited && c.Credits == 0:", new: "case (credited || c.Version == wire.Version1) && c.Credits == 0:"},

	// Connection rules (spec o2iblnd 2.4 to 2.9).
	{name: "race comparison flipped", file: passiveGo, old: "return a < b", new: "return a > b"},
	{name: "race fold in the wrong byte order", file: passiveGo, old: "bits.ReverseBytes32(n.Addr())", new: "bits.ReverseBytes32(bits.ReverseBytes32(n.Addr()))"},
	{name: "race counter limit", file: passiveGo, old: "p.Races < MaxRaces", new: "p.Races <= MaxRaces"},
	{name: "reject says version 2 to version 1", file: passiveGo, old: "rej.Version, rej.Params.QueueDepth = v, l.depth(v)", new: "rej.Version, rej.Params.QueueDepth = wire.Version2, l.depth(v)"},
	{name: "stale or race reject in the wrong version", file: passiveGo, old: "Magic: wire.Magic, Version: m.Version, Why: why", new: "Magic: wire.Magic, Version: wire.Version2, Why: why"},
	{name: "stale stamp in a CONNREQ accepted", file: passiveGo, old: "m.DstStamp != 0 && m.DstStamp != l.Incarnation", new: "m.DstStamp != 0 && m.DstStamp > l.Incarnation"},
	{name: "257 fragments refused", file: passiveGo, old: "int(p.MaxFrags) > l.MaxFrags", new: "int(p.MaxFrags) >= l.MaxFrags"},
	{name: "new incarnation of a peer overlooked", file: passiveGo, old: "p.Incarnation != m.SrcStamp || p.Version", new: "p.Incarnation > m.SrcStamp || p.Version"},
	{name: "unprivileged port 1024 let in", file: passiveGo, old: "sourcePort >= firstPort", new: "sourcePort > firstPort"},
	{name: "CONNACK may raise the depth", file: activeGo, old: "p.QueueDepth > offered.QueueDepth ||", new: "p.QueueDepth > 255 ||"},
	{name: "CONNACK may raise the fragments", file: activeGo, old: "p.MaxFrags > offered.MaxFrags ||", new: "p.MaxFrags > 257 ||"},
	{name: "incarnation of a reject not adopted", file: activeGo, old: "r.Incarnation = rej.Incarnation", new: "r.Incarnation = 0"},
	{name: "no fallback to version 1", file: activeGo, old: "rej.Version == wire.Version1 && v != wire.Version1", new: "rej.Version == wire.Version1 && v == wire.Version1"},
	{name: "reconnects although the peer connects", file: activeGo, old: "view.Connecting >= 1 && view.Accepting == 0", new: "view.Connecting >= 1 && view.Accepting >= 0"},

	// Pools (spec o2iblnd section 6).
	{name: "first pool shrinks", file: poolGo, old: "if i > 0 && p.allocated == 0 &&", new: "if i >= 0 && p.allocated == 0 &&"},
	{name: "pool grows again too soon", file: poolGo, old: "s.nextRetry = now.Add(Retry)", new: "s.nextRetry = now.Add(Retry / 2)"},
	{name: "use does not move a pool's deadline", file: poolGo, old: "p.deadline = now.Add(Deadline)", new: "p.deadline = p.deadline.Add(0)"},
	{name: "failed pool never goes", file: poolGo, old: "if p.failed || len(s.pools) > 1 {", new: "if len(s.pools) > 1 {"},

	// Bytes (spec o2iblnd section 1).
	{name: "checksum signedness", file: "engine/wire/cksum.go", old: "uint32(int32(int8(c)))", new: "uint32(c)"},
	{name: "checksum field not counted as zeros", file: "engine/wire/cksum.go", old: "sum = sum<<4 | sum>>28", new: "sum = sum<<3 | sum>>29"},
	{name: "descriptor of 257 fragments refused", file: "engine/wire/codec.go", old: "if n < 1 || n > MaxFrags {\n\t\treturn fmt", new: "if n < 1 || n > MaxFrags-1 {\n\t\treturn fmt"},
	{name: "message longer than a buffer", file: "engine/wire/codec.go", old: "m.Nob > MsgSize", new: "m.Nob > MsgSize+1"},
	{name: "short reject of version 1 read as a long one", file: "engine/wire/codec.go", old: "r.Version > Version1 {", new: "r.Version >= Version1 {"},

	// Captures.
	{name: "gap without a bound in bytes", file: "engine/wire/decode/capture.go", old: "f.waiting > maxPending ||", new: "f.waiting > 100*maxPending ||"},
	{name: "old connection lives on in a new one", file: "engine/wire/decode/capture.go", old: "\t\t\tc.forget(back)\n", new: "\t\t\t_ = back\n"},
	{name: "reply overrides the request's CRC", file: "engine/wire/decode/iwarp.go", old: "s.conn.crc = s.conn.crc || flags", new: "s.conn.crc = flags"},
	{name: "older packet taken as new", file: "engine/wire/decode/roce.go", old: "step == 0 || step >= half", new: "step == 0 || step > half"},
	{name: "option runs over its block", file: "engine/wire/pcap/pcap.go", old: "if padded > len(o)-4 {", new: "if padded > len(o) {"},

	// Memory.
	{name: "free pieces are not merged", file: "engine/arena/arena.go", old: "for order < slabOrder && s.free[order].remove", new: "for order < minOrder && s.free[order].remove"},

	// LNet (spec lnet).
	{name: "payload of 1 MiB refused", file: "engine/lnet/parse.go", old: "h.PayloadLength > wire.MaxPayload", new: "h.PayloadLength >= wire.MaxPayload"},
	{name: "answer to another life of ours taken", file: "engine/lnet/parse.go", old: "h.Handle.Iface != n.cookie", new: "h.Handle.Iface == 0"},
	{name: "REPLY longer than its MD taken", file: "engine/lnet/parse.go", old: "length > d.length && d.options", new: "length > 1<<20 && d.options"},
	{name: "one message too many to a peer", file: "engine/lnet/credits.go", old: "p.credits.used < p.credits.max", new: "p.credits.used <= p.credits.max"},

	// The driver itself (spec o2iblnd 2 to 5).
	{name: "cookie matched without type", file: lnd + "recv.go", old: "t.cookie == cookie && t.waiting && t.typ == typ", new: "t.cookie == cookie && t.waiting", run: data},
	{name: "GET status over the sink accepted", file: lnd + "recv.go", old: "int(in.Status) > t.sinkSize", new: "int(in.Status) > 1<<30", run: data},
	{name: "PUT_NAK 0 taken for failure", file: lnd + "recv.go", old: "case in.Status < 0:", new: "case in.Status <= 0:", run: data},
	{name: "message to another life of ours accepted", file: lnd + "recv.go", old: "case in.DstStamp != c.ni.incarnation:", new: "case in.DstStamp > c.ni.incarnation:", run: data},
	{name: "message of another life of the peer accepted", file: lnd + "recv.go", old: "case in.SrcStamp != c.incarnation:", new: "case in.SrcStamp < c.incarnation:", run: data},
	{name: "message of another version accepted", file: lnd + "recv.go", old: "case in.Version != c.acct.Version:", new: "case in.Version == 0:", run: data},
	{name: "credit announced before the repost", file: lnd + "recv.go", old: "scatter(m.Segs, in.Payload[:m.Len])\n", new: "scatter(m.Segs, in.Payload[:m.Len])\n\t\tc.acct.Reposted(post)\n\t\tpost = credits.NoCredit\n", run: data},
	{name: "PUT_REQ gives a credit and PUT_DONE another", file: lnd + "recv.go", old: "return credits.NoCredit // the buffer", new: "return credits.PeerCredit // the buffer", run: data},
	{name: "GET_DONE gives the peer a credit", file: lnd + "recv.go", old: "post = credits.RsrvdCredit\n\t\ts.completion(c, wire.MsgGetReq)", new: "post = credits.PeerCredit\n\t\ts.completion(c, wire.MsgGetReq)", run: data},
	{name: "deadline not renewed at PUT_DONE", file: lnd + "send.go", old: "t.deadline = s.now.Add(s.lnd.timeout())", new: "if t.typ != wire.MsgPutDone {\n\t\tt.deadline = s.now.Add(s.lnd.timeout())\n\t}", run: data},
	{name: "keepalive off", file: lnd + "send.go", old: "return k > 0 &&", new: "return k > 1<<62 &&", run: data},
	{name: "largest IMMEDIATE goes by RDMA", file: lnd + "send.go", old: "wire.ImmediateSize+m.Len > wire.MsgSize", new: "wire.ImmediateSize+m.Len >= wire.MsgSize", run: data},
	{name: "one write too many", file: lnd + "rdma.go", old: "if len(t.wrs) >= c.maxFrags {", new: "if len(t.wrs) > c.maxFrags {", run: data},
	{name: "descriptor over the negotiated fragments", file: lnd + "rdma.go", old: "limit := min(c.maxFrags, wire.MaxFragsOffer)", new: "limit := wire.MaxFragsOffer", run: data},
	{name: "early receives not replayed", file: lnd + "close.go", old: "\t\t\ts.received(c, r)", new: "\t\t\ts.dropRx(r.conn)", run: setup},
	{name: "deadlines of many conns seen too late", file: lnd + "close.go", old: "share = max(1, (n*4+t-1)/t)", new: "share = 1", run: setup},
	{name: "new incarnation of a peer not adopted", file: lnd + "accept.go", old: "if p.linked {\n\t\t\tp.version", new: "if !p.linked {\n\t\t\tp.version", run: setup},
	{name: "race never counted", file: lnd + "accept.go", old: "p.races++", new: "p.races += 0", run: setup},
	{name: "reconnects at once for ever", file: lnd + "build.go", old: "p.reconnected < reconnHighRace", new: "p.reconnected >= 0", run: setup},
	{name: "all messages on one of two conns", file: lnd + "lnd.go", old: "int(p.next.Add(1))%len(*live)", new: "int(p.next.Add(1))*len(*live)%len(*live)", run: setup},
	{name: "a turn without a bound", file: lnd + "sched.go", old: "reschedule = 100", new: "reschedule = 1000", run: "TestTurnIsBounded"},
	{name: "index runs into the generation", file: lnd + "conn.go", old: "gen)<<(wrKindBits+wrIdxBits)", new: "gen)<<(wrKindBits+wrIdxBits-1)", run: "TestWorkRequestIDs"},
	{name: "peer of another NI found", file: lnd + "peer.go", old: "p.nid == nid && p.ni == ni", new: "p.nid == nid", run: "TestPeerTable"},
	{name: "completion of another generation believed", file: lnd + "sched.go", old: "t.gen.Load() == gen && t.conn != nil && t.conn.sched == s {", new: "t.conn != nil && t.conn.sched == s {", run: "ForeignCompletions"},
	{name: "receive of another generation believed", file: lnd + "sched.go", old: "c != nil && c.gen == gen", new: "c != nil", run: "ForeignCompletions"},
	{name: "receives that were not posted are waited for", file: lnd + "sched.go", old: "o.c.nrx -= o.n", new: "_ = o.n", run: "TestReceives"},
	{name: "what was sent last has no end", file: lnd + "lnd.go", old: "\tl.settle()\n", new: "", run: "TestStopEnds"},
	{name: "port 1 never tried", file: lnd + "connect.go", old: "return a.port > 0\n", new: "return a.port > 1\n", run: "NextPrivilegedPort"},
	{name: "missing privilege ends the attempt", file: lnd + "connect.go", old: "a.port = 0\n\t\tif !d.portRefused", new: "a.port = -1\n\t\tif !d.portRefused", run: "NextPrivilegedPort"},
	{name: "data left in the stand-in", file: lnd + "send.go", old: "scatter(m.Segs, t.bounce.Bytes()[:n])", new: "_ = n", run: "Scattered"},
	{name: "PUT_NAK without a reason", file: lnd + "recv.go", old: "s.answer(c, wire.MsgPutNak, cookie, int32(e))", new: "s.answer(c, wire.MsgPutNak, cookie, 0)", run: "Scattered"},
	{name: "LNet told twice of a peer that is gone", file: lnd + "connd.go", old: "\t\tp.err = nil\n\t\td.lnd.upper", new: "\t\td.lnd.upper.PeerDown(p.ni.nid, p.nid, why, time.Time{})\n\t\td.lnd.upper", run: "Attempts"},
	{name: "attempt given up too late", file: lnd + "connd.go", old: "max(5*time.Second, timeout/4)", new: "max(5*time.Second, timeout)", run: setup},

	// Registration, devices and draining (spec o2iblnd 4.12, 6.3, 6.4, 7.4).
	{name: "window not taken back after the transfer", file: lnd + "recv.go", old: "t.reg != nil && t.reg.bound:", new: "t.reg != nil && !t.reg.bound:", run: devices},
	{name: "sink given back before the queue pair is drained", file: lnd + "close.go", old: "t.draining = t.exposed && !c.flushed", new: "t.draining = false", run: devices},
	{name: "window used again that went down with its conn", file: lnd + "reg.go", old: "\tif r.bound {\n", new: "\tif r.bound && r.win == nil {\n", run: devices + "|TestSimulation"},
	{name: "gaps exposed", file: lnd + "rdma.go", old: "limit = 1\n", new: "limit = limit + 0\n", run: devices},
	{name: "cache never flushed", file: lnd + "reg.go", old: "rs.idle > rs.flush", new: "rs.idle > 1<<30", run: devices},
	{name: "transmit of another HCA posted", file: lnd + "send.go", old: "if t.hdev != c.hdev {", new: "if t.hdev == nil {", run: devices},
	{name: "bond not followed", file: lnd + "failover.go", old: "return h != nil && h.info.Bonded", new: "return h != nil && !h.info.Bonded", run: devices},
	{name: "lost HCA not taken up again", file: lnd + "failover.go", old: "\tif v.lost {\n\t\treturn true", new: "\tif v.lost {\n\t\treturn false", run: devices},
	{name: "port events not told to LNet", file: lnd + "failover.go", old: "v.portDown.Swap(down) != down", new: "v.portDown.Swap(down) == down", run: devices},
	{name: "early asker refused for good", file: lnd + "accept.go", old: "; coming {", new: "; !coming {", run: devices},
	{name: "window open to any connection", file: "engine/verbs/soft/keys.go", old: "r.window && r.owner.Load() != q.Num()", new: "r.window && r.owner.Load() == 0", pkg: "./engine/verbs/mem"},
}
