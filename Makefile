# o2ibd. The two commands that matter: make run, make test.
# Both install what is missing (and say so), build, and then do it. `make help` lists the rest.

SHELL := /bin/bash
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X main.version=$(VERSION)
FUZZTIME ?= 30s
# go-sqlite3 warns about a discarded qualifier in SQLite's own C; it is not ours to mend.
export CGO_CFLAGS ?= -O2 -Wno-discarded-qualifiers

.PHONY: help run test test-go test-race test-browser fuzz bench build web generate check deps-run deps-test docker clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: deps-run build ## install what is missing, build, and serve the demo fabric
	bin/o2ibd serve --demo

test: deps-test build check test-go test-browser ## install what is missing, build, and run the tests

test-go: ## the Go tests
	$(GO) test ./...

test-race: ## the Go tests under the race detector
	$(GO) test -race ./...

test-browser: build ## the page in a real Chromium; screenshots go to build/screenshots
	$(GO) test -count=1 -tags browser ./test/browser/...

fuzz: ## every fuzz target for FUZZTIME
	scripts/fuzz $(FUZZTIME)

bench: build ## benchmarks, and comparisons with peers in the same run
	$(GO) test -run '^$$' -bench . -benchmem ./engine/... ./store ./app/...
	$(GO) run ./bench

build: web ## bin/o2ibd with the page embedded
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/o2ibd ./cmd/o2ibd

# The page's script and style: npm is asked only when something of them changed.
web: web/assets/dist/.built

web/assets/dist/.built: package.json package-lock.json tsconfig.json $(shell find web -name '*.ts' -o -name '*.css' 2>/dev/null | grep -v /dist/)
	scripts/deps npm
	npm run --silent build
	@touch $@

generate: ## templates to Go (the result is committed)
	$(GO) tool templ generate -path web

check: ## formatting, vet, licences, generated code
	scripts/check

deps-run:
	scripts/deps run

deps-test:
	scripts/deps run test

docker: ## the container image
	docker build -t o2ibd .

clean: ## everything that was built
	rm -rf bin build node_modules web/assets/dist/*
