# Targets are split by their needs: little, root, or root and nested Xen.
PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python
PYTEST := $(BIN)/pytest
# Runs each failed test once more, alone; the module has the details.
PYTEST_AGAIN := $(PY) -m tests.support.session.again
# Two workers, because half of the time is waiting for daemons to start.  A file's tests stay together to share their
# fixtures.  Long files come first: both workers end at about the same time.
TWO := -n 2 --dist loadfile
PACKAGES := tests/packages

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup parts debian debian-all zone xenbind compiled quick check test test-rest test-all test-unit test-fake test-xen test-packages install deb lock demo demo-xen run folder bench soak proto reference docs clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-13s %s\n", $$1, $$2 }'

# Before the build and the installation: reports, in one line, a condition that keeps the target from working.
root-%:
	@DIR="$(DIR)" packaging/check-machine $* root

setup: debian-all parts  ## install what is missing: Debian packages (as root), .venv, the C parts

# The daemons' requirements, without the requirements of tests and nested Xen.
parts: debian $(BIN)/.installed zone xenbind compiled

debian:
	@packaging/install-debian-packages run

debian-all:
	@packaging/install-debian-packages run test xen

$(BIN)/.installed: pyproject.toml
	@echo "installing the Python packages into .venv"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	@touch $@

zone: debian  ## build the C: the agent and its root tree, the file server, the fake's launcher
	@$(MAKE) --silent --jobs=$(shell nproc) -C zone
	@$(MAKE) --silent --jobs=$(shell nproc) -C hostc

xenbind: $(BIN)/.xenbind  ## build the libxl binding

$(BIN)/.xenbind: $(BIN)/.installed $(filter-out xenbind/_libxl%,$(wildcard xenbind/*.c xenbind/*.h)) xenbind/build.py | debian
	@$(PY) -m xenbind.build
	@touch $@

# Bytecode halves the daemons' start time, also in an environment in which Python writes no bytecode itself.
compiled: $(BIN)/.installed
	@$(PY) -m compileall -q cri images protect protectctl hostsetup cluster daemonkit xenbind tools proto

quick: $(BIN)/.installed  ## a minute, needs only Python: checks and unit tests of what changed, or of DIR=<folder>
	@$(PY) -m tools.quick $(DIR)

check: $(BIN)/.installed  ## needs only Python: linters, types, import rules, the order of the C, stub drift, sizes
	$(PYTEST) -q tests/checks

test: root-test setup  ## needs root: every tier but nested Xen, and a part of the kill tests
	$(PYTEST_AGAIN) $(TWO) --checkpoints=one tests/integration tests/hostile tests/zone tests/contract tests/conformance tests/cluster --ignore=tests/cluster/e2e tests/unit tests/checks

test-rest: root-test-rest setup  ## needs root: the other kill tests, and the quick suites of nested Xen (all: test-xen)
	$(PYTEST_AGAIN) $(TWO) --checkpoints=rest tests/integration
	$(PYTEST_AGAIN) --xen=quick tests/xen

test-all: root-test-all test test-rest  ## needs root: both

test-unit: $(BIN)/.installed  ## needs no more than a C compiler: pure logic, codecs, state tables
	@$(MAKE) --silent -C hostc ../zone/build/lookup
	$(PYTEST) tests/unit

test-fake: root-test-fake setup  ## needs root: real daemons, agent, images, CNI on the fake toolstack
	$(PYTEST) $(TWO) tests/contract tests/zone tests/integration tests/hostile tests/conformance tests/cluster --ignore=tests/cluster/e2e

test-e2e: root-test-e2e setup  ## needs root, XENPOD_KUBERNETES: Kubernetes' own conformance suite, hours
	$(PYTEST) tests/cluster/e2e

test-xen: root-test-xen setup  ## needs root: the same story on real Xen, in QEMU; and the Debian packages on it
	@packaging/install-debian-packages deb
	$(PYTEST) tests/xen tests/packages/test_on_xen.py

# One of the tests runs on Xen, in QEMU; PACKAGES=tests/packages/test_packages.py leaves this test out.
test-packages: root-test-packages setup  ## needs root: the Debian packages in throw-away Debians with systemd
	@packaging/install-debian-packages deb
	$(PYTEST_AGAIN) $(PACKAGES)

# packaging/Makefile has the paths.  DESTDIR and PREFIX are handed on.
install:  ## install the daemons, commands, units and manual pages; DESTDIR=<root> PREFIX=/usr/local
	@packaging/install-debian-packages run
	@$(MAKE) --no-print-directory -f packaging/Makefile install

deb:  ## make the Debian packages, in build/deb
	@$(MAKE) --no-print-directory -f packaging/Makefile deb

# For each Python and machine of the Debian packages, with the hash of each file.  Only this target needs uv.
LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-emit-index-url
LOCKED := packaging/lock

lock: $(BIN)/.installed  ## choose anew which Python packages the Debian packages contain: packaging/lock
	@$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.8'
	@$(LOCK) --upgrade --extra kubernetes pyproject.toml --output-file $(LOCKED)/cluster.txt
	@$(LOCK) --upgrade --constraint $(LOCKED)/cluster.txt pyproject.toml --output-file $(LOCKED)/base.txt
	@sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(LOCK) --upgrade - --output-file $(LOCKED)/build.txt

demo: root-demo parts  ## needs root: a real image runs as a pod, step by step, on the fake toolstack
	@$(PY) -m tools.localnode.demo --toolstack fake

demo-xen: root-demo-xen setup  ## needs root: the same on Xen, in QEMU
	@$(PY) -m tests.xen.demo

run: folder root-run parts  ## needs root: both daemons in the foreground; DIR=<folder> holds all of their files
	@exec $(PY) -m tools.localnode.run "$(DIR)"

folder:
	@test -n "$(DIR)" || { echo "usage: make run DIR=<folder>" >&2; exit 2; }

bench: root-bench setup  ## needs root: figures beside containerd and runc; BENCH="--pods 20 --profile"
	@$(PY) -m tests.bench $(BENCH)

soak: root-soak setup  ## needs root: 500 pods on the fake and 30 on nested Xen, with faults at random; SOAK="--seed 7"
	$(PY) -m tests.soak --pods 500 $(SOAK)
	$(PY) -m tests.soak --pods 30 --at-once 4 --nested $(SOAK)

proto: $(BIN)/.installed  ## regenerate the stubs from the contracts
	cd proto && ../$(PY) -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  --plugin=protoc-gen-mypy=../$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=../$(BIN)/protoc-gen-mypy_grpc \
	  $$(find xenpod_proto -name '*.proto' | sort)

reference: $(BIN)/.installed  ## write docs/configuration.md anew, from the code and the examples
	@$(PY) -m tools.docgen.configuration

docs: $(BIN)/.installed  ## the documentation's site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

clean:  ## remove what was built, keep .venv
	@$(MAKE) --no-print-directory -C zone clean
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f xenbind/_libxl*.c xenbind/_libxl*.o xenbind/_libxl*.so $(BIN)/.xenbind
