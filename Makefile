# Everything that a person or CI does to the tree. `make` alone explains itself.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --warn-undefined-variables --no-builtin-rules

export PATH := $(CURDIR)/bin:$(PATH)

# A hung test must name itself before CI gives up, and a cold cache on two cores
# is slow: both fit in this.
TEST_TIMEOUT ?= 15m

.PHONY: help
help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: ## Start loopd with its own Postgres and a scripted demo; needs no key
	go run ./cmd/loopd dev --demo

.PHONY: build
build: ## Build the static binary into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/loopd ./cmd/loopd

.PHONY: test
test: dashboards-test ## Run all tests; they start their own Postgres
	go test -timeout $(TEST_TIMEOUT) ./...

.PHONY: race
race: ## Run all tests under the race detector
	go test -race -timeout $(TEST_TIMEOUT) ./...

# TORTURE passes flags on, such as TORTURE='--seed 17 --verbose'.
TORTURE ?=

.PHONY: torture torture-ci torture-short torture-long
torture: build ## Break three replicas and their Postgres for 5 minutes, then check that all promises held
	go run ./internal/torture --duration 5m $(TORTURE)

# Built as the tests are, so that nothing is compiled a second time; patient, since
# nobody knows what else the machine does.
torture-ci: ## The same in a minute, as CI does it
	go build -o .cache/loopd ./cmd/loopd
	go run ./internal/torture --loopd .cache/loopd --duration 20s --quiet 5m $(TORTURE)

torture-short: build ## The same for half a minute
	go run ./internal/torture --duration 30s $(TORTURE)

torture-long: build ## The same for 90 minutes: some 1,000 kills
	go run ./internal/torture --duration 90m $(TORTURE)

# The git ref that the replicas begin with; built in a worktree of its own.
PREVIOUS ?= HEAD~1

.PHONY: rolling-upgrade
rolling-upgrade: build ## Upgrade three replicas from PREVIOUS=<git ref>, back and forth, while things break
	@old=$$(mktemp -d); trap 'git worktree remove --force "$$old/tree"; rm -rf "$$old"' EXIT; chmod 755 "$$old"; \
	git worktree add --quiet --detach "$$old/tree" "$(PREVIOUS)"; \
	(cd "$$old/tree" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$$old/loopd" ./cmd/loopd); \
	go run ./internal/torture --previous "$$old/loopd" --duration 2m $(TORTURE)

.PHONY: failover
failover: build ## Fail a Patroni cluster over while runs are made; see deploy/ha/README.md
	deploy/ha/cluster start
	@trap 'deploy/ha/cluster stop' EXIT; \
	go run ./internal/torture --cluster deploy/ha/cluster --replicas 2 --faults none --duration 3m $(TORTURE)

# SEEDED chooses, such as SEEDED='M03 M12' or SEEDED='--machine M03'.
SEEDED ?=

.PHONY: seeded-bugs
seeded-bugs: ## Break loopd in fifteen ways and show which test notices each
	go run ./internal/torture/seeded $(SEEDED)

.PHONY: dashboards dashboards-test dashboards-check dashboards-pictures alerts-test alerts-check
dashboards: ## Write the Grafana dashboards of deploy/grafana from Go
	go run -C internal/tools/dashboards . ../../../deploy/grafana/dashboards

# Not from the cache, which does not see that files outside of the module changed.
dashboards-test: ## Check that dashboards and rules ask only for metrics and labels that loopd has
	go test -C internal/tools/dashboards -count=1 ./...

# These need Debian's prometheus and prometheus-alertmanager in PATH.
dashboards-check: build ## Live through a scripted day and evaluate every panel on a real Prometheus
	@mkdir -p .cache
	go run ./internal/tools/obscheck dashboards --data .cache/panels.json

dashboards-pictures: dashboards-check ## Draw what the panels returned
	go run -C internal/tools/dashboards ./picture ../../../.cache/panels.json ../../../deploy/grafana/pictures

alerts-test: ## Try each alert on series at which it must fire, and just must not
	promtool check rules deploy/prometheus/recording.yml deploy/prometheus/alerts.yml
	cd deploy/prometheus && promtool test rules alerts_test.yml alerts_slow_test.yml

alerts-check: build ## Break a running loopd until every alert was seen at a real Alertmanager
	go run ./internal/tools/obscheck alerts

.PHONY: check
check: fmt-check vet lint arch checkgenerate race ## All that must hold before a change lands

.PHONY: fmt
fmt: bin/buf ## Format Go and proto
	gofmt -w $(GO_DIRS)
	bin/buf format -w api

# Not every folder has to be there for gofmt to do its work.
GO_DIRS = $(wildcard api cmd internal migrations)

.PHONY: fmt-check
fmt-check: ## Fail on Go code that is not formatted
	@files=$$(gofmt -l $(GO_DIRS)); if [[ -n $$files ]]; then echo "run 'make fmt' for:"; echo "$$files"; exit 1; fi

.PHONY: vet
vet: ## go vet
	go vet ./...

.PHONY: lint
lint: bin/buf bin/golangci-lint ## Lint proto and Go
	bin/buf lint
	bin/buf format -d --exit-code api
	bin/golangci-lint run

.PHONY: arch
arch: ## Check the dependency rule, the banned calls and words, and the package map
	go test ./internal/archtest

.PHONY: generate
generate: bin/buf bin/sqlc ## Write all generated code: third_party protos, api, SQL
	go run -C internal/tools/printproto . ../../../third_party/proto
	bin/buf generate
	cd internal/postgres && ../../bin/sqlc generate

# Sums before and after, so that it also works on a tree with changes in it.
GENERATED_SUMS = find $(wildcard api third_party/proto internal/postgres/db) -type f -exec sha256sum {} + | sort -k2

.PHONY: checkgenerate
checkgenerate: bin/sqlc ## Fail if the generated code does not follow from its sources
	cd internal/postgres && ../../bin/sqlc diff
	@before=$$($(GENERATED_SUMS)); $(MAKE) --no-print-directory generate; after=$$($(GENERATED_SUMS)); \
	diff <(echo "$$before") <(echo "$$after") || { echo "generated code was stale; it is written now: commit it"; exit 1; }

# One module per tool, so that their dependencies meet neither ours nor each
# other's. Built once: a cold build takes minutes.

bin/buf: internal/tools/buf/go.mod internal/tools/buf/go.sum
	cd $(<D) && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o ../../../bin/ github.com/bufbuild/buf/cmd/buf

bin/sqlc: internal/tools/sqlc/go.mod internal/tools/sqlc/go.sum
	cd $(<D) && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o ../../../bin/ github.com/sqlc-dev/sqlc/cmd/sqlc

bin/golangci-lint: internal/tools/golangci-lint/go.mod internal/tools/golangci-lint/go.sum
	cd $(<D) && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o ../../../bin/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
