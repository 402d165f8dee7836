#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The entry point of the patched image: CANN's environment, the driver's libraries and jemalloc,
# then the command. The base image sets jemalloc and a part of LD_LIBRARY_PATH in ~/.bashrc
# only, which no start without a terminal reads (Kubernetes, compose, docker run -d).
# Whatever is absent is left out; nothing here stops the command from being run.
set -euo pipefail

readonly ASCEND=/usr/local/Ascend

say() {
    printf 'entrypoint: %s\n' "$*" >&2
}

# Source one of CANN's scripts, where there is one. They read unset variables, so -u must be off;
# they read their arguments, so they must not see those of the command; and what they print must
# not mix with what the command prints.
load() {
    local script=$1 status=0
    shift
    [[ -r $script ]] || return 0
    set +eu
    # shellcheck disable=SC1090
    source "$script" >&2 || status=$?
    set -eu
    ((status == 0)) || say "$script ended with exit code $status; going on"
}

# Whether a folder is already in LD_LIBRARY_PATH (the base writes some with a slash at the end).
is_searched() {
    [[ ":${LD_LIBRARY_PATH:-}:" == *":$1:"* || ":${LD_LIBRARY_PATH:-}:" == *":$1/:"* ]]
}

# The driver is the host's and is mounted at the start, so no image can know of it.
search_libraries() {
    local folder
    for folder in "$ASCEND"/driver/lib64{/driver,/common,}; do
        if [[ -d $folder ]] && ! is_searched "$folder"; then
            LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        fi
    done
    is_searched /usr/local/lib || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/lib
    export LD_LIBRARY_PATH
}

# Put jemalloc in front of LD_PRELOAD, unless it is there; Ubuntu's place first, then openEuler's.
preload_jemalloc() {
    local candidate entry
    for entry in ${LD_PRELOAD:+${LD_PRELOAD//:/ }}; do
        if [[ ! -e $entry ]]; then
            say "LD_PRELOAD names $entry, which is not there: the loader will ignore it"
        elif [[ $entry == *libjemalloc* ]]; then
            return
        fi
    done
    for candidate in "/usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2" /usr/lib64/libjemalloc.so.2; do
        if [[ -e $candidate ]]; then
            export LD_PRELOAD=$candidate${LD_PRELOAD:+:$LD_PRELOAD}
            return
        fi
    done
}

# PyTorch asks for the user's name and everything for a home folder: without either a server
# dies in a stack trace that names neither.
settle_user() {
    if ! id -un >/dev/null 2>&1; then
        USER=uid-$(id -u)
        export USER LOGNAME=$USER
        say "user id $(id -u) has no passwd entry; it goes by the name $USER"
    fi
    if [[ -z ${HOME:-} || ! -w $HOME ]]; then
        say "the home folder '${HOME:-}' cannot be written; using /tmp/home-$(id -u)"
        HOME=/tmp/home-$(id -u)
        export HOME
        (umask 077 && mkdir -p "$HOME") || say "$HOME cannot be made either"
    fi
}

if (($# == 0)); then
    say "no command was given; for example: vllm serve /model"
    exit 2
fi
settle_user
search_libraries
load "$ASCEND/ascend-toolkit/set_env.sh"
load "${ASCEND_TOOLKIT_HOME:-$ASCEND/ascend-toolkit/latest}/share/info/ascendnpu-ir/bin/set_env.sh"
load "$ASCEND/nnal/atb/set_env.sh"
preload_jemalloc
exec "$@"
