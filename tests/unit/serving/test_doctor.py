# SPDX-License-Identifier: Apache-2.0
"""The doctor as a whole: one report of everything, on machines of every kind, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tree
from patchkit.errors import Refused, TargetNotFound
from patchkit.release import Release
from patchkit.target import Target
from serving.capacity import memory
from serving.capacity.plan_request import PlanRequest
from serving.findings import Severity
from serving.machine import doctor, reference
from serving.machine.doctor import Examination
from serving.machine.host import Host, Space
from serving.model import model_config
from serving.typed import Typed
from unit.serving import machines
from unit.serving.machines import Machine
from unit.serving.model_folders import published_config

NAMES = [name for name, _ in doctor.checks()]
NO_INSTALLATION = TargetNotFound("there is no vllm", "{kit} status --python PATH")
ASKS_A_PYTHON = frozenset({"interpreter", "python-packages"})


def crashed(examination: Examination) -> list[str]:
    return [
        finding.finding.what
        for finding in examination.findings
        if finding.finding.what.startswith(f"check {finding.check.name} failed")
    ]


def test_a_machine_as_it_should_be_has_nothing_to_report(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    examination = doctor.examine(machine.host, small_set, installed)

    assert not examination.failed
    assert {finding.finding.severity for finding in examination.findings} == {
        Severity.OK,
        Severity.NOT_LOOKED_AT,
    }
    assert [finding.check.name for finding in examination.of(Severity.NOT_LOOKED_AT)] == ["model-folder"]


def test_every_check_reports_and_in_the_order_of_the_list(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    examination = doctor.examine(machine.host, small_set, installed)

    assert list(dict.fromkeys(finding.check.name for finding in examination.findings)) == NAMES


def test_names_are_kebab_case_and_each_has_a_summary() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for name, summary in doctor.checks():
        assert name == name.lower().replace("_", "-").replace(" ", "-")
        assert summary


def test_a_machine_without_any_npu_gets_a_useful_report(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.remove("dev", "usr", "etc/ascend_install.info")
    machine.environment = {"PATH": "/usr/bin"}

    examination = doctor.examine(machine.host, small_set, installed)

    problems = {finding.check.name for finding in examination.of(Severity.PROBLEM)}
    assert {"devices", "driver", "cann"} <= problems
    assert {finding.check.name for finding in examination.of(Severity.NOT_LOOKED_AT)} >= {
        "chips",
        "card-processes",
    }
    assert crashed(examination) == []


def test_the_image_without_npu_smi_gets_a_useful_report(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.remove("usr/local/bin/npu-smi", "usr/local/dcmi")

    examination = doctor.examine(machine.host, small_set, installed)

    assert not examination.failed
    warnings = [finding.check.name for finding in examination.of(Severity.WARNING)]
    assert warnings == ["driver", "npu-smi"]


def test_an_empty_folder_for_a_machine_breaks_no_check(tmp_path: Path, small_set: Release) -> None:
    host = Host(tmp_path, {}, uid=4711, groups=frozenset(), machine="", measure=lambda _: None)

    examination = doctor.examine(host, small_set, NO_INSTALLATION, ASKS_A_PYTHON)

    assert crashed(examination) == []
    assert examination.failed


def test_this_machine_breaks_no_check(small_set: Release) -> None:
    examination = doctor.examine(Host(), small_set, NO_INSTALLATION)

    assert crashed(examination) == []


def test_a_check_that_crashes_is_a_finding_and_the_others_still_speak(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    def crash(_: Path) -> Space:
        raise ZeroDivisionError("a fault of the kit")

    machine.overrides["measure"] = crash

    examination = doctor.examine(machine.host, small_set, installed)

    assert [finding.check.name for finding in examination.of(Severity.WARNING)] == ["shared-memory", "disk"]
    assert crashed(examination)[0].startswith(
        "check shared-memory failed: ZeroDivisionError: a fault of the kit (line "
    )
    assert list(dict.fromkeys(finding.check.name for finding in examination.findings)) == NAMES


def test_an_installation_that_cannot_be_read_is_a_finding(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    file = installed.file(small_set.base.files[0].path)
    file.unlink()
    file.symlink_to("/etc/hostname")

    examination = doctor.examine(machine.host, small_set, installed)

    (finding,) = examination.of(Severity.WARNING)
    assert finding.check.name == "patch-set"
    assert "is a symlink" in finding.finding.what
    assert "&& cp -r " in finding.finding.cure


def test_an_ignored_check_is_not_run_and_says_so(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.environment["VLLM_ASCEND_ENABLE_FLASHCOMM1"] = "1"

    examination = doctor.examine(machine.host, small_set, installed, frozenset({"model-variables"}))

    assert not examination.failed
    (seen,) = [f.finding for f in examination.findings if f.check.name == "model-variables"]
    assert seen.severity is Severity.NOT_LOOKED_AT
    assert seen.what == "left out by --ignore"


def test_to_ignore_a_check_that_does_not_exist_is_refused(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    with pytest.raises(Refused, match="no check called colour, flavour") as refusal:
        doctor.examine(machine.host, small_set, installed, frozenset({"flavour", "colour", "disk"}))

    assert refusal.value.next_step == "see their names: {kit} doctor --list"


# --- what is printed --------------------------------------------------------------------


def test_the_report_has_the_cure_on_one_line_to_copy(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.remove(*(f"dev/{name}" for name in machines.DEVICES))
    every_device = " ".join(f"--device /dev/{name}" for name in machines.DEVICES)

    text = doctor.text(doctor.examine(machine.host, small_set, installed))

    cures = [line.split("cure:")[1].strip() for line in text.splitlines() if "cure:" in line]
    assert cures == [f"docker run {every_device} ..."]


def test_the_last_line_counts_and_names_the_problems(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    fine = doctor.text(doctor.examine(machine.host, small_set, installed)).splitlines()[-1]
    machine.environment |= {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1", "OMP_NUM_THREADS": "100"}
    machine.remove("dev/hisi_hdc")
    ill = doctor.text(doctor.examine(machine.host, small_set, installed)).splitlines()[-1]

    assert fine.startswith("no problem found: ")
    assert ill.startswith("PROBLEMS in devices, model-variables: 2 problems, 1 warning, ")


def test_a_cure_names_the_kit_and_the_target_as_they_were_given(
    tmp_path: Path, machine: Machine, small_set: Release
) -> None:
    target = machines.installation(tmp_path / "plain", small_set, ())
    examination = doctor.examine(machine.host, small_set, target, ASKS_A_PYTHON)

    bare = doctor.text(examination, Typed("scripts/kit"))
    named = doctor.text(examination, Typed("scripts/kit", "--python /opt/python3"))
    data = doctor.as_json(examination, Typed("scripts/kit", "--python /opt/python3"))

    assert "cure:     scripts/kit apply\n" in bare
    assert "cure:     scripts/kit apply --python /opt/python3\n" in named
    assert data["findings"][0]["cure"] == "scripts/kit apply --python /opt/python3"


def test_no_line_of_prose_is_too_wide_for_a_terminal(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.remove("dev", "usr")

    text = doctor.text(doctor.examine(machine.host, small_set, installed))

    for line in text.splitlines()[:-1]:
        assert len(line) <= 110 or "cure:" in line or len(line.split()[-1]) > 60


def test_what_a_machine_holds_cannot_steer_the_terminal(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.environment["OMP_NUM_THREADS"] = "\x1b[2J\r9\n9"

    text = doctor.text(doctor.examine(machine.host, small_set, installed))

    assert "OMP_NUM_THREADS=\\x1b[2J\\r9\\n9" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_the_report_for_a_program_has_every_field_of_every_finding(
    machine: Machine, installed: Target, small_set: Release
) -> None:
    machine.environment["VLLM_ASCEND_ENABLE_FLASHCOMM1"] = "1"
    examination = doctor.examine(machine.host, small_set, installed)

    data = json.loads(json.dumps(doctor.as_json(examination)))

    assert data["failed"] is True
    assert data["counts"]["problem"] == 1
    assert sum(data["counts"].values()) == len(data["findings"]) == len(examination.findings)
    (problem,) = (row for row in data["findings"] if row["severity"] == "problem")
    assert problem == {
        "name": "model-variables",
        "subject": "model-variables",
        "group": "environment",
        "severity": "problem",
        "details": [],
        "what": "VLLM_ASCEND_ENABLE_FLASHCOMM1=1",
        "expected": "unset, or 0",
        "why": "FlashComm1 is broken for this model in this release",
        "cure": "unset VLLM_ASCEND_ENABLE_FLASHCOMM1",
    }


def test_the_weights_that_the_reasons_name_are_those_that_the_plan_computes() -> None:
    config = model_config.read(published_config(), None).config
    assert config is not None

    weights = memory.plan(config, PlanRequest()).weights

    assert round(weights.loaded / (1 << 30), 2) == reference.WEIGHTS_GIB_PER_CARD


# --- any bytes anywhere ------------------------------------------------------------------

FUZZED = (
    "usr/local/bin/npu-smi.txt",
    "proc/net/tcp",
    "proc/net/tcp6",
    "proc/sys/net/ipv4/ip_local_port_range",
    "proc/sys/net/ipv4/ip_local_reserved_ports",
    "etc/passwd",
    "etc/os-release",
    "etc/ascend_install.info",
    "usr/local/Ascend/driver/version.info",
    f"{machines.CANN}/aarch64-linux/ascend_toolkit_install.info",
    "etc/ld.so.conf",
)
DIGITS = st.sampled_from(["9" * 5000, "-1", "1e9", "٣", "²", "0x", "ffff" * 40, "99999999999999999999"])


def mangled(text: str) -> st.SearchStrategy[bytes]:
    """A file of this kind with some of its words exchanged for numbers that are none."""
    words = text.replace("\n", " \n ").split(" ")
    positions = st.lists(st.tuples(st.integers(0, len(words) - 1), DIGITS), max_size=12)
    return positions.map(
        lambda changes: " ".join(dict(changes).get(at, word) for at, word in enumerate(words)).encode()
    )


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machines.build(tmp_path_factory.mktemp("fuzzed"))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_no_bytes_in_any_file_break_a_check(data: st.DataObject, fuzzed: Machine, small_set: Release) -> None:
    table = (machines.HOSTS / "npu-smi" / "910b3-busy.txt").read_text()
    socket = machines.TCP_HEADER + "   0: 0100007F:EA60 00000000:0000 0A 0:0 00:0 0 0 0 1 1\n" * 3
    like = {"usr/local/bin/npu-smi.txt": table, "proc/net/tcp": socket, "proc/net/tcp6": socket} | {
        name: text
        for name, text in machines.FILES.items()
        if name in FUZZED and not name.startswith("proc/net")
    }
    for name in FUZZED:
        fuzzed.write(name, data.draw(st.binary(max_size=300) | mangled(like.get(name, "1 2\n"))))

    examination = doctor.examine(fuzzed.host, small_set, NO_INSTALLATION, ASKS_A_PYTHON)

    assert crashed(examination) == []
    json.dumps(doctor.as_json(examination))
    assert doctor.text(examination)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    values=st.dictionaries(
        st.sampled_from(
            [
                *machines.ENVIRONMENT,
                "ASCEND_RT_VISIBLE_DEVICES",
                "HCCL_IF_BASE_PORT",
                "HCCL_HOST_SOCKET_PORT_RANGE",
                "VLLM_PORT",
                "VLLM_ASCEND_ENABLE_FUSED_MC2",
                "VLLM_ASCEND_ENABLE_NZ",
                "VLLM_PLUGINS",
                "PYTORCH_NPU_ALLOC_CONF",
                "http_proxy",
                "no_proxy",
                "XDG_CACHE_HOME",
                "ATB_HOME_PATH",
            ]
        ),
        st.text(max_size=40)
        | DIGITS
        | st.sampled_from(["0-7", ",,", "60000-", "-60000", "1,2", "\0", "a\udc80b"]),
    )
)
def test_no_value_of_any_variable_breaks_a_check(
    values: dict[str, str], fuzzed: Machine, small_set: Release
) -> None:
    for name, text in machines.FILES.items():
        if name in FUZZED:
            fuzzed.write(name, text)
    fuzzed.npu_smi("910b3")
    fuzzed.environment = {**machines.ENVIRONMENT, **values}

    examination = doctor.examine(fuzzed.host, small_set, NO_INSTALLATION, ASKS_A_PYTHON)

    assert crashed(examination) == []
    json.dumps(doctor.as_json(examination))
    assert doctor.text(examination)


# --- against the real release --------------------------------------------------------------

REAL = tree.PROJECT / "build" / "sandbox" / "vllm-workspace"


@pytest.mark.skipif(
    not REAL.is_dir(), reason="the sandbox with the real packages is not built (make sandbox)"
)
class TestWhatTheReleaseReads:
    """What the rules about variables claim, held against the sources of the release."""

    @staticmethod
    def sources(package: str) -> bytes:
        folder = REAL / package.replace("_", "-") / package
        return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*.py")))

    def test_the_integer_variables_are_read_as_such(self) -> None:
        from serving.machine.checks.environment import INTEGERS

        envs = (REAL / "vllm-ascend" / "vllm_ascend" / "envs.py").read_text()

        for name in INTEGERS:
            assert f'int(os.getenv("{name}"' in envs

    def test_the_guides_prefetch_is_read_by_nothing(self) -> None:
        for package in ("vllm", "vllm_ascend"):
            assert b"VLLM_ASCEND_ENABLE_PREFETCH_MLP" not in self.sources(package)

    def test_the_ring_buffers_have_the_size_that_shared_memory_is_measured_by(self) -> None:
        sources = self.sources("vllm")

        assert b'os.getenv("VLLM_MQ_MAX_CHUNK_BYTES_MB", "16")' in sources
        assert b"max_chunk_bytes: int = 1024 * 1024 * 24,\n        max_chunks: int = 10," in sources
        assert b"self.worker_response_mq = MessageQueue(1, 1)" in sources
