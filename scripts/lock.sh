#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Pin the requirements anew, with the hashes of every platform's files.
set -euo pipefail

cd "$(dirname "$0")/../tests/requirements"

if ! command -v uv >/dev/null; then
    echo 'lock: uv is not on PATH; nothing was changed.' >&2
    echo 'Next: python3 -m pip install uv' >&2
    exit 3
fi

for source in *.in releases/*.in; do
    options=(--universal --python-version 3.11 --generate-hashes --quiet --no-annotate)
    options+=(--custom-compile-command 'make lock')
    case $source in
        # What these need besides, the sandbox has.
        packages.in | peer.in | native.in | releases/*) options+=(--no-deps --prerelease=allow) ;;
    esac
    uv pip compile "${options[@]}" "$source" -o "${source%.in}.txt"
done
