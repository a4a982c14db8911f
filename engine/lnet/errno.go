package lnet

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"o2ibd/engine/o2iblnd"
)

// What messages end with, as the wire and completions carry it.
const (
	eNoMem       = -o2iblnd.Errno(unix.ENOMEM)
	eNoData      = -o2iblnd.Errno(unix.ENODATA)
	eProto       = -o2iblnd.Errno(unix.EPROTO)
	eNetDown     = -o2iblnd.Errno(unix.ENETDOWN)
	eConnAborted = -o2iblnd.Errno(unix.ECONNABORTED)
	eShutdown    = -o2iblnd.Errno(unix.ESHUTDOWN)
	eTimedOut    = -o2iblnd.Errno(unix.ETIMEDOUT)
	eCanceled    = -o2iblnd.Errno(unix.ECANCELED)
)

// unixErrno is the error that a negative status stands for.
func unixErrno(e o2iblnd.Errno) syscall.Errno { return syscall.Errno(-e) }

func errnoOf(err error) o2iblnd.Errno {
	if errors.Is(err, ErrClosed) {
		return eShutdown
	}
	return eNoMem
}
