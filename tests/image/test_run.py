# SPDX-License-Identifier: Apache-2.0
"""docker/run.sh: with the patched image, and with the official one and files mounted over it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from image import standin
from image.buildah import TIMEOUT_S, Buildah
from image.builder import KIT, Build
from image.shell import option_values, shell_words

PROFILE = "scripts/serving/profiles/agent.yaml"
SERVE = ["serve", "/model", "--config", f"/opt/step3p7-kit/{PROFILE}", "--host", "0.0.0.0", "--port", "8000"]
RUN = KIT / "docker" / "run.sh"
ENGINE = Path(__file__).with_name("engine.py")
DEVICES = [*(f"/dev/davinci{n}" for n in range(8)), "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
ON_AN_NPU_MACHINE = Path(DEVICES[0]).exists()


def engine_environment(buildah: Buildah) -> dict[str, str]:
    """What engine.py must know."""
    return {"STORE": str(buildah.folder), "DRIVER": buildah.driver, "PYTHONPATH": str(KIT / "tests")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "Step-3.7-Flash"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def run(buildah: Buildah) -> Callable[..., subprocess.CompletedProcess[str]]:
    """docker/run.sh with variables, and an engine that uses the tests' store."""
    own = engine_environment(buildah) | {"ENGINE": str(ENGINE)}

    def start(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RUN, *options],
            env=os.environ | own | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    return start


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The command that ``--print`` printed, as the shell would read it."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines(keepends=True) if not line.startswith("export ")]
    return shell_words("".join(lines))


