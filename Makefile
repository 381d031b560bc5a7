# Building, testing and measuring leatfs. "make help" lists the targets.
#
# Variables:
#   LEATFS_TOOLS   where the S3 servers and linters for tests go (default ~/.cache/leatfs/tools)
#   LEATFS_PYTHON  the Python that the clients' environment is made from (default: found)
#   DESTDIR        root of what "make install" writes to (default: none)
#   PREFIX         under it, where bin, sbin and lib/systemd/system are (default: /usr)
#   ARGS           more arguments for "make bench", "make demo" and "make test-clients...",
#                  for example: make bench ARGS="--quick --only cold-seq"

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/leatfs
TOOLS := $(or $(LEATFS_TOOLS),$(CACHE)/tools)

VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
VERSITYGW   := v1.8.0
MINIO       := v0.0.0-20260212201848-7aac2a2c5b7c
STATICCHECK := v0.8.2
PJDFSTEST   := 0.2.2
FSX         := 0.3.2

# Tests of the binary on real mounts are not unit tests: they need root.
MOUNT_TESTS := ./test/mount/...
UNIT_TESTS   = $$(go list ./... | grep -v -e '/test/mount' -e '/test/powercut' -e '/test/systemd' -e '/test/posix')

PREFIX := /usr
BIN    := bin/leatfs

ROOT := $(filter 0,$(shell id -u))

.NOTPARALLEL:
.PHONY: help build install deps tools pyenv lint test test-unit test-mount test-clients-read test-clients test-clients-quick test-systemd test-powercut test-powercut-quick test-posix posix-long torture bench demo clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
		while IFS=$$'\t' read -r t d; do printf '  %-20s %s\n' "$$t" "$$d"; done

build: ## the static binary bin/leatfs
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/leatfs ./cmd/leatfs

install: ## bin/leatfs, the helper of mount(8) and the systemd unit (after "make build"; see packaging/README.md)
	install -D -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/leatfs
	install -d -m 755 $(DESTDIR)$(PREFIX)/sbin
	ln -sf ../bin/leatfs $(DESTDIR)$(PREFIX)/sbin/mount.fuse.leatfs
	install -d -m 755 $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's,/usr/bin/,$(PREFIX)/bin/,' packaging/leatfs@.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/leatfs@.service

deps: ## the system packages that tests need (installs what is missing, as root, by apt)
	@test/deps.sh

# One stamp for each tool and version: a second run does nothing, a new version installs.
# The servers are tools of the tests, run as processes; nothing of them is linked.
define tool
$(TOOLS)/.$(1)-$(3):
	@mkdir -p $(TOOLS)
	@echo "tools: building $(1) $(3)"
	@GOBIN=$(TOOLS) GOFLAGS=-mod=mod CGO_ENABLED=0 go install $(2)@$(3)
	@rm -f $(TOOLS)/.$(1)-*
	@touch $$@
tools: $(TOOLS)/.$(1)-$(3)
endef
$(eval $(call tool,versitygw,github.com/versity/versitygw/cmd/versitygw,$(VERSITYGW)))
$(eval $(call tool,minio,github.com/minio/minio,$(MINIO)))
$(eval $(call tool,staticcheck,honnef.co/go/tools/cmd/staticcheck,$(STATICCHECK)))

# Those of the POSIX tests are Rust. Without cargo they are left out, and test-posix says so.
define crate
$(TOOLS)/.$(1)-$(2):
	@test/posix/install.sh $(1) $(2) $(TOOLS)
tools: $(TOOLS)/.$(1)-$(2)
endef
$(eval $(call crate,pjdfstest,$(PJDFSTEST)))
$(eval $(call crate,fsx,$(FSX)))

tools: ## the S3 servers for tests (versitygw, MinIO), staticcheck, and where there is cargo pjdfstest and fsx

pyenv: deps ## the Python environment of the client tests, outside the tree
	@test/pyenv/pyenv.sh >/dev/null

lint: $(TOOLS)/.staticcheck-$(STATICCHECK) ## gofmt, go vet, staticcheck
	@echo "lint: gofmt"
	@bad=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
		if [ -n "$$bad" ]; then echo "not formatted (gofmt -w):"; echo "$$bad"; exit 1; fi
	@echo "lint: go vet"
	@go vet ./...
	@echo "lint: staticcheck"
	@$(TOOLS)/staticcheck ./...

ifdef ROOT
test: test-unit test-mount test-clients-read test-clients-quick test-powercut-quick ## all tests: unit (race detector), real mounts, real clients, power cuts
	@echo "test: all passed"
else
test: test-unit
	@echo "test: the unit tests passed"
	@echo "test: NOT RUN, since they need root: test-mount (real mounts), test-clients-read, test-clients-quick (real clients), test-powercut-quick (power cuts)"
