#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail

KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=docker/engine.sh
source "$KIT/docker/engine.sh"

readonly SET=v0.20.2rc1
readonly INSIDE=/opt/step3p7-kit

usage() {
    cat <<'END'
Start the server in a container, on one machine with 8 NPUs.

usage: MODEL=/data/Step-3.7-Flash docker/run.sh [--mount] [--print] [-- VLLM-OPTION...]

  --mount   take the official image as it is, and mount the patched files over it, read-only
  --print   print the command, start nothing, and do not look for NPUs
  --        whatever follows is given to `vllm serve`, and wins over the profile

  MODEL     the folder of the checkpoint (mounted read-only)
  IMAGE     what to run      (step3p7-vllm-ascend:v0.20.2rc1; with --mount the official image)
  HOST      where to publish (127.0.0.1; 0.0.0.0 is every address of this machine)
  PORT      the port there   (8000)
  PROFILE   agent, or another of scripts/serving/profiles (agent)
  API_KEY   what clients must send as a bearer token (none)
  NAME      of the container (step3p7)
  ENGINE    docker or podman (the first of them that works here)

exit codes: 0 started or printed, 2 usage, 3 refused and nothing was started, else the engine's own
END
}

mounted=no
print_only=no
while (($# > 0)); do
    case $1 in
        --mount) mounted=yes ;;
        --print) print_only=yes ;;
        --) shift && break ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

MODEL=${MODEL:-}
HOST=${HOST:-127.0.0.1}
PROFILE=${PROFILE:-agent}
PORT=${PORT:-8000}
NAME=${NAME:-step3p7}
if [[ $mounted == yes ]]; then
    IMAGE=${IMAGE:-quay.io/ascend/vllm-ascend:$SET}
else
    IMAGE=${IMAGE:-step3p7-vllm-ascend:$SET}
fi
ENGINE=${ENGINE:-$(first_usable docker podman || true)}

DEVICES=(/dev/davinci{0..7} /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc)
# The driver is the host's; vllm-ascend needs these of it. npu-smi has moved in newer drivers.
NPU_SMI=/usr/local/bin/npu-smi
[[ -e $NPU_SMI || ! -e /usr/local/sbin/npu-smi ]] || NPU_SMI=/usr/local/sbin/npu-smi
DRIVER_FILES=(
    /usr/local/Ascend/driver:/usr/local/Ascend/driver
    /usr/local/dcmi:/usr/local/dcmi
    "$NPU_SMI:/usr/local/bin/npu-smi"
    /etc/ascend_install.info:/etc/ascend_install.info
)

nothing_started() {
    refuse "$1; nothing was started." "$2"
}

