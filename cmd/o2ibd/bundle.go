package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"o2ibd/app"
)

type bundleCmd struct {
	Create bundleCreateCmd `cmd:"" help:"Make a bundle and save it here; works, with less in it, without the appliance."`
}

type bundleCreateCmd struct {
	format
	Redact bool   `help:"Replace names and addresses by pseudonyms."`
	Out    string `help:"File to write, which must not exist." placeholder:"FILE"`
}

// savedBundle is a bundle and where it was saved.
type savedBundle struct {
	app.Bundle
	File string `json:"file"`
}

func (c *bundleCreateCmd) Run(e *env) error {
	cl, err := e.dial()
	if errors.Is(err, errDown) {
		return c.offline(e, err)
	}
	if err != nil {
		return err
	}
	var b app.Bundle
	if err := cl.call("POST", "/api/v1/bundles", app.BundleRequest{Redact: c.Redact}, &b); err != nil {
		return err
	}
	for b.State == app.BundleRunning {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-e.ctx.Done():
			return e.ctx.Err()
		}
		if err := cl.call("GET", "/api/v1/bundles/"+b.ID, nil, &b); err != nil {
			return err
		}
	}
	if b.State != app.BundleDone {
		return fmt.Errorf("bundle %s failed: %s", b.ID, b.Error)
	}
	file := c.Out
	if file == "" {
		file = b.Name
	}
	err = save(file, func(w io.Writer) error {
		body, err := cl.do("GET", "/api/v1/bundles/"+b.ID+"/download", nil)
		if err != nil {
			return err
		}
		defer body.Close()
		n, err := io.Copy(w, body)
		if err == nil && n != b.Size {
			err = fmt.Errorf("bundle %s has %d bytes, %d came", b.ID, b.Size, n)
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.report(e, savedBundle{b, file})
}

// offline makes what can be made without an appliance.
func (c *bundleCreateCmd) offline(e *env, down error) error {
	now := time.Now()
	file := c.Out
	if file == "" {
		file = fmt.Sprintf("o2ibd-offline-%s.zip", now.UTC().Format("20060102T150405Z"))
	}
	b := app.Bundle{CreatedAt: now.UnixMilli(), State: app.BundleDone, Progress: 1, Redacted: c.Redact, Name: filepath.Base(file)}
	err := save(file, func(w io.Writer) error {
		_, err := app.OfflineBundle(e.ctx, w, versionName(), c.Redact, down.Error())
		return err
	})
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	b.Size = info.Size()
	fmt.Fprintf(e.err, "o2ibd: %v; the bundle has only what this host tells\n", down)
	return c.report(e, savedBundle{b, file})
}

func (c *bundleCreateCmd) report(e *env, b savedBundle) error {
	return c.print(e, b, func() *table {
		t := &table{}
		t.add("file", b.File)
		t.add("bytes", b.Size)
		t.add("sha256", or(b.SHA256))
		t.add("redacted", b.Redacted)
		return t
	})
}

// save writes a new file, and leaves none behind when it fails.
func save(file string, write func(io.Writer) error) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already; name another file with --out", file)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		os.Remove(file)
		return err
	}
	return nil
}
