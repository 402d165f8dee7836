# SPDX-License-Identifier: Apache-2.0
"""compose.yaml and the Kubernetes files: right by their schemas, and of one mind with run.sh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from image.builder import KIT
from image.shell import option_values, shell_words

COMPOSE = KIT / "docker" / "compose.yaml"
KUBERNETES = sorted((KIT / "docker" / "k8s").glob("*.yaml"))
KUBERNETES_VERSIONS = [*(f"1.{minor}" for minor in range(25, 31)), kubernetes_validate.latest_version()]
PROFILE = "scripts/serving/profiles/agent.yaml"
LISTEN = ["--host", "0.0.0.0", "--port", "8000"]  # what is published decides who can reach it
SERVE = ["vllm", "serve", "/model", "--config", f"/opt/step3p7-kit/{PROFILE}", *LISTEN]
LOADING_S = 403e9 / 75e6
"""The checkpoint at a speed that a busy network file system still reaches."""


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text("utf-8")))


def of_kind(file: Path, *kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents(file) if document["kind"] in kinds]


def pods(file: Path) -> list[dict[str, Any]]:
    return [document["spec"]["template"]["spec"] for document in of_kind(file, "Deployment", "StatefulSet")]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    server: dict[str, Any] = documents(COMPOSE)[0]["services"]["server"]
    return server


@pytest.fixture(scope="module")
def run_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What docker/run.sh would start."""
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text("{}")
    variables = {"MODEL": str(model), "ENGINE": "docker"}
    run = subprocess.run(
        [KIT / "docker" / "run.sh", "--print"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return shell_words(run.stdout.replace(str(model), "MODEL"))


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.name)
def test_kubernetes_files_fit_the_schemas_strictly(file: Path, version: str) -> None:
    for document in documents(file):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_does_not_fit_the_schemas() -> None:
    deployment = of_kind(KUBERNETES[0], "Deployment")[0]
    deployment["spec"]["template"]["spec"]["containers"][0]["startProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.30", strict=True)


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.name)
def test_every_pod_asks_for_eight_npus_and_no_privileges(file: Path) -> None:
    for pod in pods(file):
        [container] = pod["containers"]
        assert container["resources"]["limits"]["huawei.com/Ascend910"] == 8
        assert container["resources"]["requests"]["huawei.com/Ascend910"] == 8
        assert container["securityContext"] == {"allowPrivilegeEscalation": False}


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.name)
def test_the_start_up_time_fits_the_loading_of_the_checkpoint(file: Path) -> None:
    for pod in pods(file):
        probe = pod["containers"][0]["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= LOADING_S


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.name)
def test_the_entry_point_of_the_image_is_kept(file: Path) -> None:
    for pod in pods(file):
        assert "command" not in pod["containers"][0]


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.name)
def test_every_service_selects_a_pod_of_its_file(file: Path) -> None:
    workloads = of_kind(file, "Deployment", "StatefulSet")
    for service in of_kind(file, "Service"):
        selector = dict(service["spec"]["selector"])
        pod_name = selector.pop("statefulset.kubernetes.io/pod-name", None)
        matching = [
            w for w in workloads if selector.items() <= w["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert matching
        assert pod_name in {None, f"{matching[0]['metadata']['name']}-0"}


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.name)
def test_files_of_the_kit_that_pods_name_are_in_the_kit(file: Path) -> None:
    inside = "/opt/step3p7-kit/"
    named = {word.strip(",]}") for word in file.read_text("utf-8").split() if inside in word}

    assert named
    for name in named:
        assert (KIT / name[name.index(inside) + len(inside) :]).is_file()


@pytest.mark.parametrize("file", ["two-nodes.yaml", "two-nodes-without-ray.yaml"])
def test_two_nodes_are_one_pipeline_of_two(file: str) -> None:
    [stateful_set] = of_kind(KIT / "docker/k8s" / file, "StatefulSet")
    [container] = stateful_set["spec"]["template"]["spec"]["containers"]
    nodes = {entry["name"]: entry.get("value") for entry in container["env"]}["NODES"]

    assert nodes == str(stateful_set["spec"]["replicas"]) == "2"
    assert yaml.safe_load((KIT / PROFILE).read_text())["tensor-parallel-size"] == 8


def test_compose_fits_its_schema() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec", str(COMPOSE)]

    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_misspelt_key_does_not_fit_the_compose_schema(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(COMPOSE.read_text("utf-8").replace("    shm_size:", "    shm_sise:"))
    schema = ["--builtin-schema", "vendor.compose-spec", str(wrong)]

    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema], capture_output=True, timeout=120
    )

    assert done.returncode != 0


def test_compose_and_run_sh_start_the_same_container(compose: dict[str, Any], run_command: list[str]) -> None:
    mounts = [
        f"type=bind,source={v['source']},target={v['target']},readonly"
        for v in compose["volumes"]
        if v["read_only"] and not v["bind"]["create_host_path"]
    ]
    model = mounts[0].replace("${MODEL:?set MODEL to the folder of the checkpoint}", "MODEL")
    assert [model, *mounts[1:]] == option_values(run_command, "--mount")
    assert compose["devices"] == option_values(run_command, "--device")
    assert compose["command"] == SERVE == run_command[-len(SERVE) :]
    assert compose["restart"] == option_values(run_command, "--restart")[0]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    assert option_values(run_command, "--security-opt") == ["no-new-privileges"]
    assert [" ".join(compose["healthcheck"]["test"][1:])] == option_values(run_command, "--health-cmd")
    assert [compose["healthcheck"]["start_period"]] == option_values(run_command, "--health-start-period")
    options = compose["logging"]["options"]
    assert [f"{name}={value}" for name, value in options.items()] == option_values(run_command, "--log-opt")
    assert compose["image"] == f"${{IMAGE:-{run_command[-len(SERVE) - 1]}}}"


def test_compose_publishes_on_loopback_unless_told_otherwise(compose: dict[str, Any]) -> None:
    assert compose["ports"] == ["${HOST:-127.0.0.1}:${PORT:-8000}:8000"]
    assert "privileged" not in compose


def test_every_start_has_the_same_environment(compose: dict[str, Any]) -> None:
    lines = (KIT / "docker" / compose["env_file"]).read_text().splitlines()
    shared = dict(line.split("=") for line in lines if not line.startswith("#"))

    for pod in [pod for file in KUBERNETES for pod in pods(file)]:
        given = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        assert shared.items() <= given.items()
