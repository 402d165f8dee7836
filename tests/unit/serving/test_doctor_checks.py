# SPDX-License-Identifier: Apache-2.0
"""Each check of the doctor: a machine that is right, and each way in which it can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import tree
from patchkit.errors import TargetNotFound
from patchkit.release import Release
from patchkit.target import Target
from serving.findings import Severity
from serving.machine import doctor
from serving.machine.host import Space
from unit.serving import machines
from unit.serving.machines import ATB, CANN, GIB, HAL, JEMALLOC, Machine, See

Break = Callable[[Machine], None]


@dataclass(frozen=True)
class Case:
    """One thing that is wrong with a machine, and what the doctor must say of it."""

    name: str
    check: str
    status: Severity
    said: str
    cure: str
    break_it: Break


def variable(name: str, value: str) -> Break:
    return lambda machine: machine.environment.__setitem__(name, value)


def unset(*names: str) -> Break:
    def do(machine: Machine) -> None:
        for name in names:
            del machine.environment[name]

    return do


def set_host(**fields: object) -> Break:
    return lambda machine: machine.overrides.update(fields)


def without(*names: str) -> Break:
    return lambda machine: machine.remove(*names)


def with_file(name: str, text: str) -> Break:
    def do(machine: Machine) -> None:
        machine.write(name, text)

    return do


def table(name: str) -> Break:
    return lambda machine: machine.npu_smi(name)


def program(name: str, script: str) -> Break:
    def do(machine: Machine) -> None:
        machine.program(name, script)

    return do


def room(total: float, free: float) -> Break:
    return set_host(measure=lambda _: Space(int(total * GIB), int(free * GIB)))


def together(*breaks: Break) -> Break:
    def do(machine: Machine) -> None:
        for one in breaks:
            one(machine)

    return do


def listening(*ports: int, state: str = "0A", kind: str = "tcp") -> Break:
    def do(machine: Machine) -> None:
        for port in ports:
            machine.listen(port, state=state, table=kind)

    return do


def served_by_python(machine: Machine) -> None:
    machine.listen(8000, inode=77)
    machine.owner(77, pid=4711, name="python3")


def closed_devices(machine: Machine) -> None:
    machine.overrides |= {"uid": 1000, "groups": frozenset({1000})}


OK, NOTE, WARNING, PROBLEM, UNSEEN = (
    Severity.OK,
    Severity.NOTE,
    Severity.WARNING,
    Severity.PROBLEM,
    Severity.NOT_LOOKED_AT,
)
DRIVER_MOUNT = "-v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64"
ALL_CARDS = "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
OPENEULER = "usr/lib64/libjemalloc.so.2"

CASES = (
    # --- the machine --------------------------------------------------------------------
    Case("x86_64 is fine too", "architecture", OK, "x86_64", "", set_host(machine="x86_64")),
    Case("another processor", "architecture", PROBLEM, "riscv64", "--platform", set_host(machine="riscv64")),
    Case(
        "openEuler 24.03",
        "operating-system",
        OK,
        "openEuler 24.03",
        "",
        with_file("etc/os-release", "NAME=openEuler\nVERSION_ID='24.03'\n"),
    ),
    Case(
        "another system",
        "operating-system",
        NOTE,
        "Debian GNU/Linux 12",
        "",
        with_file("etc/os-release", 'NAME="Debian GNU/Linux"\nVERSION_ID="12"\n'),
    ),
    Case(
        "no os-release",
        "operating-system",
        UNSEEN,
        "/etc/os-release",
        "",
        without("etc/os-release"),
    ),
    Case(
        "a card and a manager not mounted",
        "devices",
        PROBLEM,
        "7 cards; missing: /dev/davinci3, /dev/devmm_svm",
        "docker run --device /dev/davinci3 --device /dev/devmm_svm ...",
        without("dev/davinci3", "dev/devmm_svm"),
    ),
    Case(
        "other card numbers are as good",
        "devices",
        OK,
        "8 cards",
        "",
        together(without("dev/davinci0"), with_file("dev/davinci8", "")),
    ),
    Case(
        "a user outside the driver's group",
        "devices",
        PROBLEM,
        "uid 1000 may not open /dev/davinci0",
        "--group-add",
        closed_devices,
    ),
    Case("no driver library", "driver", PROBLEM, "libascend_hal.so", DRIVER_MOUNT, without(HAL)),
    Case(
        "only CANN's stub of it",
        "driver",
        PROBLEM,
        "libascend_hal.so",
        DRIVER_MOUNT,
        together(
            without(HAL),
            with_file(f"{CANN}/devlib/libascend_hal.so", ""),
            variable("LD_LIBRARY_PATH", f"/{CANN}/devlib"),
        ),
    ),
    Case(
        "the driver elsewhere, named by ascend_install.info",
        "driver",
        OK,
        "/opt/npu/driver/lib64/driver/libascend_hal.so",
        "",
        together(
            without(HAL),
            with_file("etc/ascend_install.info", "Driver_Install_Path_Param=/opt/npu\n"),
            with_file("opt/npu/driver/lib64/driver/libascend_hal.so", ""),
        ),
    ),
    Case(
        "no library for npu-smi",
        "driver",
        WARNING,
        "/usr/local/dcmi is not there",
        "-v /usr/local/dcmi:/usr/local/dcmi",
        without("usr/local/dcmi"),
    ),
    Case(
        "no npu-smi",
        "npu-smi",
        WARNING,
        "there is no npu-smi",
        "-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi",
        without("usr/local/bin/npu-smi"),
    ),
    Case(
        "the cards are another container's",
        "npu-smi",
        PROBLEM,
        "dcmi module initialize failed. ret is -8005",
        "docker ps",
        table("held-elsewhere"),
    ),
    Case(
        "npu-smi does not load", "npu-smi", PROBLEM, "libdrvdsmi_host.so", "npu-smi info", table("no-driver")
    ),
    Case(
        "npu-smi is of another processor",
        "npu-smi",
        PROBLEM,
        "cannot be started (Exec format error)",
        "npu-smi info",
        lambda machine: machine.write("usr/local/bin/npu-smi", b"\x7fELF\0nothing").chmod(0o755),
    ),
    Case("910B2", "chips", NOTE, "8 x 910B2, 65536 MB", "", table("910b2")),
    Case("910B4-1, with 64 GiB", "chips", NOTE, "8 x 910B4-1", "", table("910b4-1")),
    Case("910B4, with 32 GiB", "chips", PROBLEM, "card 0 (910B4) has 32768 MB", "65536 MB", table("910b4")),
    Case("910C", "chips", WARNING, "Ascend910: Atlas A3 (910C)", "-a3", table("910c")),
    Case("310P", "chips", PROBLEM, "310P3: 310P", "910B3", table("310p3")),
    Case(
        "first generation", "chips", PROBLEM, "910ProB: the first 910 generation", "910B3", table("910prob")
    ),
    Case(
        "a card in alarm",
        "chips",
        PROBLEM,
        "card 5: Alarm",
        "npu-smi info -t health -i 5",
        table("910b3-alarm"),
    ),
    Case(
        "a card lost to the driver",
        "chips",
        PROBLEM,
        "npu-smi shows 7 chips, /dev has 8",
        "npu-smi info",
        table("910b3-seven"),
    ),
    Case("no table", "chips", UNSEEN, "see npu-smi", "", without("usr/local/bin/npu-smi")),
    Case(
        "somebody fills two cards",
        "card-processes",
        PROBLEM,
        "card 0 59891 of 65536 MB, card 1 59891 of 65536 MB (card 0: pid 669096 VLLMWorker_TP, 55124 MB",
        "kill PID",
        table("910b3-busy"),
    ),
    Case(
        "somebody is there",
        "card-processes",
        WARNING,
        "card 0: pid 632268 python3.1, 197 MB",
        "kill PID",
        table("910b3-small-guest"),
    ),
    Case(
        "no table of processes", "card-processes", UNSEEN, "see npu-smi", "", without("usr/local/bin/npu-smi")
    ),
    # --- CANN ---------------------------------------------------------------------------
    Case(
        "no CANN",
        "cann",
        PROBLEM,
        "no CANN",
        "image vllm-ascend:v0.20.2rc1",
        without("usr/local/Ascend/ascend-toolkit", CANN),
    ),
    Case(
        "another CANN",
        "cann",
        WARNING,
        "CANN 8.5.0",
        "image vllm-ascend:v0.20.2rc1",
        with_file(f"{CANN}/aarch64-linux/ascend_toolkit_install.info", "version=8.5.0\n"),
    ),
    Case(
        "a CANN that names no version",
        "cann",
        WARNING,
        "CANN (version unknown)",
        "image vllm-ascend:v0.20.2rc1",
        without(f"{CANN}/aarch64-linux/ascend_toolkit_install.info"),
    ),
    Case(
        "no operators",
        "cann",
        PROBLEM,
        "no operators",
        "910b-ops_9.0.0_linux-aarch64.run",
        without(f"{CANN}/opp"),
    ),
    Case("no NNAL", "cann", PROBLEM, "no libatb.so", "nnal_9.0.0_linux-aarch64.run", without(ATB)),
    Case(
        "set_env.sh not sourced",
        "cann-variables",
        PROBLEM,
        "ASCEND_HOME_PATH is unset; ASCEND_OPP_PATH is unset; libhccl.so is in "
        "/usr/local/Ascend/ascend-toolkit/latest/lib64, which is not on LD_LIBRARY_PATH",
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh && source /usr/local/Ascend/nnal/atb/set_env.sh",
        unset("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH"),
    ),
    Case(
        "a path of another CANN",
        "cann-variables",
        PROBLEM,
        "ASCEND_OPP_PATH=/usr/local/Ascend/cann-8.5.0/opp is no folder",
        "set_env.sh",
        variable("ASCEND_OPP_PATH", "/usr/local/Ascend/cann-8.5.0/opp"),
    ),
    Case(
        "libraries named by ld.so.conf.d",
        "cann-variables",
        OK,
        "its libraries are found",
        "",
        together(
            with_file(
                "etc/ld.so.conf.d/ascend.conf", machines.ENVIRONMENT["LD_LIBRARY_PATH"].replace(":", "\n")
            ),
            unset("LD_LIBRARY_PATH"),
        ),
    ),
    Case(
        "no CANN, no variables",
        "cann-variables",
        UNSEEN,
        "there is no CANN",
        "",
        without("usr/local/Ascend/ascend-toolkit", CANN),
    ),
    Case("eight cards by number", "visible-devices", OK, ALL_CARDS, "", variable(*ALL_CARDS.split("="))),
    Case(
        "a range",
        "visible-devices",
        PROBLEM,
        "ASCEND_RT_VISIBLE_DEVICES=0-7",
        f"export {ALL_CARDS}",
        variable("ASCEND_RT_VISIBLE_DEVICES", "0-7"),
    ),
    Case(
        "an empty list",
        "visible-devices",
        PROBLEM,
        "ASCEND_RT_VISIBLE_DEVICES=",
        f"export {ALL_CARDS}",
        variable("ASCEND_RT_VISIBLE_DEVICES", ""),
    ),
    Case(
        "the host's numbers inside a container",
        "visible-devices",
        PROBLEM,
        "there is no card 8, 9",
        f"export {ALL_CARDS}",
        variable("ASCEND_RT_VISIBLE_DEVICES", "2,3,4,5,6,7,8,9"),
    ),
    Case(
        "a card twice",
        "visible-devices",
        PROBLEM,
        "card 1 is named twice",
        f"export {ALL_CARDS}",
        variable("ASCEND_RT_VISIBLE_DEVICES", "0,1,1,2,3,4,5,6,7"),
    ),
    Case(
        "half of the cards",
        "visible-devices",
        PROBLEM,
        "leaves 4 cards",
        f"export {ALL_CARDS}",
        variable("ASCEND_RT_VISIBLE_DEVICES", "0,1,2,3"),
    ),
    # --- the container ------------------------------------------------------------------
    Case(
        "docker's default /dev/shm",
        "shared-memory",
        PROBLEM,
        "64 MiB",
        "--shm-size=16g",
        room(64 / 1024, 64 / 1024),
    ),
    Case("1 GiB of it", "shared-memory", WARNING, "1.0 GiB, 1.0 GiB free", "--shm-size=16g", room(1, 1)),
    Case("16 GiB, but full", "shared-memory", PROBLEM, "16.0 GiB, 0 MiB free", "--shm-size=16g", room(16, 0)),
    Case(
        "no /dev/shm", "shared-memory", PROBLEM, "there is no /dev/shm", "--shm-size=16g", without("dev/shm")
    ),
    Case(
        "cannot be measured",
        "shared-memory",
        UNSEEN,
        "cannot be measured",
        "",
        set_host(measure=lambda _: None),
    ),
    Case(
        "--user 12345",
        "user",
        PROBLEM,
        "uid 12345 has no passwd entry, and USER is unset",
        "export USER=uid12345 HOME=/tmp/home-12345 && mkdir -p $HOME",
        set_host(uid=12345),
    ),
    Case(
        "--user 12345, with a name in the environment",
        "user",
        NOTE,
        "USER=step stands in for it",
        "",
        together(set_host(uid=12345), variable("USER", "step")),
    ),
    Case("a user of its own", "user", OK, "uid 1000 is server", "", set_host(uid=1000)),
    Case(
        "a home folder of somebody else",
        "home-folder",
        PROBLEM,
        "uid 12345 may not write to /root/.cache/vllm",
        "export HOME=/tmp/home-12345 && mkdir -p $HOME",
        set_host(uid=12345, groups=frozenset()),
    ),
    Case(
        "the home is a file",
        "home-folder",
        PROBLEM,
        "/home/file/.cache/vllm",
        "export HOME=",
        together(with_file("home/file", ""), variable("HOME", "/home/file")),
    ),
    Case(
        "caches moved away from a closed home",
        "home-folder",
        OK,
        "caches may be written",
        "",
        together(
            variable("HOME", "/home/file"),
            with_file("home/file", ""),
            variable("VLLM_CACHE_ROOT", "/tmp/vllm"),
            variable("HF_HOME", "/tmp/hf"),
        ),
    ),
    Case("little room", "disk", WARNING, "/tmp: 5.0 GiB free", "du -xh", room(100, 5)),
    Case("no room", "disk", PROBLEM, "/tmp: 512 MiB free", "du -xh", room(100, 0.5)),
    Case(
        "port taken",
        "serve-port",
        PROBLEM,
        "port 8000 is taken by pid 4711, python3",
        "--port 8001",
        served_by_python,
    ),
    Case(
        "port taken on IPv6, by nobody that can be seen",
        "serve-port",
        PROBLEM,
        "port 8000 is taken",
        "--port 8002",
        listening(8000, 8001, kind="tcp6"),
    ),
    Case("a client is no server", "serve-port", OK, "port 8000 is free", "", listening(8000, state="01")),
    Case(
        "no /proc/net",
        "serve-port",
        UNSEEN,
        "/proc/net/tcp",
        "",
        without("proc/net/tcp", "proc/net/tcp6"),
    ),
    Case(
        "a second service has HCCL's ports",
        "hccl-ports",
        PROBLEM,
        "port 60000 is taken",
        "export HCCL_IF_BASE_PORT=61000",
        listening(60000, 60001),
    ),
    Case(
        "the next base is taken too",
        "hccl-ports",
        PROBLEM,
        "port 60007 is taken",
        "export HCCL_IF_BASE_PORT=61032",
        listening(60007, 61000, 61016),
    ),
    Case(
        "an outgoing connection has one",
        "hccl-ports",
        WARNING,
        "port 60003 is taken",
        "export HCCL_IF_BASE_PORT=61000",
        listening(60003, state="01"),
    ),
    Case(
        "a listener counts more than a connection",
        "hccl-ports",
        PROBLEM,
        "port 60005 is taken",
        "export HCCL_IF_BASE_PORT=61000",
        together(listening(60003, state="01"), listening(60005)),
    ),
    Case(
        "one that has just ended", "hccl-ports", OK, "60000-60015 are free", "", listening(60003, state="06")
    ),
    Case(
        "the base that was chosen is taken",
        "hccl-ports",
        PROBLEM,
        "port 50005 is taken",
        "export HCCL_IF_BASE_PORT=61000",
        together(variable("HCCL_IF_BASE_PORT", "50000"), listening(50005, 60000)),
    ),
    Case(
        "a range comes before the base",
        "hccl-ports",
        PROBLEM,
        "port 51000 is taken",
        "export HCCL_IF_BASE_PORT=61000 && unset HCCL_HOST_SOCKET_PORT_RANGE",
        together(
            variable("HCCL_HOST_SOCKET_PORT_RANGE", "51000,51010-51020"),
            variable("HCCL_IF_BASE_PORT", "62000"),
            listening(51000),
        ),
    ),
    Case(
        "ports by the system's choice",
        "hccl-ports",
        OK,
        "auto",
        "",
        together(variable("HCCL_HOST_SOCKET_PORT_RANGE", "auto"), listening(60000)),
    ),
    Case(
        "a base that is none",
        "hccl-ports",
        PROBLEM,
        "HCCL_IF_BASE_PORT=65530",
        "unset HCCL_IF_BASE_PORT",
        variable("HCCL_IF_BASE_PORT", "65530"),
    ),
    Case(
        "a range that is none",
        "hccl-ports",
        PROBLEM,
        "HCCL_HOST_SOCKET_PORT_RANGE=60050-60000",
        "unset HCCL_HOST_SOCKET_PORT_RANGE",
        variable("HCCL_HOST_SOCKET_PORT_RANGE", "60050-60000"),
    ),
    Case(
        "outgoing connections may take one",
        "hccl-ports",
        NOTE,
        "ports 60000-60015 are free, but 32768-60999",
        "sysctl -w net.ipv4.ip_local_reserved_ports=60000-60015",
        with_file("proc/sys/net/ipv4/ip_local_reserved_ports", "\n"),
    ),
    Case(
        "ports, without /proc/net",
        "hccl-ports",
        UNSEEN,
        "/proc/net/tcp",
        "",
        without("proc/net/tcp", "proc/net/tcp6"),
    ),
    # --- the environment ----------------------------------------------------------------
    Case(
        "FlashComm1",
        "model-variables",
        PROBLEM,
        "VLLM_ASCEND_ENABLE_FLASHCOMM1=1",
        "unset VLLM_ASCEND_ENABLE_FLASHCOMM1",
        variable("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1"),
    ),
    Case("FlashComm1 off", "model-variables", OK, "none", "", variable("VLLM_ASCEND_ENABLE_FLASHCOMM1", "0")),
    Case(
        "a word where a number is read",
        "model-variables",
        PROBLEM,
        "VLLM_ASCEND_ENABLE_FLASHCOMM1=true",
        "unset VLLM_ASCEND_ENABLE_FLASHCOMM1",
        variable("VLLM_ASCEND_ENABLE_FLASHCOMM1", "true"),
    ),
    Case(
        "FlashComm2",
        "model-variables",
        WARNING,
        "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE=2",
        "unset VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
        variable("VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE", "2"),
    ),
    Case(
        "the fused operator, on a 910B",
        "model-variables",
        WARNING,
        "VLLM_ASCEND_ENABLE_FUSED_MC2=1",
        "unset VLLM_ASCEND_ENABLE_FUSED_MC2",
        variable("VLLM_ASCEND_ENABLE_FUSED_MC2", "1"),
    ),
    Case(
        "the fused operator, on a 910C",
        "model-variables",
        PROBLEM,
        "VLLM_ASCEND_ENABLE_FUSED_MC2=2",
        "unset VLLM_ASCEND_ENABLE_FUSED_MC2",
        together(table("910c"), variable("VLLM_ASCEND_ENABLE_FUSED_MC2", "2")),
    ),
    Case(
        "debugging left on",
        "model-variables",
        PROBLEM,
        "ASCEND_LAUNCH_BLOCKING=1",
        "unset ASCEND_LAUNCH_BLOCKING",
        variable("ASCEND_LAUNCH_BLOCKING", "1"),
    ),
    Case(
        "a Kubernetes service named vllm",
        "model-variables",
        PROBLEM,
        "VLLM_PORT=tcp://10.0.0.7:8000",
        "enableServiceLinks: false",
        variable("VLLM_PORT", "tcp://10.0.0.7:8000"),
    ),
    Case("a VLLM_PORT that is one", "model-variables", OK, "none", "", variable("VLLM_PORT", "29500")),
    Case(
        "plugins without ascend",
        "model-variables",
        PROBLEM,
        "VLLM_PLUGINS=lora",
        "unset VLLM_PLUGINS",
        variable("VLLM_PLUGINS", "lora"),
    ),
    Case(
        "plugins with ascend",
        "model-variables",
        OK,
        "none",
        "",
        variable("VLLM_PLUGINS", "ascend,ascend_model"),
    ),
    Case(
        "the guide's prefetch",
        "dead-variables",
        WARNING,
        "VLLM_ASCEND_ENABLE_PREFETCH_MLP=1",
        "unset VLLM_ASCEND_ENABLE_PREFETCH_MLP",
        variable("VLLM_ASCEND_ENABLE_PREFETCH_MLP", "1"),
    ),
    Case(
        "the guide's queue",
        "dead-variables",
        NOTE,
        "TASK_QUEUE_ENABLE=1",
        "",
        variable("TASK_QUEUE_ENABLE", "1"),
    ),
    Case(
        "the guide's allocator",
        "dead-variables",
        NOTE,
        "expandable_segments:True",
        "",
        variable("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"),
    ),
    Case(
        "CUDA's cards",
        "dead-variables",
        NOTE,
        "CUDA_VISIBLE_DEVICES=0",
        f"export {ALL_CARDS}",
        variable("CUDA_VISIBLE_DEVICES", "0"),
    ),
    Case(
        "a variable of an old release",
        "dead-variables",
        WARNING,
        "VLLM_USE_V1=1",
        "unset VLLM_USE_V1",
        variable("VLLM_USE_V1", "1"),
    ),
    Case(
        "what Kubernetes makes of a service",
        "dead-variables",
        OK,
        "none",
        "",
        together(variable("VLLM_SERVICE_HOST", "10.0.0.7"), variable("VLLM_PORT_8000_TCP_ADDR", "10.0.0.7")),
    ),
    Case(
        "two allocator settings that exclude one another",
        "memory-variables",
        PROBLEM,
        "max_split_size_mb:256,expandable_segments:True",
        "unset PYTORCH_NPU_ALLOC_CONF",
        variable("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:256,expandable_segments:True"),
    ),
    Case(
        "an allocator that splinters",
        "memory-variables",
        WARNING,
        "max_split_size_mb:256",
        "unset PYTORCH_NPU_ALLOC_CONF",
        variable("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:256"),
    ),
    Case(
        "the guide's threads",
        "threads",
        WARNING,
        "OMP_NUM_THREADS=100",
        "=1",
        variable("OMP_NUM_THREADS", "100"),
    ),
    Case(
        "no number of threads",
        "threads",
        WARNING,
        "OMP_NUM_THREADS=all",
        "=1",
        variable("OMP_NUM_THREADS", "all"),
    ),
    Case("upstream's threads", "threads", OK, "OMP_NUM_THREADS=10", "", variable("OMP_NUM_THREADS", "10")),
    Case("threads unset", "threads", OK, "unset", "", unset("OMP_NUM_THREADS")),
    Case(
        "jemalloc: the fixed path on another system",
        "preload",
        WARNING,
        f"jemalloc is in /{OPENEULER}",
        f"export LD_PRELOAD=/{OPENEULER}",
        together(without(JEMALLOC), with_file(OPENEULER, "")),
    ),
    Case(
        "jemalloc: the path of the other processor",
        "preload",
        WARNING,
        f"jemalloc is in /{JEMALLOC}",
        f"export LD_PRELOAD=/{JEMALLOC}",
        variable("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
    ),
    Case(
        "jemalloc: nowhere",
        "preload",
        WARNING,
        "nothing replaces it",
        "unset LD_PRELOAD",
        without(JEMALLOC),
    ),
    Case(
        "jemalloc: the other entries are kept, in their order",
        "preload",
        WARNING,
        f"jemalloc is in /{OPENEULER}",
        f"export LD_PRELOAD=libfirst.so:/{OPENEULER}:/opt/last.so",
        together(
            without(JEMALLOC),
            with_file(OPENEULER, ""),
            with_file("opt/last.so", ""),
            variable("LD_PRELOAD", f"libfirst.so:/{JEMALLOC} /opt/last.so"),
        ),
    ),
    Case(
        "jemalloc: nowhere, but others stay",
        "preload",
        WARNING,
        "nothing replaces it",
        "export LD_PRELOAD=/opt/last.so",
        together(
            without(JEMALLOC),
            with_file("opt/last.so", ""),
            variable("LD_PRELOAD", f"/{JEMALLOC}:/opt/last.so"),
        ),
    ),
    Case(
        "jemalloc: there, not asked for",
        "preload",
        NOTE,
        f"/{JEMALLOC} is there",
        f"export LD_PRELOAD=/{JEMALLOC}:libother.so",
        variable("LD_PRELOAD", "libother.so"),
    ),
    Case(
        "a proxy for everything",
        "proxy",
        WARNING,
        "http_proxy set, but no_proxy does not name localhost and 127.0.0.1",
        "export no_proxy=localhost,127.0.0.1 NO_PROXY=localhost,127.0.0.1",
        variable("http_proxy", "http://proxy.example:3128"),
    ),
    Case(
        "a proxy for one of the two names",
        "proxy",
        WARNING,
        "HTTPS_PROXY set, but no_proxy does not name 127.0.0.1",
        "export no_proxy=127.0.0.1,localhost,.example NO_PROXY=127.0.0.1,localhost,.example",
        together(
            variable("HTTPS_PROXY", "http://proxy.example:3128"), variable("NO_PROXY", "localhost, .example")
        ),
    ),
    Case(
        "a proxy for the rest of the world",
        "proxy",
        OK,
        "exempt",
        "",
        together(
            variable("http_proxy", "http://proxy.example:3128"), variable("no_proxy", "localhost,127.0.0.1")
        ),
    ),
    Case(
        "not offline",
        "offline",
        NOTE,
        "are not set",
        "export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1",
        unset("HF_HUB_OFFLINE"),
    ),
    Case("offline, switched off", "offline", NOTE, "are not set", "export", variable("HF_HUB_OFFLINE", "0")),
    Case(
        "another hub",
        "offline",
        NOTE,
        "VLLM_USE_MODELSCOPE=True",
        "unset VLLM_USE_MODELSCOPE",
        variable("VLLM_USE_MODELSCOPE", "True"),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.name}")
def test_a_check_says_in_full_what_is_there_and_what_cures_it(case: Case, machine: Machine, see: See) -> None:
    case.break_it(machine)

    found = see(case.check)

    seen = [one for one in found if one.severity is case.status and case.said in one.what]
    assert seen, f"no {case.status.value} with {case.said!r} in {found}"
    assert case.cure in seen[0].cure
    for one in found:
        if one.severity in {WARNING, PROBLEM}:
            assert all((one.what, one.expected, one.why, one.cure)), one
            assert "\n" not in one.cure


def test_every_check_is_seen_to_pass(machine: Machine, installed: Target, small_set: Release) -> None:
    (machine.root / "models").mkdir()
    machine.write("models/config.json", "{}")

    found = doctor.examine(machine.host, small_set, installed, model=Path("/models")).findings

    passed = {finding.check.name for finding in found if finding.finding.severity is OK}
    assert passed == {name for name, _ in doctor.checks()}


def test_every_check_is_seen_to_object() -> None:
    about_the_installation = {
        "patch-set",
        "package-versions",
        "package-copies",
        "interpreter",
        "python-packages",
    }
    by_argument = {"model-folder"}

    objected = {case.check for case in CASES if case.status in {NOTE, WARNING, PROBLEM}}

    assert objected | about_the_installation | by_argument == {name for name, _ in doctor.checks()}


# --- the installation -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("applied", "said", "symptom"),
    [
        ((), "none of the 5 files is applied", "_get_num_multimodal_tokens"),
        ((tree.ACTIVATION, tree.MOE), "2 of 5 files are applied", "_get_num_multimodal_tokens"),
        (
            tuple(path for path in tree.ORDER if path != tree.MODEL),
            "4 of 5 files are applied",
            "registered, but its module fails to import",
        ),
    ],
)
def test_an_unpatched_or_half_patched_installation_is_a_problem(
    tmp_path: Path, see: See, small_set: Release, applied: tuple[str, ...], said: str, symptom: str
) -> None:
    target = machines.installation(tmp_path / "other", small_set, applied)

    (seen,) = see("patch-set", target)

    assert seen.severity is PROBLEM
    assert said in seen.what
    assert symptom in seen.why
    assert seen.cure.startswith("{kit} apply")


def test_a_drifted_file_is_named(tmp_path: Path, see: See, small_set: Release) -> None:
    target = machines.installation(tmp_path / "other", small_set)
    tree.write(target.file(small_set.base.files[0].path), b"something else\n")

    (seen,) = see("patch-set", target)

    assert seen.severity is PROBLEM
    assert f"{tree.ACTIVATION}: line 4: expected ''" in seen.what
    assert seen.cure.startswith("{kit} verify")


@pytest.mark.parametrize(
    ("releases", "wrong"),
    [
        (("0.20.1", "0.20.2rc1"), ["vLLM 0.20.1"]),
        (("0.21.0", "0.18.0"), ["vLLM 0.21.0", "vllm-ascend 0.18.0"]),
    ],
)
def test_another_release_is_named_with_the_wanted_one(
    tmp_path: Path, see: See, small_set: Release, releases: tuple[str, str], wrong: list[str]
) -> None:
    target = machines.installation(tmp_path / "other", small_set, (), releases)

    seen = [one for one in see("package-versions", target) if one.severity is PROBLEM]

    assert [one.what.split(" in ")[0] for one in seen] == wrong
    assert {one.expected for one in seen} <= {"vLLM 0.20.2", "vllm-ascend 0.20.2rc1"}
    assert [one.severity for one in see("patch-set", target)] == [UNSEEN]


def test_a_native_release_needs_nothing(tmp_path: Path, see: See, small_set: Release) -> None:
    target = machines.installation(tmp_path / "other", small_set, (), ("0.23.0", "0.23.0rc1"))

    (seen,) = see("patch-set", target)

    assert seen.severity is OK
    assert "native: not needed" in seen.what
    assert {one.severity for one in see("package-versions", target)} == {OK}


def test_a_source_build_that_names_no_release_is_left_to_the_hashes(
    tmp_path: Path, see: See, small_set: Release
) -> None:
    target = machines.installation(
        tmp_path / "other", small_set, releases=("0.1.dev1+g0123abc.empty", "0.20.2rc1")
    )

    statuses = [one.severity for one in see("package-versions", target)]

    assert statuses == [NOTE, OK]
    assert [one.severity for one in see("patch-set", target)] == [OK]


def test_a_missing_installation_is_one_problem_with_its_own_next_step(see: See) -> None:
    error = TargetNotFound("no package vllm", "name it: {kit} status --python PATH")

    (seen,) = see("patch-set", error)

    assert seen.severity is PROBLEM
    assert seen.what == "no package vllm"
    assert seen.cure == "name it: {kit} status --python PATH"
    for check in ("package-versions", "package-copies"):
        assert [one.severity for one in see(check, error)] == [UNSEEN]


def test_a_decoy_on_the_interpreters_path_is_named(tmp_path: Path, see: See, installed: Target) -> None:
    decoy = tree.write_packages(tmp_path / "decoy")
    location = replace(installed.locations["vllm"], others=(decoy / "vllm",))
    target = replace(installed, locations={**installed.locations, "vllm": location})

    (seen,) = see("package-copies", target)

    assert seen.severity is WARNING
    assert seen.what == f"a second vllm in {decoy / 'vllm'}"


@pytest.mark.parametrize(
    "place",
    [
        "usr/local/python3.11.15/lib/python3.11/site-packages",
        "root/.local/lib/python3.11/site-packages",
        "image",
    ],
)
def test_a_decoy_in_a_usual_place_is_named(machine: Machine, see: See, place: str) -> None:
    machine.write(f"{place}/vllm_ascend/__init__.py", "")

    (seen,) = see("package-copies")

    assert seen.severity is WARNING
    assert seen.what == f"a second vllm_ascend in {machine.root / place / 'vllm_ascend'}"


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 11, 7), OK), ((3, 10, 12), NOTE), ((3, 12, 1), PROBLEM), ((3, 9, 0), PROBLEM)],
)
def test_the_python_is_held_against_the_one_of_the_release(
    see: See, installed: Target, version: tuple[int, ...], status: Severity
) -> None:
    assert installed.python
    machines.python(installed.python.parent, version)

    seen = see("interpreter")

    assert [one.severity for one in seen] == [status]
    assert f"Python {'.'.join(map(str, version))}" in seen[0].what


def test_a_python_that_does_not_run_is_a_problem_and_no_traceback(see: See, installed: Target) -> None:
    assert installed.python
    installed.python.write_bytes(b"#!/bin/sh\necho Segmentation fault >&2\nexit 139\n")

    (seen,) = see("interpreter")

    assert seen.severity is PROBLEM
    assert seen.what == f"{installed.python} gives no answer"
    assert [one.severity for one in see("python-packages")] == [UNSEEN]


def test_a_vllm_command_of_another_python_is_named(
    tmp_path: Path, see: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = machines.python(tmp_path / "another")
    machines.vllm_command(tmp_path / "path", other)
    monkeypatch.setenv("PATH", machines.path_of(tmp_path / "path"))

    (seen,) = (one for one in see("interpreter") if one.severity is WARNING)

    assert seen.what.startswith(f"the vllm command runs with {other}, not with ")


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("torch", "2.11.0", PROBLEM),
        ("torch", None, PROBLEM),
        ("torch-npu", "2.10.0.post2", PROBLEM),
        ("torch-npu", None, PROBLEM),
        ("torchvision", "0.26.0", WARNING),
        ("transformers", "5.16.0", WARNING),
        ("transformers", None, PROBLEM),
        ("triton-ascend", None, WARNING),
    ],
)
def test_a_package_off_its_pin_is_named_with_the_pin(
    see: See, installed: Target, name: str, version: str | None, status: Severity
) -> None:
    assert installed.python
    versions = {key: value for key, value in machines.VERSIONS.items() if key != name}
    machines.python(installed.python.parent, versions=versions | ({name: version} if version else {}))

    (seen,) = see("python-packages")

    assert seen.severity is status
    assert seen.what.startswith(f"{name} {version or 'is not installed'}")
    assert seen.cure.startswith(
        f"{installed.python} -m pip install --no-deps {seen.expected.replace(' ', '==')}"
    )


def test_a_second_triton_is_named(see: See, installed: Target) -> None:
    assert installed.python
    machines.python(installed.python.parent, versions=machines.VERSIONS | {"triton": "3.6.0"})

    (seen,) = see("python-packages")

    assert seen.severity is WARNING
    assert seen.what == "triton 3.6.0 beside triton-ascend"


def test_a_real_python_is_asked_for_its_metadata_and_imports_nothing(
    tmp_path: Path, see: See, installed: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    for name, version in machines.VERSIONS.items():
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        tree.write(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode())
        tree.write(site / name.replace("-", "_") / "__init__.py", b"raise SystemExit('imported')\n")
    tree.write(site / "triton-3.6.0.dist-info" / "METADATA", b"\xff\xfe no metadata at all")
    monkeypatch.setenv("PYTHONPATH", str(site))

    (seen,) = see("python-packages", replace(installed, python=Path(sys.executable)))

    assert seen.severity is OK
    assert (
        seen.what
        == "torch 2.10.0+cpu, torch-npu 2.10.0, torchvision 0.25.0, transformers 5.5.3, triton-ascend 3.2.1"
    )


def test_a_python_without_torch_is_no_matter_where_there_is_no_installation(
    tmp_path: Path, see: See, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = machines.python(tmp_path / "another", versions={})
    machines.vllm_command(tmp_path / "path", other)
    monkeypatch.setenv("PATH", machines.path_of(tmp_path / "path"))

    (seen,) = see("python-packages", TargetNotFound("none", "none"))

    assert seen.severity is UNSEEN
    assert seen.what == f"{other} has no torch: it is not the Python that serves"


def test_a_bare_folder_is_read_by_its_dist_info(see: See, installed: Target) -> None:
    site = installed.lock_folder.parent
    for name, version in (machines.VERSIONS | {"torch_npu": "2.9.0", "torch-npu": ""}).items():
        if version:
            (site / f"{name}-{version}.dist-info").mkdir()

    target = replace(installed, python=None)

    assert [one.what for one in see("python-packages", target)] == ["torch-npu 2.9.0"]
    assert [one.severity for one in see("interpreter", target)] == [UNSEEN]


def test_a_build_for_another_chip_is_a_problem(see: See, installed: Target) -> None:
    info = installed.locations["vllm_ascend"].folder / "_build_info.py"
    info.write_text("__device_type__ = 'A3'\n")

    (seen,) = (one for one in see("chips") if one.severity is PROBLEM)

    assert seen.what == "vllm-ascend was built for A3, the cards are Atlas A2 (910B)"
    assert "does not match the installed version's device type" in seen.why


def test_a_variable_that_a_source_file_reads_is_not_dead(
    machine: Machine, see: See, installed: Target
) -> None:
    tree.write(installed.locations["vllm"].folder / "deep" / "down.py", b"os.getenv('VLLM_USE_V1')\n")
    machine.environment["VLLM_USE_V1"] = "1"

    (seen,) = see("dead-variables")

    assert seen.severity is OK


@pytest.mark.parametrize("name", ["VLLM_MY_API_KEY", "VLLM_HUB_TOKEN"])
def test_a_secret_stays_out_of_the_report(machine: Machine, see: See, name: str) -> None:
    machine.environment[name] = "sesame"

    (seen,) = see("dead-variables")

    assert seen.what == f"{name}=(not shown)"


def test_whether_a_variable_is_read_is_not_guessed_without_an_installation(
    machine: Machine, see: See
) -> None:
    machine.environment["VLLM_USE_V1"] = "1"

    (seen,) = see("dead-variables", TargetNotFound("none", "none"))

    assert seen.severity is UNSEEN


# --- what the command line names --------------------------------------------------------


def test_a_model_folder_that_is_there_is_left_to_check_model(machine: Machine, see: See) -> None:
    machine.write("models/step/config.json", "{}")

    (seen,) = see("model-folder", model=Path("/models/step"))

    assert seen.severity is OK
    assert "{kit} check-model /models/step" in seen.what


def test_a_model_folder_that_is_not_mounted_is_a_problem(see: See) -> None:
    (seen,) = see("model-folder", model=Path("/models/step"))

    assert seen.severity is PROBLEM
    assert seen.cure == "ls -la /models/step"


@pytest.mark.parametrize(("free", "status"), [(400, NOTE), (300, PROBLEM)])
def test_the_room_for_the_missing_shards_is_computed(
    machine: Machine, see: See, free: int, status: Severity
) -> None:
    # 402,730,656,512 bytes less 10 GiB are 365.1 GiB.
    machine.write("models/step/config.json", "{}")
    with machine.write("models/step/model-00001.safetensors", "").open("wb") as shard:
        shard.truncate(10 * GIB)
    room(1000, free)(machine)

    (seen,) = (one for one in see("disk", model=Path("/models/step")) if one.severity is not OK)

    assert seen.severity is status
    assert "365.1 GiB" in seen.what + seen.expected


@pytest.mark.parametrize(
    ("port", "uid", "status"), [(80, 1000, PROBLEM), (80, 0, OK), (0, 0, PROBLEM), (70000, 0, PROBLEM)]
)
def test_a_port_that_cannot_be_served_on_is_a_problem(
    machine: Machine, see: See, port: int, uid: int, status: Severity
) -> None:
    machine.overrides["uid"] = uid

    (seen,) = see("serve-port", port=port)

    assert seen.severity is status
