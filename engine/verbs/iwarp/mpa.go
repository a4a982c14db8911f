package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MPA start-up frames (RFC 5044 section 7.1, RFC 6581 section 4): a 16-byte key, flags, revision, length
// of the private data. In the enhanced set-up of revision 2 the private data starts with two 16-bit
// words, IRD and ORD.
const (
	mpaFrameSize  = 20
	mpaMaxPrivate = 512
	mpaWords      = 4

	mpaMarkers  = 0x80
	mpaCRC      = 0x40
	mpaRejected = 0x20
	mpaEnhanced = 0x10

	// Control bits in the IRD word (RFC 6581 section 4.2): the initiator will send a first frame before
	// the responder may, and which ones it can.
	irdPeerToPeer = 0x8000
	irdRTRSend    = 0x4000
	// and in the ORD word
	ordRTRWrite = 0x8000
	ordRTRRead  = 0x4000
	irdMask     = 0x3fff
)

var (
	mpaRequestKey = [16]byte([]byte("MPA ID Req Frame"))
	mpaReplyKey   = [16]byte([]byte("MPA ID Rep Frame"))
)

// Why a start-up fails.
var (
	errMPAKey     = errors.New("not an MPA start-up frame")
	errMPAMarkers = errors.New("the peer wants MPA markers, which are not supported")
	errMPALength  = errors.New("MPA private data is too long")
	errMPARev     = errors.New("unknown MPA revision")
)

// mpaFrame is a request or a reply.
type mpaFrame struct {
	crc      bool
	rejected bool
	enhanced bool
	rev      uint8
	ird, ord uint16 // with enhanced, control bits included
	private  []byte
}

// mpaHead reads the fixed part of a frame; n is how many bytes follow it.
func mpaHead(b *[mpaFrameSize]byte, reply bool) (f mpaFrame, n int, err error) {
	key := mpaRequestKey
	if reply {
		key = mpaReplyKey
	}
	if [16]byte(b[:16]) != key {
		return f, 0, errMPAKey
	}
	flags := b[16]
	f.rev = b[17]
	f.crc, f.rejected = flags&mpaCRC != 0, flags&mpaRejected != 0
	f.enhanced = flags&mpaEnhanced != 0 && f.rev >= 2
	n = int(binary.BigEndian.Uint16(b[18:]))
	switch {
	case f.rev != 1 && f.rev != 2:
		return f, 0, fmt.Errorf("%w: %d", errMPARev, f.rev)
	case flags&mpaMarkers != 0:
		return f, 0, errMPAMarkers
	case n > mpaMaxPrivate || f.enhanced && n < mpaWords:
		return f, 0, fmt.Errorf("%w or too short: %d bytes, at most %d", errMPALength, n, mpaMaxPrivate)
	}
	return f, n, nil
}

// body takes in the bytes behind the fixed part.
func (f *mpaFrame) body(b []byte) {
	if f.enhanced {
		f.ird, f.ord = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		b = b[mpaWords:]
	}
	f.private = b
}

// append writes the frame.
func (f *mpaFrame) append(b []byte, reply bool) []byte {
	key := mpaRequestKey
	if reply {
		key = mpaReplyKey
	}
	var flags byte
	if f.crc {
		flags |= mpaCRC
	}
	if f.rejected {
		flags |= mpaRejected
	}
	n := len(f.private)
	if f.enhanced {
		flags |= mpaEnhanced
		n += mpaWords
	}
	b = append(b, key[:]...)
	b = append(b, flags, f.rev)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.enhanced {
		b = binary.BigEndian.AppendUint16(b, f.ird)
		b = binary.BigEndian.AppendUint16(b, f.ord)
	}
	return append(b, f.private...)
}

// peerToPeer says that the initiator wants the set-up in which it sends a frame of its choice before the
// responder may (RFC 6581 section 4.3).
func (f *mpaFrame) peerToPeer() bool { return f.enhanced && f.ird&irdPeerToPeer != 0 }

// readyToReceive makes a reply of f that agrees to the peer-to-peer set-up of a request. A frame that
// touches no receive is taken before a send where the initiator can do both.
func (f *mpaFrame) readyToReceive(req *mpaFrame) {
	f.ird |= irdPeerToPeer
	f.ord |= req.ord & (ordRTRWrite | ordRTRRead)
	if req.ord&(ordRTRWrite|ordRTRRead) == 0 {
		f.ird |= req.ird & irdRTRSend
	}
}

// maxPrivate is how much private data of the consumer fits.
func (f *mpaFrame) maxPrivate() int {
	if f.enhanced {
		return mpaMaxPrivate - mpaWords
	}
	return mpaMaxPrivate
}

// readStart reads a start-up frame, and gives what came behind it in the same read.
func readStart(s Stream, reply bool) (*mpaFrame, []byte, error) {
	buf := make([]byte, mpaFrameSize+mpaMaxPrivate+readAhead)
	end := 0
	more := func(n int) error {
		for end < n {
			k, err := s.Readv([][]byte{buf[end:]})
			end += k
			if k == 0 {
				if err == io.EOF && end > 0 {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
		}
		return nil
	}
	// A stranger shows with its first bytes: there is no need to wait for a whole frame of it.
	if err := more(1); err != nil {
		return nil, nil, err
	}
	key := mpaRequestKey[:]
	if reply {
		key = mpaReplyKey[:]
	}
	if k := min(end, len(key)); string(buf[:k]) != string(key[:k]) {
		return nil, nil, fmt.Errorf("%w: it starts with %q", errMPAKey, buf[:k])
	}
	if err := more(mpaFrameSize); err != nil {
		return nil, nil, err
	}
	f, n, err := mpaHead((*[mpaFrameSize]byte)(buf), reply)
	if err != nil {
		return nil, nil, err
	}
	if err := more(mpaFrameSize + n); err != nil {
		return nil, nil, err
	}
	// Copies, since they live as long as the connection, and buf is large.
	f.body(bytes.Clone(buf[mpaFrameSize : mpaFrameSize+n]))
	return &f, bytes.Clone(buf[mpaFrameSize+n : end]), nil
}
