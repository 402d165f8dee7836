#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on the real packages: what make demo shows, once the sandbox is there.
set -euo pipefail

cd "$(dirname "$0")/.."

show() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

# From here on vllm is the sandbox's, as it is the container's: the kit finds it by itself.
scripts/kit revert >/dev/null
show scripts/kit status || true
show scripts/kit apply
show scripts/kit verify
show scripts/kit apply
show scripts/kit revert
show git -C build/sandbox/vllm-workspace/vllm status --short
show scripts/kit apply

printf '\n\033[1mA server, on two CPU cores\033[0m\n'
PYTHONPATH=tests build/sandbox/venv/bin/python -m e2e.tour build/demo
