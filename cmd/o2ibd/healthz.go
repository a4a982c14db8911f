package main

import "fmt"

type healthzCmd struct{}

func (*healthzCmd) Run(e *env) error {
	if err := e.call("GET", "/healthz", nil, nil); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.out, "alive")
	return err
}
