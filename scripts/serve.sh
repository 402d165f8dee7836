#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/nodes.sh
source "$KIT/scripts/nodes.sh"

usage() {
    cat <<'END'
Start the server, in this container, with a profile whose every flag has a reason.

usage: MODEL=/data/Step-3.7-Flash scripts/serve.sh [VLLM-OPTION...]

  VLLM-OPTION  whatever follows is given to `vllm serve`, and wins over the profile

  MODEL    the folder of the checkpoint
  PROFILE  bf16-tp8, agent, expert-parallel, fp16-tp8, long-131072, long-262144,
           or the path of a .yaml file (bf16-tp8)
  HOST     where to listen (127.0.0.1; 0.0.0.0 is every address)
  PORT     the port there  (8000)
  API_KEY  what clients must send as a bearer token (none)
  FORCE    1: start in spite of the problems that were found
  DRY_RUN  1: print the command and start nothing
  ROOT     a folder that holds vllm/ and vllm_ascend/, in place of those of the vllm command
  IGNORE   names of checks of `kit doctor` to leave out, with spaces between them

One server over several machines, each with the same command but for NODE_RANK:

  NODES        how many (1)
  NODE_RANK    0 on the one that answers, 1 on the next
  MASTER       the IPv4 address of node 0, on every node
  NIC          this machine's network interface towards the others
  MASTER_PORT  a free port of node 0 (29501)

exit codes: 1 a problem was found and nothing was started, 2 usage, 3 refused and nothing was
started, else those of `vllm serve`
END
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { usage && exit 0; }

# CANN, the driver's libraries, jemalloc and a home folder: as in the image, by the same file.
# Nothing of it is left to ~/.bashrc, and the checks below see what vLLM will see.
if [[ -z ${STEP3P7_ENVIRONMENT_IS_SET:-} ]]; then
    export STEP3P7_ENVIRONMENT_IS_SET=1
    exec "$KIT/docker/entrypoint.sh" "$KIT/scripts/serve.sh" "$@"
fi

# One sentence of what is wrong, and one of what to do; 3 is the kit's code for "nothing was changed".
refuse() {
    printf 'serve.sh: %s; nothing was started.\nNext: %s\n' "$1" "$2" >&2
    exit 3
}

MODEL=${MODEL:-}
PROFILE=${PROFILE:-bf16-tp8}
HOST=${HOST:-127.0.0.1}
PORT=${PORT:-8000}
[[ -n $MODEL ]] || refuse "MODEL is not set" "MODEL=/data/Step-3.7-Flash scripts/serve.sh"
[[ $PORT =~ ^[0-9]{1,5}$ ]] || refuse "PORT is $PORT, which is no number of a port" "PORT=8000 scripts/serve.sh"
command -v vllm >/dev/null || refuse "there is no vllm command on PATH" \
    "run this inside the container of vllm-ascend v0.20.2rc1"

NODES=${NODES:-1}
MASTER_PORT=${MASTER_PORT:-29501}
of_node=()
[[ $NODES == 1 ]] || prepare_node

file=$PROFILE
[[ $PROFILE == */* || $PROFILE == *.y*ml ]] || file=$KIT/scripts/serving/profiles/$PROFILE.yaml

# On standard error: standard output is the server's, and in a dry run the command's.
look() {
    local name options=()
    for name in ${IGNORE:-}; do
        options+=(--ignore "$name")
    done
    [[ -z ${ROOT:-} ]] || options+=(--root "$ROOT")
    [[ -z ${API_KEY:-} ]] || options+=(--with-key)
    "$KIT/scripts/kit" preflight --profile "$PROFILE" --host "$HOST" --port "$PORT" \
        "${options[@]}" -- "$MODEL" "${of_node[@]}" "$@" >&2
}

# This very call, as it can be typed again; the key is left to whoever types it.
again() {
    local name
    for name in MODEL PROFILE HOST PORT ROOT IGNORE NODES NODE_RANK MASTER MASTER_PORT NIC; do
        [[ -z ${!name:-} ]] || printf '%s=%q ' "$name" "${!name}"
    done
    printf '%q ' "$KIT/scripts/serve.sh" "$@"
}

status=0
look "$@" || status=$?
((status <= 1)) || exit "$status"
if ((status == 1)) && [[ ${DRY_RUN:-} != 1 ]]; then
    if [[ ${FORCE:-} != 1 ]]; then
        printf 'serve.sh: nothing was started.\nNext: FORCE=1 %s    # or cure the first problem\n' "$(again "$@")" >&2
        exit 1
    fi
    printf 'serve.sh: starting all the same, because of FORCE=1.\n' >&2
fi

command=(vllm serve "$MODEL" --config "$file" --host "$HOST" --port "$PORT" "${of_node[@]}" "$@")
if [[ ${DRY_RUN:-} == 1 ]]; then
    [[ -z ${API_KEY:-} ]] || printf 'VLLM_API_KEY=... '
    printf '%q ' "${command[@]}"
    printf '\n'
    exit 0
fi
# By the environment, so that the key is on no command line; and only now, so that no check can print it.
[[ -z ${API_KEY:-} ]] || export VLLM_API_KEY=$API_KEY
exec "${command[@]}"