endif

test-unit: deps tools ## unit tests, with the race detector
	@echo "test: unit tests of all packages, with the race detector"
	go test -race -timeout 20m $(UNIT_TESTS)

test-mount: deps tools ## the binary on real mounts of a real S3 server (root)
	@echo "test: real mounts"
	go test -race -count=1 -timeout 25m $(MOUNT_TESTS)

test-clients-read: build deps tools pyenv ## unmodified clients (PyTorch, Parquet, ...) read through a mount (root)
	@echo "test: unmodified clients read through a mount"
	go build -o bin/clients ./test/clients
	bin/clients -leatfs bin/leatfs -python "$$(test/pyenv/pyenv.sh)" $(ARGS)

# ARGS="-only torch,git" for some of them, "-dir DIR" for a plain directory instead of a mount.
test-clients-quick: build deps tools pyenv ## unmodified clients that write through a mount, those that are quick (root)
	@echo "test: unmodified clients write through a mount"
	go build -o bin/clients ./test/clients
	bin/clients write -quick -leatfs bin/leatfs -python "$$(test/pyenv/pyenv.sh)" $(ARGS)

test-clients: build deps tools pyenv ## all unmodified clients that write (root; installs about 1.5 GB more)
	@echo "test: all unmodified clients write through a mount"
	go build -o bin/clients ./test/clients
	bin/clients write -leatfs bin/leatfs -python "$$(test/pyenv/pyenv.sh)" $(ARGS)

test-systemd: deps tools ## the service under a real systemd, booted from a tree of its own (root)
	@echo "test: the service under systemd"
	go test -race -count=1 -timeout 20m ./test/systemd

# LEATFS_CUTS=500 for that many cuts of each kind.
test-powercut: deps tools ## the power is cut: what was synced is there afterwards, and published (root)
	@echo "test: power cuts"
	go test -race -short -count=1 -timeout 20m ./test/powercut/... $(ARGS)

# Those that say most, with few cuts of each kind. They need loop devices, and fail where there are none.
POWERCUT_QUICK := ^(TestNothingIsLeft|TestFsyncIsAFlush|TestStages|TestClientsPowerCut|TestUnmountKeepsAll|TestCutAfterPublication|TestCutWhileUploading)$$

test-powercut-quick: deps tools ## a part of test-powercut, in a minute or two (root)
	@echo "test: power cuts, the quick part"
	go test -short -count=1 -timeout 15m -run '$(POWERCUT_QUICK)' ./test/powercut $(ARGS)

POSIX_TOOLS := $(TOOLS)/.pjdfstest-$(PJDFSTEST) $(TOOLS)/.fsx-$(FSX)
NO_POSIX    := NOT RUN: pjdfstest and fsx are missing: install Rust 1.85 or later (rustup.rs)

test-posix: deps tools ## pjdfstest and fsx on a mount, with kernel passthrough and without (root)
	@if ! ls $(POSIX_TOOLS) >/dev/null 2>&1; then echo "$@: $(NO_POSIX)"; exit 0; fi; \
		echo "test: pjdfstest and fsx"; set -x; \
		go test -count=1 -v -timeout 15m ./test/posix $(ARGS)

posix-long: deps tools ## a million operations of fsx with kernel passthrough, and a million without (root); OPS=1000000
	@if ! ls $(POSIX_TOOLS) >/dev/null 2>&1; then echo "$@: $(NO_POSIX)"; exit 1; fi; set -x; \
		go test -count=1 -v -timeout 20h -run TestFsx ./test/posix -fsx-ops $(or $(OPS),1000000) $(ARGS)

torture: build deps tools pyenv ## kill the worker of a mount under load for minutes (root); DURATION=5m KILLS=100 ARGS="-only campaign"
	go build -o bin/torture ./test/torture
	bin/torture -leatfs bin/leatfs -python "$$(test/pyenv/pyenv.sh)" -duration $(or $(DURATION),5m) -kills $(or $(KILLS),100) $(ARGS)

bench: build deps tools ## measure reads and writes, each as a ratio to its limit in the same run (root)
	go build -o bin/bench ./test/bench
	bin/bench run -leatfs bin/leatfs $(ARGS)

demo: build deps tools pyenv ## two epochs of a PyTorch DataLoader from a mounted bucket (root)
	go build -o bin/bench ./test/bench
	go build -o bin/demo ./test/demo
	bin/demo -leatfs bin/leatfs -python "$$(test/pyenv/pyenv.sh)" $(ARGS)

clean: ## what was built here (tools and the Python environment stay in their cache)
	rm -rf bin .build
