package o2iblnd

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Errnos of the protocol, negative Linux numbers (they travel in ibcm_status).
const (
	eIO          = -Errno(unix.EIO)
	eNOMEM       = -Errno(unix.ENOMEM)
	eINVAL       = -Errno(unix.EINVAL)
	eNODATA      = -Errno(unix.ENODATA)
	ePROTO       = -Errno(unix.EPROTO)
	eMSGSIZE     = -Errno(unix.EMSGSIZE)
	eNETDOWN     = -Errno(unix.ENETDOWN)
	eCONNABORTED = -Errno(unix.ECONNABORTED)
	eCONNRESET   = -Errno(unix.ECONNRESET)
	eNOTCONN     = -Errno(unix.ENOTCONN)
	eTIMEDOUT    = -Errno(unix.ETIMEDOUT)
	eCONNREFUSED = -Errno(unix.ECONNREFUSED)
	eHOSTUNREACH = -Errno(unix.EHOSTUNREACH)
	eSTALE       = -Errno(unix.ESTALE)
)

// Error makes an Errno an error.
func (e Errno) Error() string {
	if e == 0 {
		return "success"
	}
	if name := unix.ErrnoName(unix.Errno(-e)); name != "" {
		return fmt.Sprintf("%s (%s)", unix.Errno(-e).Error(), name)
	}
	return fmt.Sprintf("status %d", int32(e))
}

// reason says why a connection ends: the errno that LNet sees and a sentence for operators. The first
// reason wins (spec o2iblnd 5.3).
type reason struct {
	errno Errno
	text  string
	told  bool // operators know it by another event
}

func because(e Errno, format string, args ...any) *reason {
	return &reason{errno: e, text: fmt.Sprintf(format, args...)}
}

func (r *reason) Error() string { return r.text }

// Unwrap lets errors.Is find the errno.
func (r *reason) Unwrap() error { return r.errno }

// orderly is a close without an error: the peer disconnected, or an operator asked.
func orderly(text string) *reason { return &reason{text: text} }
