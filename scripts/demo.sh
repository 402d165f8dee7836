#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on the real packages: what make demo shows, once the sandbox is there.
#
#   scripts/demo.sh [RELEASE]    RELEASE: of make packages, in a copy; else the sandbox's own
set -euo pipefail

cd "$(dirname "$0")/.."

show() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

at=() packages=() demo=build/demo
if (($#)); then
    demo=build/demo-$1
    packages=("$demo/packages")
    at=(--root "$demo/packages")
    rm -rf "$demo"
    mkdir -p "$demo"
    cp -al "build/packages/$1" "$demo/packages" # links are enough: the kit replaces, it never writes into a file
fi

# From here on vllm is the sandbox's, as it is the container's: the kit finds it by itself.
scripts/kit revert "${at[@]}" >/dev/null
show scripts/kit status "${at[@]}" || true
show scripts/kit apply "${at[@]}"
show scripts/kit verify "${at[@]}"
show scripts/kit apply "${at[@]}"
show scripts/kit revert "${at[@]}"
(($#)) || show git -C build/sandbox/vllm-workspace/vllm status --short
show scripts/kit apply "${at[@]}"

printf '\n\033[1mA server, on two CPU cores\033[0m\n'
PYTHONPATH=tests build/sandbox/venv/bin/python -m e2e.tour "$demo" "${packages[@]}"