def execute(command: list[str], buildah: Buildah, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=os.environ | engine_environment(buildah) | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_printed_command_starts_the_server_with_its_environment(
    run: Run, buildah: Buildah, patched: Build, model: Path
) -> None:
    printed = run("--print", "--", "--max-model-len", "131072", MODEL=str(model), IMAGE=patched.image)

    done = execute(words(printed), buildah, VLLM_API_KEY="a secret")

    server = json.loads(done.stdout)
    assert server["argv"] == [*SERVE, "--max-model-len", "131072"]
    assert server["environment"]["VLLM_API_KEY"] == "a secret"
    assert server["environment"]["HF_HUB_OFFLINE"] == "1"
    assert "libjemalloc" in server["environment"]["LD_PRELOAD"]


def test_the_config_that_the_server_is_given_is_in_the_image(buildah: Buildah, patched: Build) -> None:
    with buildah.container(patched.image) as container:
        inside = container.shell(f"cat /opt/step3p7-kit/{PROFILE}")

    assert inside == (KIT / PROFILE).read_text()


def test_devices_are_listed_in_place_of_privileges(run: Run, model: Path) -> None:
    command = words(run("--print", MODEL=str(model)))

    assert option_values(command, "--device") == DEVICES
    assert "--privileged" not in command


def test_the_model_and_the_driver_are_mounted_read_only(run: Run, model: Path) -> None:
    mounts = option_values(words(run("--print", MODEL=str(model))), "--mount")

    assert f"type=bind,source={model},target=/model,readonly" in mounts
    assert all(mount.endswith(",readonly") for mount in mounts)


@pytest.mark.parametrize(
    ("host", "published"),
    [("", "127.0.0.1:8000:8000"), ("0.0.0.0", "0.0.0.0:8000:8000"), ("::1", "[::1]:8000:8000")],
)
def test_the_port_is_published_on_loopback_unless_told_otherwise(
    run: Run, model: Path, host: str, published: str
) -> None:
    assert option_values(words(run("--print", MODEL=str(model), HOST=host)), "--publish") == [published]


def test_a_host_that_is_no_address_is_refused(run: Run, model: Path) -> None:
    """Some shells export HOST, as the machine's name."""
    done = run("--print", MODEL=str(model), HOST="gpu-node-7")

    assert done.returncode == 3
    assert "HOST is gpu-node-7, which is no IP address; nothing was started." in done.stderr


def test_the_key_is_never_printed(run: Run, model: Path) -> None:
    done = run("--print", MODEL=str(model), API_KEY="a secret")

    assert "a secret" not in done.stdout + done.stderr
    assert option_values(words(done), "--env") == ["VLLM_API_KEY"]


def test_a_model_folder_with_a_quote_and_a_space_survives_printing(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "it's a model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    mounts = option_values(words(run("--print", MODEL=str(folder))), "--mount")

    assert f"type=bind,source={folder},target=/model,readonly" in mounts


def test_without_a_model_folder_nothing_is_started(run: Run, tmp_path: Path) -> None:
    for folder, reason in {"": "MODEL is not set", str(tmp_path): "holds no config.json"}.items():
        done = run(MODEL=folder)

        assert done.returncode == 3
        assert reason in done.stderr
        assert "nothing was started." in done.stderr


def test_a_download_cache_is_refused_for_its_links_lead_outside(
    run: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_text("weights")
    (model / "model-00001.safetensors").symlink_to("../blob")

    done = run(MODEL=str(model))

    assert done.returncode == 3
    assert f"{model}/model-00001.safetensors is a link to ../blob, outside of what is mounted" in done.stderr
    assert f"Next: copy the files themselves: cp -rL {model} " in done.stderr


def test_links_inside_the_model_folder_are_fine(run: Run, model: Path) -> None:
    (model / "other.json").symlink_to("config.json")

    assert run("--print", MODEL=str(model)).returncode == 0


@pytest.mark.skipif(ON_AN_NPU_MACHINE, reason="this machine has an NPU, so nothing is missing")
def test_a_machine_without_npus_is_one_sentence(run: Run, model: Path) -> None:
    done = run(MODEL=str(model))

    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "run.sh: /dev/davinci0 is not on this machine; nothing was started.",
        "Next: install the NPU driver, and see that 'npu-smi info' lists 8 NPUs",
    ]


def test_an_unknown_option_shows_the_usage(run: Run) -> None:
    done = run("--privileged")

    assert done.returncode == 2
    assert "usage: MODEL=" in done.stderr


# --- mount mode ---------------------------------------------------------------------


@pytest.fixture
def mount_command(run: Run, model: Path) -> Callable[..., list[str]]:
    """The command of ``run.sh --mount`` on an untouched base, with another command inside."""

    def make(base: str, *inside: str) -> list[str]:
        command = words(run("--mount", "--print", MODEL=str(model), IMAGE=base))
        return [*command[: command.index(base) + 1], *inside]

    return make


@pytest.mark.parametrize("base", [standin.EDITABLE, standin.WHEEL])
def test_the_status_of_mounted_files_is_applied_and_mounted(
    mount_command: Callable[..., list[str]], buildah: Buildah, base: str
) -> None:
    done = execute(mount_command(base, "/opt/step3p7-kit/scripts/kit", "status"), buildah)

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("  applied, mounted ")]
    assert len(lines) == 5
    assert "applied: 5 of 5 files." in done.stdout


def test_in_mount_mode_too_everything_is_mounted_read_only(
    mount_command: Callable[..., list[str]],
) -> None:
    mounts = option_values(mount_command(standin.EDITABLE), "--mount")

    assert len([mount for mount in mounts if "/vllm-workspace/" in mount]) == 5
    assert all(mount.endswith(",readonly") for mount in mounts)


def test_mounted_files_pass_verify(mount_command: Callable[..., list[str]], buildah: Buildah) -> None:
    command = mount_command(standin.EDITABLE, "/opt/step3p7-kit/scripts/kit", "verify")

    done = execute(command, buildah)

    assert done.returncode == 0, done.stdout
    assert "verified: 10 checks passed, 5 not run." in done.stdout


def test_mounted_files_cannot_be_reverted_from_inside(
    mount_command: Callable[..., list[str]], buildah: Buildah
) -> None:
    done = execute(mount_command(standin.EDITABLE, "/opt/step3p7-kit/scripts/kit", "revert"), buildah)

    assert done.returncode == 3
    assert "is a bind mount" in done.stderr


def test_the_server_in_mount_mode_gets_the_same_environment(run: Run, buildah: Buildah, model: Path) -> None:
    command = words(run("--mount", "--print", MODEL=str(model), IMAGE=standin.EDITABLE))

    server = json.loads(execute(command, buildah).stdout)

    assert server["argv"] == SERVE
    assert "libjemalloc" in server["environment"]["LD_PRELOAD"]


def test_the_base_image_stays_as_it_is(mount_command: Callable[..., list[str]], buildah: Buildah) -> None:
    execute(mount_command(standin.EDITABLE, "/opt/step3p7-kit/scripts/kit", "status"), buildah)

    with buildah.container(standin.EDITABLE) as base:
        assert not (base.root / "vllm-workspace/vllm/vllm/model_executor/models/step3p7.py").exists()


def test_a_patched_image_serves_as_the_base_of_mount_mode_too(
    mount_command: Callable[..., list[str]], buildah: Buildah, patched: Build
) -> None:
    done = execute(mount_command(patched.image, "/opt/step3p7-kit/scripts/kit", "status"), buildah)

    assert done.stdout.count("applied, mounted") == 5
