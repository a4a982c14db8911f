package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// readPassword reads a password: twice and without echo from a terminal, else one line.
func (e *env) readPassword(name string) (string, error) {
	r := bufio.NewReader(e.in)
	f, ok := e.in.(*os.File)
	if !ok {
		return line(r)
	}
	fd := int(f.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return line(r) // no terminal
	}
	quiet := *old
	quiet.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &quiet); err != nil {
		return "", fmt.Errorf("switch the echo off: %w", err)
	}
	defer unix.IoctlSetTermios(fd, unix.TCSETS, old)
	var typed [2]string
	for i, prompt := range []string{"New password for %s: ", "Once more for %s: "} {
		fmt.Fprintf(e.err, prompt, name)
		typed[i], err = line(r)
		fmt.Fprintln(e.err)
		if err != nil {
			return "", err
		}
	}
	if typed[0] != typed[1] {
		return "", errors.New("the two passwords differ; nothing was changed")
	}
	return typed[0], nil
}

func line(r *bufio.Reader) (string, error) {
	s, err := r.ReadString('\n')
	s = strings.TrimRight(s, "\r\n")
	if s == "" && (err == nil || errors.Is(err, io.EOF)) {
		return "", errors.New("no password came; nothing was changed")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return s, nil
}
