# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by build.sh and run.sh: which container engine is usable here.

# docker is often installed as a client alone, so it counts only if its daemon answers.
is_usable() {
    command -v "$1" >/dev/null || return 1
    [[ $(basename -- "$1") != docker ]] || docker version >/dev/null 2>&1
}

# Print the first usable one of the engines named.
first_usable() {
    local engine
    for engine in "$@"; do
        if is_usable "$engine"; then
            printf '%s\n' "$engine"
            return
        fi
    done
    return 1
}

# One sentence of what is wrong, and one of what to do; 3 is the kit's code for "nothing was changed".
refuse() {
    printf '%s: %s\nNext: %s\n' "$(basename -- "$0")" "$1" "$2" >&2
    exit 3
}
