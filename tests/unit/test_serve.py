# SPDX-License-Identifier: Apache-2.0
"""``scripts/serve.sh`` as a command, with a stand-in for ``vllm`` that prints what it was given."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import tree
from unit.serving.model_folders import ModelFolder

STAND_IN = """\
#!/bin/sh
for word; do echo "word: $word"; done
echo "key: $VLLM_API_KEY"
"""


@dataclass
class Serve:
    """A bundle with the small set, a pristine or applied root, a model folder and the stand-in."""

    bundle: Path
    root: Path
    model: Path
    commands: Path

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # This is no machine with NPUs: what the doctor finds here must not stop a test that is not about it.
        given = {"MODEL": str(self.model), "ROOT": str(self.root), "FORCE": "1"} | variables
        environment = {"PATH": f"{self.commands}:{os.environ['PATH']}", "HOME": str(self.root)} | given
        return subprocess.run(
            [str(self.bundle / "scripts" / "serve.sh"), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def serve(bundle: Path, root: Path, tmp_path: Path, kit: tree.Kit) -> Serve:
    own = tmp_path / "kit"
    shutil.copytree(bundle, own, symlinks=False)
    shutil.copytree(tree.PROJECT / "docker", own / "docker", dirs_exist_ok=True)
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "vllm").write_text(STAND_IN)
    (commands / "vllm").chmod(0o755)
    assert kit("apply", "--root", root).code == 0
    return Serve(own, root, ModelFolder().write(tmp_path / "model"), commands)


def words(run: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("word: ") for line in run.stdout.splitlines() if line.startswith("word: ")]


def test_it_ends_in_vllm_serve_with_the_profile_and_the_users_flags_last(serve: Serve) -> None:
    run = serve("--max-num-seqs", "8", "--chat-template", "a b.jinja", PROFILE="agent", PORT="8123")
    assert run.returncode == 0, run.stderr
    profile = serve.bundle / "scripts" / "serving" / "profiles" / "agent.yaml"
    assert words(run) == [
        *("serve", str(serve.model), "--config", str(profile), "--host", "127.0.0.1", "--port", "8123"),
        *("--max-num-seqs", "8", "--chat-template", "a b.jinja"),
    ]
    assert "profile agent: " in run.stderr
    assert "--tool-call-parser step3p5" in run.stderr


def test_a_set_that_is_not_applied_starts_nothing(serve: Serve, kit: tree.Kit) -> None:
    assert kit("revert", "--root", serve.root).code == 0
    run = serve()
    assert run.returncode == 3
    assert "pristine: none of the 5 files is applied" in run.stderr
    assert "kit apply --root" in run.stderr
    assert run.stdout == ""


def test_what_needs_a_set_that_is_not_there_starts_nothing_even_if_forced(serve: Serve) -> None:
    own = serve.root / "own.yaml"
    own.write_text("# Mine.\n# needs-sets: unheard-of\n")
    by_profile = serve(PROFILE=str(own), FORCE="1")
    by_flag = serve("-sc", '{"method": "mtp", "num_speculative_tokens": 3}', FORCE="1")
    for run, who in ((by_profile, f"the profile {own}"), (by_flag, "--speculative-config.method mtp")):
        assert (run.returncode, run.stdout) == (3, "")
        assert f"{who} needs the set " in run.stderr


def test_problems_stop_the_start_unless_it_is_forced(serve: Serve) -> None:
    stopped = serve(FORCE="", VLLM_ASCEND_ENABLE_FLASHCOMM1="1")
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert "NOT READY" in stopped.stderr
    forced = serve(FORCE="1", VLLM_ASCEND_ENABLE_FLASHCOMM1="1")
    assert forced.returncode == 0
    assert words(forced)[0] == "serve"


def test_a_dry_run_prints_the_command_alone_and_starts_nothing(serve: Serve) -> None:
    run = serve("--seed", "1", DRY_RUN="1", API_KEY="secret")
    assert run.returncode == 0
    assert run.stdout.startswith("VLLM_API_KEY=... vllm serve ")
    assert run.stdout.rstrip().endswith("--seed 1")
    assert len(run.stdout.splitlines()) == 1
    assert "secret" not in run.stdout + run.stderr


def test_the_key_goes_by_the_environment_and_silences_the_warning(serve: Serve) -> None:
    with_key = serve(HOST="0.0.0.0", API_KEY="secret")
    assert "key: secret" in with_key.stdout
    assert "secret" not in " ".join(words(with_key)) + with_key.stderr
    assert "without an API key" not in " ".join(with_key.stderr.split())
    assert "without an API key" in " ".join(serve(HOST="0.0.0.0").stderr.split())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MODEL": ""}, "MODEL is not set"),
        ({"MODEL": "/no/such/folder"}, "holds no config.json"),
        ({"PORT": "eight"}, "no number of a port"),
        ({"PROFILE": "nope"}, "there is no profile called 'nope'"),
        ({"IGNORE": "devises"}, "there is no check called devises"),
    ],
)
def test_what_cannot_be_started_is_refused(serve: Serve, variables: dict[str, str], expected: str) -> None:
    run = serve(**variables)
    assert run.returncode == 3
    assert expected in run.stderr
    assert run.stdout == ""


def test_the_help_names_every_profile(serve: Serve) -> None:
    run = serve("--help")
    assert run.returncode == 0
    for profile in (tree.PROJECT / "scripts" / "serving" / "profiles").iterdir():
        assert profile.stem in run.stdout


NODE = {"NODES": "2", "NODE_RANK": "0", "MASTER": "127.0.0.1", "NIC": "lo"}


def test_each_of_two_nodes_is_given_its_place(serve: Serve) -> None:
    shared = ["--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank"]
    first = serve("--seed", "1", **NODE)
    assert first.returncode == 0, first.stderr
    place = words(first)[words(first).index("--pipeline-parallel-size") :]
    assert place == [*shared, "0", "--master-addr", "127.0.0.1", "--master-port", "29501", "--seed", "1"]

    second = serve(**NODE | {"NODE_RANK": "1", "MASTER": "192.0.2.7", "MASTER_PORT": "29777"})
    place = words(second)[words(second).index("--pipeline-parallel-size") :]
    assert place == [*shared, "1", "--master-addr", "192.0.2.7", "--master-port", "29777", "--headless"]


def test_every_library_of_a_node_is_told_of_the_interface(serve: Serve) -> None:
    (serve.commands / "vllm").write_text("#!/bin/sh\nenv\n")
    told = serve(**NODE).stdout.splitlines()
    for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert f"{name}=lo" in told
    for name in ("HCCL_IF_IP", "VLLM_HOST_IP"):
        assert f"{name}=127.0.0.1" in told


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"NODES": "two"}, "NODES is two, expected how many machines"),
        ({"NODE_RANK": ""}, "NODE_RANK is '', expected 0 to 1"),
        ({"NODE_RANK": "2"}, "NODE_RANK is '2', expected 0 to 1"),
        ({"NODE_RANK": "08"}, "NODE_RANK is '08', expected 0 to 1"),
        ({"MASTER": "node-0.example"}, "expected the IPv4 address of node 0, and no name"),
        ({"MASTER": "192.0.2.7"}, "this is node 0, whose address on lo is 127.0.0.1"),
        ({"MASTER_PORT": "-1"}, "MASTER_PORT is -1, which is no number of a port"),
        ({"NIC": "eth77"}, "NIC is 'eth77', which is no network interface of this machine"),
        ({"NIC": ""}, "NIC is '', which is no network interface of this machine"),
    ],
    ids=str,
)
def test_a_place_that_makes_no_sense_starts_nothing(serve: Serve, wrong: dict[str, str], said: str) -> None:
    run = serve(**NODE | wrong)
    assert (run.returncode, run.stdout) == (3, "")
    assert said in run.stderr
    assert run.stderr.splitlines()[-1].startswith("Next: ")
