#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One node of a server over several machines, through vLLM's Ray backend. Run inside the patched
# image, by its entry point. `start` brings the node up and stays; `health` is for the probes.
#   POD_NAME  ends in -0 on the head, where the server runs
#   NODE_IP   this node's address on NIC
#   NIC       the host's interface over which the nodes reach each other
#   HEAD      where the others find the head
#   NODES     how many nodes there are (8 NPUs each)
# More arguments after `start` are given to `vllm serve`.
set -euo pipefail

readonly RAY_PORT=6379
readonly KIT=/opt/step3p7-kit
readonly WAIT_S=${WAIT_S:-1800}
# shellcheck source=scripts/nodes.sh
source "$KIT/scripts/nodes.sh"

say() {
    printf 'ray-node: %s\n' "$*" >&2
}

is_head() {
    [[ $POD_NAME == *-0 ]]
}

# Ray hands the environment on to its workers, so all of this must stand before it starts.
prepare_network() {
    if [[ ! -e /sys/class/net/$NIC ]]; then
        say "NIC is $NIC, which is no network interface of this node; nothing was started."
        say "Next: set it to one of these: $(interfaces)"
        exit 3
    fi
    export_network "$NIC" "$NODE_IP"
    # Else Ray narrows each worker's NPUs, and vllm-ascend then cannot find its own.
    export RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1
    export RAY_USAGE_STATS_ENABLED=0
}

joined_nodes() {
    python3 -c 'import ray
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))'
}

# Repeat a command until it succeeds, or give up.
wait_for() {
    local what=$1 until=$((SECONDS + WAIT_S))
    shift
    until "$@"; do
        if ((SECONDS >= until)); then
            say "waited $WAIT_S s for $what, in vain."
            exit 4
        fi
        sleep 5
    done
}

all_joined() {
    (($(joined_nodes || echo 0) >= NODES))
}

start_head() {
    ray start --head --port "$RAY_PORT" --node-ip-address "$NODE_IP"
    wait_for "all $NODES nodes to join" all_joined
    exec vllm serve /model --config "$KIT/scripts/serving/profiles/agent.yaml" --host 0.0.0.0 --port 8000 \
        --distributed-executor-backend ray --pipeline-parallel-size "$NODES" "$@"
}

# --block: when the head goes, so does this, and the pod is started anew and joins again.
start_worker() {
    wait_for "the name $HEAD" getent ahosts "$HEAD" >/dev/null
    exec ray start --block --address "$HEAD:$RAY_PORT" --node-ip-address "$NODE_IP"
}

health() {
    if is_head; then
        curl --fail --silent --max-time 10 http://127.0.0.1:8000/health
    else
        ray status --address "$HEAD:$RAY_PORT" >/dev/null
    fi
}

case ${1:-} in
    start)
        shift
        prepare_network
        if is_head; then start_head "$@"; else start_worker; fi
        ;;
    health) health ;;
    *)
        say "usage: ray-node.sh start [VLLM-OPTION...] | health"
        exit 2
        ;;
esac
