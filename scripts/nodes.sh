# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# One server over several machines, by vLLM's own executor and without Ray: what each of them needs.
# To be sourced by serve.sh, whose `refuse` it uses, and by the scripts of docker/k8s.

# The IPv4 address of an interface; nothing where it has none. No `ip` command is needed.
address_of() {
    python3 -I -S - "$1" <<'END' 2>/dev/null || true
import fcntl, socket, struct, sys
SIOCGIFADDR = 0x8915
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    found = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", sys.argv[1].encode()[:15]))
print(socket.inet_ntoa(found[20:24]))
END
}

interfaces() {
    (cd /sys/class/net && echo *)
}

# All that opens a connection to another node: HCCL, gloo, torch, and vLLM itself.
export_network() {
    local interface=$1 address=$2
    export HCCL_IF_IP=$address VLLM_HOST_IP=$address
    export HCCL_SOCKET_IFNAME=$interface GLOO_SOCKET_IFNAME=$interface TP_SOCKET_IFNAME=$interface
}

# NODES, NODE_RANK, MASTER, MASTER_PORT, NIC: looked at, exported as the libraries want them, and as
# the options of `vllm serve` in the array `of_node`. vllm-ascend's executor listens on the very text
# of MASTER, so a name does not do.
prepare_node() {
    local address
    [[ $NODES =~ ^[1-9][0-9]?$ ]] || refuse "NODES is $NODES, expected how many machines" "NODES=2 ..."
    [[ ${NODE_RANK:-} =~ ^(0|[1-9][0-9]?)$ && $NODE_RANK -lt $NODES ]] ||
        refuse "NODE_RANK is '${NODE_RANK:-}', expected 0 to $((NODES - 1)): 0 on the one that answers" \
            "NODES=$NODES NODE_RANK=0 ..."
    [[ ${MASTER:-} =~ ^([0-9]{1,3}\.){3}[0-9]{1,3}$ ]] ||
        refuse "MASTER is '${MASTER:-}', expected the IPv4 address of node 0, and no name" \
            "MASTER=192.0.2.1 ... on every node"
    [[ $MASTER_PORT =~ ^[0-9]{1,5}$ ]] || refuse "MASTER_PORT is $MASTER_PORT, which is no number of a port" \
        "MASTER_PORT=29501 ... on every node"
    [[ -n ${NIC:-} && -e /sys/class/net/$NIC ]] ||
        refuse "NIC is '${NIC:-}', which is no network interface of this machine" \
            "NIC=... one of: $(interfaces)"
    address=$(address_of "$NIC")
    [[ -n $address ]] || refuse "the interface $NIC has no IPv4 address" "NIC=... one of: $(interfaces)"
    [[ $NODE_RANK != 0 || $address == "$MASTER" ]] ||
        refuse "MASTER is $MASTER, and this is node 0, whose address on $NIC is $address" \
            "MASTER=$address ... on every node"
    export_network "$NIC" "$address"
    of_node=(--pipeline-parallel-size "$NODES" --nnodes "$NODES" --node-rank "$NODE_RANK"
        --master-addr "$MASTER" --master-port "$MASTER_PORT")
    ((NODE_RANK == 0)) || of_node+=(--headless)
}
