# SPDX-License-Identifier: Apache-2.0
"""One builder of machines: a folder with the /dev, /proc, /etc and /usr that the doctor reads.

What it builds is right in every respect; a test then breaks the one thing that it is
about. See ``hosts/README.md`` for where the texts come from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import tree
from patchkit import target
from patchkit.release import Release
from patchkit.target import Target
from serving.findings import Finding
from serving.machine.host import Host, Space

See = Callable[..., list[Finding]]
"""What one check says about the machine as the test has left it (the fixture ``see``)."""

HOSTS = Path(__file__).parent / "hosts"
GIB = 1 << 30

VERSIONS = {
    "torch": "2.10.0+cpu",
    "torch-npu": "2.10.0",
    "torchvision": "0.25.0",
    "transformers": "5.5.3",
    "triton-ascend": "3.2.1",
}

ASCEND = "usr/local/Ascend"
CANN = f"{ASCEND}/cann-9.0.0"
HAL = f"{ASCEND}/driver/lib64/driver/libascend_hal.so"
ATB = f"{ASCEND}/nnal/atb/latest/atb/cxx_abi_1/lib/libatb.so"
JEMALLOC = "usr/lib/aarch64-linux-gnu/libjemalloc.so.2"

TCP_HEADER = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
)

FILES = {
    "etc/os-release": 'NAME="Ubuntu"\nVERSION_ID="22.04"\n',
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nserver:x:1000:1000::/home/server:/bin/bash\n",
    "etc/ascend_install.info": "UserName=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\n",
    "proc/net/tcp": TCP_HEADER,
    "proc/net/tcp6": TCP_HEADER,
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "proc/sys/net/ipv4/ip_local_reserved_ports": "60000-60015\n",
    f"{ASCEND}/driver/version.info": "Version=25.2.0\nascendhal_version=7.35.23\n",
    f"{CANN}/aarch64-linux/ascend_toolkit_install.info": "package_name=Ascend-cann-toolkit\nversion=9.0.0\n",
    f"{CANN}/opp/built-in/op_impl/index": "",
    f"{CANN}/lib64/libhccl.so": "",
    HAL: "",
    ATB: "",
    JEMALLOC: "",
    "usr/local/dcmi/libdcmi.so": "",
    "root/.profile": "",
}
DEVICES = (*(f"davinci{number}" for number in range(8)), "davinci_manager", "devmm_svm", "hisi_hdc")

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/root",
    "ASCEND_HOME_PATH": "/usr/local/Ascend/cann-9.0.0",
    "ASCEND_OPP_PATH": "/usr/local/Ascend/cann-9.0.0/opp",
    "LD_LIBRARY_PATH": ":".join(f"/{Path(path).parent}" for path in (HAL, ATB, f"{CANN}/lib64/libhccl.so")),
    "LD_PRELOAD": f"/{JEMALLOC}",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def _roomy(_: Path) -> Space | None:
    return Space(1024 * GIB, 512 * GIB)


@dataclass
class Machine:
    """A machine to break. ``host`` is taken last: it looks at the folder as it is then."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    overrides: dict[str, object] = field(default_factory=dict)

    @property
    def host(self) -> Host:
        plain = Host(self.root, self.environment, uid=0, machine="aarch64", measure=_roomy)
        return replace(plain, **self.overrides)  # type: ignore[arg-type]

    def write(self, name: str, text: str | bytes) -> Path:
        return tree.write(self.root / name, text if isinstance(text, bytes) else text.encode())

    def remove(self, *names: str) -> None:
        for name in names:
            path = self.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def npu_smi(self, table: str) -> None:
        """Let ``npu-smi info`` print one of the tables in ``hosts/npu-smi``."""
        shutil.copy(HOSTS / "npu-smi" / f"{table}.txt", self.root / "usr/local/bin/npu-smi.txt")

    def program(self, name: str, script: str) -> Path:
        path = self.write(name, f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def listen(self, port: int, inode: int = 4242, state: str = "0A", table: str = "tcp") -> None:
        """A socket on a port, as a row of /proc/net/tcp: listening, unless ``state`` says otherwise."""
        address = "0100007F" if table == "tcp" else "0" * 32
        with (self.root / "proc/net" / table).open("a") as file:
            file.write(
                f"   0: {address}:{port:04X} {'0' * len(address)}:0000 {state} 00000000:00000000 "
                f"00:00000000 00000000     0        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
            )

    def owner(self, inode: int, pid: int, name: str) -> None:
        """A process that holds a socket."""
        self.write(f"proc/{pid}/comm", f"{name}\n")
        descriptor = self.root / f"proc/{pid}/fd/3"
        descriptor.parent.mkdir(parents=True)
        descriptor.symlink_to(f"socket:[{inode}]")


def build(root: Path) -> Machine:
    """A container of the official image on a server of eight idle 910B3, as it should be."""
    machine = Machine(root)
    for name, text in FILES.items():
        machine.write(name, text)
    for name in DEVICES:
        machine.write(f"dev/{name}", "").chmod(0o660)
    for folder in ("dev/shm", "tmp", "home/server"):
        (root / folder).mkdir(parents=True)
    latest = root / ASCEND / "ascend-toolkit" / "latest"
    latest.parent.mkdir(parents=True)
    latest.symlink_to("../cann-9.0.0")
    machine.program("usr/local/bin/npu-smi", f"cat {root}/usr/local/bin/npu-smi.txt")
    machine.npu_smi("910b3")
    return machine


def python(
    folder: Path, version: tuple[int, ...] = (3, 11, 15), versions: Mapping[str, str] = VERSIONS
) -> Path:
    """A program that answers the doctor's question as a Python with these packages would."""
    answer = json.dumps({"python": version, "versions": dict(versions)})
    path = tree.write(folder / "python3", f"#!/bin/sh\necho '{answer}'\n".encode())
    path.chmod(0o755)
    return path


def installation(
    folder: Path,
    release: Release,
    applied: tuple[str, ...] = tree.ORDER,
    releases: tuple[str, str] = ("0.20.2", "0.20.2rc1"),
) -> Target:
    """The small set's packages, by default all applied, and a Python that has the pinned packages."""
    root = tree.write_packages(folder / "site-packages", applied, releases)
    tree.write(root / "vllm_ascend" / "_build_info.py", b"# Auto-generated file\n__device_type__ = 'A2'\n")
    found = target.in_folder(release.packages, root)
    return replace(found, python=python(folder / "bin"))


def vllm_command(folder: Path, interpreter: Path) -> Path:
    """A ``vllm`` command of that interpreter, in a folder for PATH."""
    path = tree.write(folder / "vllm", f"#!{interpreter}\n".encode())
    path.chmod(0o755)
    return path


def path_of(*folders: Path) -> str:
    """A PATH on which the shell's own tools are found as well."""
    return os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])
