#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One node of a server over several machines, by vLLM's own executor, without Ray. Run inside the
# patched image, by its entry point. `start` serves and stays; `started` and `health` are for the probes.
#   POD_NAME  ends in -0 on the head, where the server answers, and in -1 on the next
#   NIC       the host's interface over which the nodes reach each other
#   HEAD      where the others find the head
#   NODES     how many nodes there are (8 NPUs each)
# More arguments after `start` are given to `vllm serve`.
set -euo pipefail

readonly KIT=/opt/step3p7-kit
readonly WAIT_S=${WAIT_S:-1800}
readonly URL=${URL:-http://${HEAD:-127.0.0.1}:8000}
# As the profile names it.
readonly SERVED_NAME=${SERVED_NAME:-step3p7-flash}

say() {
    printf 'node: %s\n' "$*" >&2
}

address_of_head() {
    getent ahostsv4 "$HEAD" | awk 'NR == 1 {print $1}'
}

# A name resolves only when the head's pod is there. vllm-ascend listens on an address, not on a name.
wait_for_head() {
    local until=$((SECONDS + WAIT_S))
    MASTER=$(address_of_head || true)
    while [[ -z $MASTER ]]; do
        if ((SECONDS >= until)); then
            say "waited $WAIT_S s for the name $HEAD, in vain."
            exit 4
        fi
        sleep 5
        MASTER=$(address_of_head || true)
    done
}

start() {
    wait_for_head
    export MASTER NIC NODES NODE_RANK=${POD_NAME##*-}
    # Findings go to the pod's log; what is refused (a set that is not applied) stops it all the same.
    export MODEL=/model PROFILE=agent HOST=0.0.0.0 PORT=8000 API_KEY=${VLLM_API_KEY:-} FORCE=1
    exec "$KIT/scripts/serve.sh" "$@"
}

# By standard input, so that the key is on no command line.
ask() {
    curl --fail --silent --noproxy '*' --config - "$@" <<END
header = "Authorization: Bearer ${VLLM_API_KEY:-none}"
header = "Content-Type: application/json"
END
}

started() {
    ask --max-time 10 "$URL/health" >/dev/null
}

# One token. /health stays 200 when a worker of another node is dead, and every request then waits
# for ever; so only an answer tells. The same on every node: one that lost the head starts anew too.
health() {
    ask --max-time "${ANSWER_S:-50}" --data "{\"model\": \"$SERVED_NAME\", \"prompt\": \"1\", \"max_tokens\": 1}" \
        "$URL/v1/completions" >/dev/null
}

case ${1:-} in
    start)
        shift
        start "$@"
        ;;
    started) started ;;
    health) health ;;
    *)
        say "usage: node.sh start [VLLM-OPTION...] | started | health"
        exit 2
        ;;
esac
