package main

import (
	"io"
	"os"

	"o2ibd/engine/wire/decode"
)

type decodeCmd struct {
	format
	File string `arg:"" optional:"" help:"Hex (one message a line, or one in the file) or pcap; without it, or with -, stdin."`
}

func (c *decodeCmd) Run(e *env) error {
	var in io.Reader = e.in
	if c.File != "" && c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	return decode.Run(in, e.out, c.Output)
}
