#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every linter once, all of their findings, one exit code.
set -uo pipefail

cd "$(dirname "$0")/.." || exit
failed=0

check() {
    printf 'lint: %s\n' "$1"
    shift
    "$@" || failed=1
}

mapfile -t shell_files < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
mapfile -t dockerfiles < <(git ls-files --cached --others --exclude-standard '*Dockerfile*' ':!*.dockerignore')

check 'ruff format' ruff format --quiet --check .
check 'ruff' ruff check --quiet .
check 'mypy --strict, what runs in the container' mypy scripts/cli.py scripts/commands scripts/serving scripts/patchkit
check 'mypy --strict, the tools and tests' mypy scripts/sandbox.py scripts/build_pyz.py tests
check 'shellcheck' shellcheck "${shell_files[@]}"
if ((${#dockerfiles[@]})); then
    check 'hadolint' hadolint "${dockerfiles[@]}"
fi
exit "$failed"
