package mem

import "o2ibd/engine/verbs"

// Link is what is on its way from one queue pair to the one that it is connected to, in a stepped fabric.
type Link struct {
	From, To uint32   // numbers
	Sends    [][]byte // of From, posted and not carried out, in order
	Arrived  []uint64 // ids of receives of To that hold a message and are not in the completion queue yet
}

// Links visits both directions of every connection whose two ends work and can reach each other: for a test
// that accounts for every message. What a visit gets is valid during it.
func (f *Fabric) Links(visit func(*Link)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var l Link
	for _, i := range f.ids {
		q := i.qp
		if q == nil || q.state != qpReady || q.peer.state != qpReady || q.ending || q.peer.ending || i.dark() || q.peer.id.dark() {
			continue
		}
		l.From, l.To, l.Sends, l.Arrived = q.num, q.peer.num, l.Sends[:0], l.Arrived[:0]
		for k := range q.sends.n {
			wr := q.sends.at(k)
			if wr.Op != verbs.OpSend && wr.Op != verbs.OpSendInv {
				continue
			}
			b, err := i.n.keys.Local(q.pd, wr.SGE[0], false)
			if err != nil {
				continue // it will fail
			}
			l.Sends = append(l.Sends, b)
		}
		for k := range q.peer.recvd.coming.n {
			if wc := q.peer.recvd.coming.at(k); wc.Status == verbs.WCSuccess {
				l.Arrived = append(l.Arrived, wc.ID)
			}
		}
		visit(&l)
	}
}
