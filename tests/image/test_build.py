# SPDX-License-Identifier: Apache-2.0
"""``make image``: what the build adds, what it says, and which bases it refuses."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from image import standin
from image.buildah import Buildah
from image.builder import KIT, Build, Builder

MAXIMUM_ADDED_BYTES = 1_500_000
"""The kit with its pages, and the sets of every release."""
ASCEND = "/vllm-workspace/vllm-ascend/vllm_ascend"
PATCHED = {
    "vllm-workspace/vllm/vllm/model_executor/models/registry.py",
    "vllm-workspace/vllm/vllm/tokenizers/registry.py",
    "vllm-workspace/vllm-ascend/vllm_ascend/ops/activation.py",
    "vllm-workspace/vllm-ascend/vllm_ascend/ops/fused_moe/moe_mlp.py",
}
NEW = {"vllm-workspace/vllm/vllm/model_executor/models/step3p7.py", "usr/local/bin/kit"}
# What buildah itself lays into any container that it runs.
FROM_BUILDAH = {"etc/hosts", "etc/resolv.conf", "etc/hostname", "run/.containerenv"}


@pytest.fixture
def altered_base(buildah: Buildah, tmp_path: Path) -> Callable[[str], str]:
    """Makes a base image that differs from the stand-in by a shell script run in it."""

    def make(script: str) -> str:
        image = f"localhost/altered:{hashlib.sha256(script.encode()).hexdigest()[:12]}"
        (tmp_path / "script.sh").write_text(script)
        (tmp_path / "Dockerfile").write_text(
            f"FROM {standin.EDITABLE}\nCOPY script.sh /tmp/\nRUN sh -eu /tmp/script.sh && rm /tmp/script.sh\n"
        )
        buildah.build(image, tmp_path / "Dockerfile", tmp_path)
        return image

    return make


def contents(root: Path) -> dict[str, str]:
    """Every file and link below a folder: its hash, or where it points."""
    paths = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
    return {str(path.relative_to(root)): _content(path) for path in paths if _is_stored(path)}


def _is_stored(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_the_build_applies_the_set_and_verifies_it(patched: Build) -> None:
    assert "applied: 5 of 5 files written, each read back and hashed." in patched.output
    assert "verified: 10 checks passed, 5 not run." in patched.output
    assert patched.output.endswith(f"image: built {patched.image}\n")


def test_the_image_differs_from_its_base_in_the_five_files_and_the_kit(
    buildah: Buildah, patched: Build
) -> None:
    with buildah.container(standin.EDITABLE) as base, buildah.container(patched.image) as image:
        before, after = contents(base.root), contents(image.root)

    changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    added = {name for name in after.keys() - before.keys() if not name.startswith("opt/step3p7-kit/")}
    assert before.keys() - after.keys() == set()
    assert changed - FROM_BUILDAH == PATCHED
    assert added - FROM_BUILDAH == NEW


def test_only_the_kit_gets_into_the_image(buildah: Buildah, patched: Build) -> None:
    with buildah.container(patched.image) as image:
        kit = set(contents(image.root / "opt/step3p7-kit"))

    assert {Path(name).parts[0] for name in kit} <= {
        *("LICENSE", "NOTICE", "Makefile", "README.md", "README.zh-CN.md"),
        *("docker", "docs", "overlay", "patches", "scripts"),
    }
    assert {"scripts/kit", "docker/entrypoint.sh", "patches/v0.20.2rc1/manifest.toml"} <= kit
    assert not [name for name in kit if "__pycache__" in name]


def test_the_image_adds_less_than_one_and_a_half_megabytes(buildah: Buildah, patched: Build) -> None:
    base = buildah.layer_sizes(standin.EDITABLE)
    added = {
        digest: size for digest, size in buildah.layer_sizes(patched.image).items() if digest not in base
    }

    print(f"layers added: {sorted(added.values())} bytes")
    assert 0 < sum(added.values()) < MAXIMUM_ADDED_BYTES


def test_the_image_keeps_what_its_base_sets_except_the_entry_point(buildah: Buildah, patched: Build) -> None:
    base, image = buildah.inspect(standin.EDITABLE), buildah.inspect(patched.image)

    kept = ("Env", "WorkingDir", "User", "Cmd", "ExposedPorts", "Volumes")
    assert {key: image.get(key) for key in kept} == {key: base.get(key) for key in kept}
    assert image["Entrypoint"] == ["/opt/step3p7-kit/docker/entrypoint.sh"]


def test_the_labels_name_kit_manifest_and_base(buildah: Buildah, patched: Build) -> None:
    labels = buildah.inspect(patched.image)["Labels"]
    manifest = (KIT / "patches/v0.20.2rc1/manifest.toml").read_bytes()
    with buildah.container(patched.image) as image:
        version = image.shell("kit --version")
    digest = buildah.output("inspect", "--format", "{{.FromImageDigest}}", standin.EDITABLE)

    assert f"kit {labels['step3p7-kit.version']}\n" == version
    assert labels["org.opencontainers.image.version"] == labels["step3p7-kit.version"]
    assert labels["step3p7-kit.set"] == "v0.20.2rc1"
    assert labels["step3p7-kit.manifest.sha256"] == hashlib.sha256(manifest).hexdigest()
    assert labels["org.opencontainers.image.base.name"] == standin.EDITABLE
    assert labels["org.opencontainers.image.base.digest"] == digest
    assert digest.startswith("sha256:")


def test_building_again_comes_from_the_cache(buildah: Buildah, build: Builder, patched: Build) -> None:
    before = buildah.image_id(patched.image)

    again = build(standin.EDITABLE, patched.image)

    assert again.exit_code == 0
    assert "Using cache" in again.output
    assert "read back and hashed" not in again.output
    assert buildah.image_id(patched.image) == before


def test_a_wheel_installation_is_patched_too(buildah: Buildah, build: Builder) -> None:
    done = build(standin.WHEEL, "localhost/patched:wheel")

    assert done.exit_code == 0, done.output
    assert f"/{standin.SITE_PACKAGES}/vllm_ascend" in done.output
    with buildah.container(done.image) as image:
        checked = image.start("kit", "verify")
    assert checked.returncode == 0, checked.stdout
    assert "verified: 10 checks passed, 5 not run." in checked.stdout


def test_a_drifted_base_stops_the_build_with_the_file_and_both_hashes(
    buildah: Buildah, build: Builder, altered_base: Callable[[str], str]
) -> None:
    base = altered_base(f"printf '# a later commit\\r\\n' >> {ASCEND}/ops/fused_moe/moe_mlp.py")

    done = build(base, "localhost/patched:drifted")

    assert done.exit_code != 0
    assert f"kit: {ASCEND}/ops/fused_moe/moe_mlp.py is neither pristine nor applied" in done.output
    assert "expected sha256 25696c16d790 or ad42c7206a7f, found " in done.output
    assert "nothing was changed." in done.output
    assert not buildah.has("localhost/patched:drifted")


def test_another_release_stops_the_build_with_both_versions(
    buildah: Buildah, build: Builder, altered_base: Callable[[str], str]
) -> None:
    base = altered_base(f"echo \"__version__ = '0.18.0'\" > {ASCEND}/_version.py")

    done = build(base, "localhost/patched:unsupported")

    assert done.exit_code != 0
    assert f"found vllm-ascend 0.18.0 at {ASCEND} (wanted 0.20.2rc1); nothing was changed." in done.output
    assert not buildah.has("localhost/patched:unsupported")


def test_a_base_that_has_the_model_by_itself_stops_the_build(
    buildah: Buildah, build: Builder, altered_base: Callable[[str], str]
) -> None:
    base = altered_base(
        "echo \"__version__ = '0.23.0'\" > /vllm-workspace/vllm/vllm/_version.py\n"
        f"echo \"__version__ = '0.23.0rc1'\" > {ASCEND}/_version.py\n"
    )

    done = build(base, "localhost/patched:native")

    assert done.exit_code != 0
    assert "native: not needed from vLLM 0.23.0 on" in done.output
    assert "there is nothing to build: use it as it is." in done.output
    assert not buildah.has("localhost/patched:native")


def test_without_any_builder_the_script_names_all_three(tmp_path: Path) -> None:
    for command in ("bash", "dirname", "basename"):
        found = subprocess.run(["which", command], capture_output=True, text=True, check=True).stdout.strip()
        (tmp_path / command).symlink_to(found)

    done = subprocess.run(
        ["/bin/bash", KIT / "docker" / "build.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "build.sh: neither docker (with its daemon), podman nor buildah works here; nothing was built.",
        "Next: install one of them, or run this on a machine that has one: make image",
    ]


def test_a_base_that_is_not_to_be_had_is_one_sentence(build: Builder) -> None:
    done = build("localhost/no-such-base:v0")

    assert done.exit_code == 3
    assert "the base image localhost/no-such-base:v0 is not here and cannot be fetched" in done.output