check_model() {
    local link real
    [[ -n $MODEL ]] || nothing_started "MODEL is not set" "MODEL=/data/Step-3.7-Flash docker/run.sh"
    [[ -f $MODEL/config.json ]] || nothing_started "$MODEL holds no config.json, so it is no model folder" \
        "name the folder with config.json and the *.safetensors files: MODEL=... docker/run.sh"
    MODEL=$(cd "$MODEL" && pwd -P)
    while IFS= read -r link; do
        real=$(readlink -f "$link" || true)
        [[ $real == "$MODEL"/* ]] || nothing_started \
            "$link is a link to $(readlink "$link"), outside of what is mounted (a download cache?)" \
            "copy the files themselves: cp -rL $MODEL /data/Step-3.7-Flash"
    done < <(find "$MODEL" -type l)
}

check_host() {
    local path
    for path in "${DEVICES[@]}" "${DRIVER_FILES[@]%%:*}"; do
        [[ -e $path ]] || nothing_started "$path is not on this machine" \
            "install the NPU driver, and see that 'npu-smi info' lists 8 NPUs"
    done
}

# Mount mode: let the image itself build the patched files; print them as `--mount` values.
overlay_mounts() {
    local folder=$KIT/build/overlay/$SET answer
    mkdir -p "$folder"
    answer=$("$ENGINE" run --rm --entrypoint "$INSIDE/scripts/kit" \
        --mount "type=bind,source=$KIT,target=$INSIDE,readonly" \
        --mount "type=bind,source=$folder,target=/overlay" \
        "$IMAGE" overlay --out /overlay) ||
        nothing_started "the patched files could not be built from $IMAGE" "see the lines above"
    printf '%s\n' "$answer" |
        sed -n "s|^ *-v /overlay/\(.*\):\(.*\):ro.*|type=bind,source=$folder/\1,target=\2,readonly|p"
}

# A host in a URL or a port mapping: IPv6 in brackets.
bracketed() {
    [[ $1 == *:* ]] && printf '[%s]' "$1" || printf '%s' "$1"
}

# Where this machine itself reaches what is published on HOST.
own_address() {
    case $HOST in
        0.0.0.0) bracketed 127.0.0.1 ;;
        ::) bracketed ::1 ;;
        *) bracketed "$HOST" ;;
    esac
}

# A command as a person would type it: one option a line, quotes only where they are needed.
print_command() {
    local word
    for word in "$@"; do
        [[ $word != --* && $word != "$IMAGE" ]] || printf '\\\n  '
        [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
        printf '%s ' "$word"
    done
    printf '\n'
}

check_model
[[ -f $KIT/scripts/serving/profiles/$PROFILE.yaml ]] || nothing_started \
    "PROFILE is $PROFILE, which is none of scripts/serving/profiles" "PROFILE=agent docker/run.sh"
[[ $PORT =~ ^[0-9]{1,5}$ ]] || nothing_started "PORT is $PORT, which is no number of a port" "PORT=8000 docker/run.sh"
[[ $HOST =~ ^[0-9.]+$ || $HOST == *:* ]] || nothing_started \
    "HOST is $HOST, which is no IP address" "HOST=127.0.0.1 (or an address of this machine) docker/run.sh"
[[ -n $ENGINE ]] || [[ $print_only == yes && $mounted == no ]] || nothing_started \
    "neither docker (with its daemon) nor podman works here" "start docker, or name an engine: ENGINE=..."
ENGINE=${ENGINE:-docker}
[[ $print_only == yes ]] || check_host

options=(
    --detach --name "$NAME" --init --restart unless-stopped --stop-timeout 120
    --publish "$(bracketed "$HOST"):$PORT:8000"
    --shm-size 16g --security-opt no-new-privileges
    --env-file "$KIT/docker/serve.env" --env VLLM_API_KEY
    --log-driver json-file --log-opt max-size=100m --log-opt max-file=5
    --health-cmd "curl --fail --silent --max-time 5 http://127.0.0.1:8000/health"
    --health-interval 30s --health-timeout 10s --health-retries 5 --health-start-period 90m
    --mount "type=bind,source=$MODEL,target=/model,readonly"
)
for device in "${DEVICES[@]}"; do
    options+=(--device "$device")
done
for pair in "${DRIVER_FILES[@]}"; do
    options+=(--mount "type=bind,source=${pair%%:*},target=${pair#*:},readonly")
done
if [[ $mounted == yes ]]; then
    mounts=$(overlay_mounts)
    [[ -n $mounts ]] || nothing_started "$IMAGE needs no patched files: it has the model by itself" \
        "run it as it is"
    while IFS= read -r mount; do
        options+=(--mount "$mount")
    done <<<"$mounts"
    options+=(--mount "type=bind,source=$KIT,target=$INSIDE,readonly" --entrypoint "$INSIDE/docker/entrypoint.sh")
fi
command=("$ENGINE" run "${options[@]}" "$IMAGE" vllm serve /model
    --config "$INSIDE/scripts/serving/profiles/$PROFILE.yaml" --host 0.0.0.0 --port 8000 "$@")

if [[ $print_only == yes ]]; then
    [[ -z ${API_KEY:-} ]] || printf 'export VLLM_API_KEY=...  # the key itself is not printed\n'
    print_command "${command[@]}"
    exit 0
fi
if [[ -z ${API_KEY:-} && $HOST != 127.* && $HOST != ::1 ]]; then
    printf 'run.sh: warning: published on %s without an API_KEY: whoever reaches this port can use it.\n' "$HOST" >&2
fi
# By the environment, so that the key is on no command line.
export VLLM_API_KEY=${API_KEY:-}
"${command[@]}"
cat <<END
run.sh: started $NAME; loading 403 GB takes minutes. It is ready when this answers:
  curl --fail http://$(own_address):$PORT/health
  log: $ENGINE logs -f $NAME     state: $ENGINE exec $NAME $INSIDE/scripts/kit status
END
