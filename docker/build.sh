#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the patched image (make image), with docker, podman or buildah. The host needs neither
# Python nor a network, if the base image is loaded already. Variables:
#   BASE_IMAGE  the image to patch   (quay.io/ascend/vllm-ascend:v0.20.2rc1; or its -openeuler)
#   SETS        opt-in sets on the base set, with spaces between (none; see kit sets)
#   IMAGE       what to call it      (step3p7-vllm-ascend:v0.20.2rc1, and -SET for each)
#   BUILDER     docker, podman or buildah   (the first of them that works here)
set -euo pipefail

if (($#)); then # it takes variables, no arguments
    sed -n '3,8s/^# //p' "${BASH_SOURCE[0]}"
    [[ $1 == -h || $1 == --help ]] && exit 0
    exit 2
fi

KIT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=docker/engine.sh
source "$KIT/docker/engine.sh"

# For the names and labels of the result alone. What is applied is decided by what is in the image.
SET=v0.20.2rc1
BASE_IMAGE=${BASE_IMAGE:-quay.io/ascend/vllm-ascend:$SET}
for release in "$KIT"/patches/*/; do
    release=$(basename -- "$release")
    [[ ${BASE_IMAGE##*:} != "$release"* ]] || SET=$release
done
readonly SET
read -r -a sets <<<"${SETS:-}"
IMAGE=${IMAGE:-step3p7-vllm-ascend:$SET${sets[*]:+-$(IFS=- && printf '%s' "${sets[*]}")}}
BUILDER=${BUILDER:-$(first_usable docker podman buildah || true)}

# The registry's digest of a local image; "unknown" for one that came from an archive.
base_digest() {
    local digest
    case $(basename -- "$BUILDER") in
        docker) digest=$("$BUILDER" image inspect --format '{{join .RepoDigests " "}}' "$BASE_IMAGE") ;;
        podman) digest=$("$BUILDER" image inspect --format '{{.Digest}}' "$BASE_IMAGE") ;;
        *) digest=$("$BUILDER" inspect --type image --format '{{.FromImageDigest}}' "$BASE_IMAGE") ;;
    esac
    [[ $digest =~ sha256:[0-9a-f]{64} ]] && printf '%s\n' "${BASH_REMATCH[0]}" || printf 'unknown\n'
}

is_local() {
    case $(basename -- "$BUILDER") in
        buildah) "$BUILDER" inspect --type image "$BASE_IMAGE" >/dev/null 2>&1 ;;
        *) "$BUILDER" image inspect "$BASE_IMAGE" >/dev/null 2>&1 ;;
    esac
}

if [[ -z $BUILDER ]]; then
    refuse "neither docker (with its daemon), podman nor buildah works here; nothing was built." \
        "install one of them, or run this on a machine that has one: make image"
fi
is_usable "$BUILDER" || refuse "$BUILDER does not work here; nothing was built." \
    "start its daemon, or name another one: make image BUILDER=podman"
if ! is_local && ! "$BUILDER" pull "$BASE_IMAGE"; then
    refuse "the base image $BASE_IMAGE is not here and cannot be fetched; nothing was built." \
        "load it (docker load -i FILE, podman load -i FILE), or name another one: make image BASE_IMAGE=..."
fi

options=(
    --file "$KIT/docker/Dockerfile"
    --tag "$IMAGE"
    --build-arg "BASE_IMAGE=$BASE_IMAGE"
    --build-arg "BASE_DIGEST=$(base_digest)"
    --build-arg "KIT_VERSION=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' "$KIT/scripts/commands/request.py")"
    --build-arg "KIT_SET=$SET"
    --build-arg "SETS=${sets[*]-}"
    --build-arg "MANIFEST_SHA256=$(sha256sum "$KIT/patches/$SET/manifest.toml" | cut -d ' ' -f 1)"
    --build-arg "REVISION=$(git -C "$KIT" rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)"
)
# The base is local by now, and nothing else is fetched: hence no network. (Buildah without
# namespaces cannot take it away.)
[[ ${BUILDAH_ISOLATION:-} == chroot ]] || options+=(--network none)
# No registry need be asked for the base; docker's format keeps its SHELL.
case $(basename -- "$BUILDER") in
    docker) build=(build) ;;
    podman) build=(build --pull=false --format docker) ;;
    *) build=(bud --layers --pull-never --format docker) ;;
esac

printf 'image: building %s from %s with %s\n' "$IMAGE" "$BASE_IMAGE" "$BUILDER"
if ! "$BUILDER" "${build[@]}" "${options[@]}" "$KIT"; then
    printf 'image: not built; the lines above say why.\n' >&2
    exit 4
fi
printf 'image: built %s\n' "$IMAGE"
