# SPDX-License-Identifier: Apache-2.0
# In the container: make apply. Everything below "for a machine without an NPU" needs a
# network; everything above it needs Python 3.11 alone.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
KIT = $(PYTHON) -I -S scripts/kit
CACHE ?= .cache
TOOLS := build/tools
IMAGE_TOOLS := build/image
DRAW := build/report
SANDBOX := build/sandbox
PACKAGES := build/packages
RELEASES = $(or $(RELEASE),$(basename $(notdir $(wildcard tests/requirements/releases/*.txt))))
SANDBOX_PYTHON := $(SANDBOX)/venv/bin/python

# Both lanes of `make test` ask for what is downloaded; the second finds it there.
ONE_AT_A_TIME = mkdir -p build && flock build/lock

# Some of tests/target on the files of other releases: $(1) names them.
define on_each_release
set -e; for release in $(RELEASES); do \
	KIT_RELEASE=$$release PYTHONPATH='$(CURDIR)/$(PACKAGES)'/$$release $(SANDBOX_PYTHON) -m pytest $(1); \
done
endef

# make apply SETS="NAME...", ROOT=DIR, TARGET_PYTHON=PATH, JSON=1: as kit apply NAME..., --root, --python, --json.
TARGET_OPTIONS = $(if $(ROOT),--root '$(ROOT)') $(if $(TARGET_PYTHON),--python '$(TARGET_PYTHON)') $(if $(JSON),--json)

.PHONY: help
help: ## this list
	@echo 'In the container:'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2} /^# ---/ {print ""; print substr($$0, 7)}' $(MAKEFILE_LIST)

.PHONY: status sets apply verify diff revert overlay doctor serve dist
status: ## what is installed: pristine, applied, partial, drifted, unsupported or native
	@$(KIT) status $(TARGET_OPTIONS)

sets: ## what there is beside the base set: what each does, costs and needs
	@$(KIT) sets $(TARGET_OPTIONS)

apply: ## install the base set (SETS=: opt-in sets too): all of the files, or none
	@$(KIT) apply $(SETS) $(TARGET_OPTIONS)

verify: ## prove it: the bytes, every name, an import (FAST=1: the bytes alone)
	@$(KIT) verify $(SETS) $(if $(FAST),--fast) $(TARGET_OPTIONS)

diff: ## the whole of it as one unified diff (SETS=: with opt-in sets)
	@$(KIT) diff $(SETS) $(TARGET_OPTIONS)

revert: ## undo it (SETS=: these sets alone): all of the files, or none
	@$(KIT) revert $(SETS) $(TARGET_OPTIONS)

overlay: ## build the full files, to be mounted over an untouched container (SETS=)
	@$(KIT) overlay $(SETS) $(TARGET_OPTIONS)

doctor: ## look at the whole machine before a start
	@$(KIT) doctor $(TARGET_OPTIONS)

serve: ## start the server (MODEL=, PROFILE=, HOST=, PORT=, API_KEY=, ARGS=)
	@scripts/serve.sh $(ARGS)

dist: ## the kit as one file, build/kit.pyz, for a machine without a network
	@$(PYTHON) scripts/build_pyz.py build/kit.pyz

# --- On the host:

.PHONY: image
image: ## the patched image (BASE_IMAGE=, SETS=, IMAGE=, BUILDER=), with docker, podman or buildah
	@docker/build.sh

# --- For a machine without an NPU (needs a network):

.PHONY: demo sandbox packages test test-unit test-target test-first-lane test-second-lane test-releases test-long test-e2e test-image lint bench lock clean
demo: sandbox $(if $(RELEASE),packages) ## the whole job on the real packages, in a sandbox (RELEASE=)
	@PATH="$(CURDIR)/$(SANDBOX)/venv/bin:$$PATH" scripts/demo.sh $(RELEASE)

sandbox: ## the real vLLM 0.20.2 and vllm-ascend 0.20.2rc1 below build/
	@$(ONE_AT_A_TIME) $(PYTHON) scripts/sandbox.py $(SANDBOX) $(CACHE)

packages: ## the published packages of the other releases, unpacked below build/ (RELEASES=)
	@$(ONE_AT_A_TIME) $(PYTHON) scripts/packages.py $(PACKAGES) $(CACHE) $(RELEASES)

test: ## all tests that need no NPU, in two lanes side by side
	@$(MAKE) --no-print-directory -j2 test-first-lane test-second-lane

# One after the other within each. A start of a server is mostly one process that imports.
test-first-lane:
	@$(MAKE) --no-print-directory -j1 lint test-unit test-e2e E2E='$(SERVERS)'

test-second-lane:
	@$(MAKE) --no-print-directory -j1 test-target test-releases test-e2e E2E='$(filter-out $(SERVERS) $(LONG),$(ALL_E2E))'

LONG := tests/e2e/test_mtp_answers.py tests/e2e/test_mtp_ascend.py tests/e2e/test_mtp_acceptance.py \
	tests/e2e/test_two_nodes_parted.py
ALL_E2E := $(sort $(wildcard tests/e2e/test_*.py))
SERVERS := $(filter tests/e2e/test_server_%,$(ALL_E2E))
E2E = $(filter-out $(LONG),$(ALL_E2E))

test-long: sandbox packages ## what does not fit into make test: drafting, and the other releases' numbers (RELEASES=)
	@$(call on_each_release,tests/target/test_activation.py tests/target/test_moe_mlp.py tests/target/test_window.py)
	@$(SANDBOX_PYTHON) -m pytest $(LONG)

lint: $(TOOLS)/complete ## ruff, mypy, shellcheck, hadolint
	@PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" scripts/lint.sh

test-unit: $(TOOLS)/complete $(DRAW)/complete ## the kit alone, without the real packages
	@KIT_DRAW_PYTHON='$(CURDIR)/$(DRAW)/bin/python' $(TOOLS)/bin/pytest tests/unit

test-target: sandbox packages ## on the real packages
	@$(SANDBOX_PYTHON) -m pytest tests/target

test-releases: sandbox packages ## what tells a broken set of the other releases, without a server (RELEASES=)
	@$(call on_each_release,tests/target/test_probe.py)

test-e2e: sandbox packages $(DRAW)/complete ## real servers with a tiny Step-3.7 (E2E=: these files alone)
	@KIT_DRAW_PYTHON='$(CURDIR)/$(DRAW)/bin/python' $(SANDBOX_PYTHON) -m pytest $(E2E)

test-image: $(IMAGE_TOOLS)/complete ## build and run the image on a stand-in base (root, buildah, debootstrap)
	@KIT_CACHE='$(abspath $(CACHE))' $(IMAGE_TOOLS)/bin/python -m pytest tests/image

bench: $(TOOLS)/complete ## apply, verify --fast and revert beside git apply, patch and quilt; the start-up; a long log
	@$(TOOLS)/bin/python tests/bench/patch_tools.py
	@echo
	@$(TOOLS)/bin/python tests/bench/start_up.py
	@echo
	@$(TOOLS)/bin/python tests/bench/explain_log.py

lock: $(TOOLS)/complete ## pin the requirements of tests/requirements/*.in anew (needs uv)
	@scripts/lock.sh

clean: ## remove what the targets above built; the downloads stay
	@rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# An environment for a set of pinned requirements; the stamp is younger than they are.
build/%/complete: tests/requirements/%.txt
	@rm -rf build/$*
	@$(PYTHON) -m venv build/$*
	@build/$*/bin/python -m pip --cache-dir $(CACHE)/pip --quiet --disable-pip-version-check \
		install --no-deps --require-hashes -r $<
	@touch $@
